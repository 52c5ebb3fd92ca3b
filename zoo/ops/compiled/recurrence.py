"""The recurrence of zoo/ops/recurrence.py as compiled loops over tokens, one row and head after the other.

    P = diag(w) S        S <- P + a (b' P) + k v'        o = S' q

A state S (K, V) stays in the first cache while time runs; the innermost loops run along V. Forward keeps the state
before every 16th token and the vectors p = P' b. Backward goes from the last token to the first with D, the gradient
of the state: it computes 16 states again from a kept one, and with d = D + q g' + b (d' a)', where g is the gradient
of o, all that a token needs are sums along one axis of D and of the state before it:

    dv = D' k + (q' k) g           dk = D v + q (g' v)      dq = w S g + a (p' g) + k (v' g)
    dp = D' a + (q' a) g           da = D p + q (g' p)      db = w S dp
    D <- w (D + q g' + b dp')                               dw = rows of S (D + q g' + b dp')

No decay is ever divided by. Rows of S are taken in pairs, so that a vector along V is loaded half as often: an odd K
gets a row of zeros.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from zoo.ops.compiled import compiled, inner, row, spread

__all__ = ["compiled_recurrence"]

EVERY = 16  # tokens between kept states


def compiled_recurrence(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor | None, a: Tensor | None, b: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor]:
    """q, k (B, T, G, K), v (B, T, H, V), decay (H,), (B, T, H) or (B, T, H, K), a, b (B, T, H, K), state (B, H, K, V)
    -> (B, T, H, V), (B, H, K, V). All on a CPU and of one dtype, fp32 or fp64; any strides. First derivatives only."""
    keys = q.shape[3]
    if keys % 2:  # rows of S are taken in pairs
        q, k, a, b = (x if x is None else F.pad(x, (0, 1)) for x in (q, k, a, b))  # type: ignore[assignment]
        decay = decay if decay is None or decay.dim() < 4 else F.pad(decay, (0, 1))
        state = F.pad(state, (0, 0, 0, 1))
    q, k, v, a, b = (_side_by_side(x) for x in (q, k, v, a, b))  # type: ignore[assignment]
    inputs = (q, k, v, None if decay is None else _side_by_side(decay.exp()), a, b, state)
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs):
        out, final = _Recurrence.apply(*inputs)  # type: ignore[misc]
    else:
        out, final, _, _ = _run_forward(*inputs, keep=False)
    return out, final[..., :keys, :]


class _Recurrence(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *inputs: Tensor | None) -> tuple[Tensor, Tensor]:
        out, final, read, kept = _run_forward(*inputs, keep=True)  # type: ignore[arg-type]
        ctx.save_for_backward(*inputs[:-1], read, kept)
        return out, final

    @staticmethod
    def backward(ctx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "recurrence: the compiled form has no second derivative (create_graph=True); "
                "set the environment variable ZOO_KERNELS=torch for it"
            )
        return _run_backward(*ctx.saved_tensors, *grads)


def _run_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    w: Tensor | None,
    a: Tensor | None,
    b: Tensor | None,
    state: Tensor,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Outputs, the final state and, if they are to be kept, p (B, T, H, V) and states (B, H, n, K, V)."""
    (batch, length, heads, width), keys = v.shape, q.shape[3]
    out, final = torch.empty_like(v, memory_format=torch.contiguous_format), torch.empty_like(state)
    kept = v.new_empty(batch, heads, -(-length // EVERY) if keep else 0, keys, width)
    read = torch.empty_like(out) if keep and a is not None else _none(v)
    kernel = compiled(_forward, v.dtype, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 5)
    inputs = (q, k, v, _decays(w, v), _or_none(a, v), _or_none(b, v), state)
    spread(kernel, batch * heads, state.numel() * length, *inputs, out, final, read, kept)
    return out, final, read, kept


def _run_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    w: Tensor | None,
    a: Tensor | None,
    b: Tensor | None,
    read: Tensor,
    kept: Tensor,
    grad_out: Tensor,
    grad_final: Tensor,
) -> tuple[Tensor | None, ...]:
    (batch, length, heads, _), groups, keys = v.shape, q.shape[2], q.shape[3]
    dq, dk = (v.new_empty(batch, length, heads, keys) for _ in range(2))
    da, db = (_none(v) if a is None else torch.empty_like(dq) for _ in range(2))
    dw = v.new_empty(batch, length, heads, keys if w is not None and w.dim() == 4 else 1)
    dv, dstate = torch.empty_like(v, memory_format=torch.contiguous_format), torch.empty_like(grad_final)
    kernel = compiled(_backward, v.dtype, 4, 4, 4, 4, 4, 4, 4, 5, 4, 4, 4, 4, 4, 4, 4, 4, 4)
    inputs = (q, k, v, _decays(w, v), _or_none(a, v), _or_none(b, v), read, kept, _side_by_side(grad_out), grad_final)
    found = (dq, dk, dv, dw, da, db, dstate)
    spread(kernel, batch * heads, 3 * dstate.numel() * length, *inputs, *found)  # type: ignore[arg-type]
    if groups != heads:
        dq, dk = (x.unflatten(2, (groups, -1)).sum(3) for x in (dq, dk))
    if w is None or w.dim() == 1:
        dw = None if w is None else dw.sum((0, 1, 3))
    elif w.dim() == 3:
        dw = dw[..., 0]
    return dq, dk, dv, dw, *((None, None) if a is None else (da, db)), dstate


def _side_by_side(x: Tensor | None) -> Tensor | None:
    """x with vectors along its last axis that `row` may take to be so."""
    return x if x is None or x.stride(-1) == 1 else x.contiguous()


def _decays(w: Tensor | None, v: Tensor) -> Tensor:
    """Decay factors as (B, T, H, K or 1), without a copy."""
    w = v.new_ones(1) if w is None else w if w.dim() == 4 else w[..., None]
    return w.expand(*v.shape[:3], -1)


def _or_none(x: Tensor | None, like: Tensor) -> Tensor:
    return _none(like) if x is None else x


def _none(like: Tensor) -> Tensor:
    """What stands for an absent tensor in the loops, where everything has its type."""
    return like.new_empty(0, 0, 0, 0)


def _forward(first, last, q, k, v, w, a, b, state, out, final, read, kept):
    length, heads, width = v.shape[1:]
    keys, shared, low_rank = q.shape[3], heads // q.shape[2], a.size > 0
    S, p, same = np.empty((keys, width), v.dtype), np.empty(width, v.dtype), np.empty(keys, v.dtype)
    for unit in range(first, last):
        r, h, g = unit // heads, unit % heads, unit % heads // shared
        _copy(state[r, h], S)
        for t in range(length):
            if kept.size and t % EVERY == 0:
                _copy(S, kept[r, h, t // EVERY])
            qt, kt, vt, y = row(q, (r, t, g)), row(k, (r, t, g)), row(v, (r, t, h)), row(out, (r, t, h))
            wt = _factors(w, r, t, h, same)
            if low_rank:
                at, bt = row(a, (r, t, h)), row(b, (r, t, h))
                _recall(S, wt, bt, qt, p, y)
                _add(_dot(qt, at), p, y)
                _add(_dot(qt, kt), vt, y)
                _write(S, wt, at, p, kt, vt)
                if read.size:
                    _set(row(read, (r, t, h)), p)
            else:
                _write_and_read(S, wt, kt, vt, qt, y)
        _copy(S, final[r, h])


def _backward(
    first, last, q, k, v, w, a, b, read, kept, grad_out, grad_final, dq, dk, dv, dw, da, db, dstate
):  # fmt: skip
    length, heads, width = v.shape[1:]
    keys, shared, low_rank = q.shape[3], heads // q.shape[2], a.size > 0
    D, states, same = np.empty((keys, width), v.dtype), np.empty((EVERY, keys, width), v.dtype), np.empty(keys, v.dtype)
    sg, sp, sd, dp = np.empty(keys, v.dtype), np.empty(keys, v.dtype), np.empty(keys, v.dtype), np.empty(width, v.dtype)
    nothing = np.zeros(max(keys, width), v.dtype)
    for unit in range(first, last):
        r, h, g = unit // heads, unit % heads, unit % heads // shared
        _copy(grad_final[r, h], D)
        for begin in range((length - 1) // EVERY * EVERY, -1, -EVERY):
            tokens = min(EVERY, length - begin)
            _copy(kept[r, h, begin // EVERY], states[0])
            for place in range(tokens - 1):
                t = begin + place
                kt, vt, wt = row(k, (r, t, g)), row(v, (r, t, h)), _factors(w, r, t, h, same)
                at, p = nothing, nothing
                if low_rank:
                    at, p = row(a, (r, t, h)), row(read, (r, t, h))
                _next(states, place, wt, at, p, kt, vt)
            for place in range(tokens - 1, -1, -1):
                t, S = begin + place, states[place]
                qt, kt, vt, do = row(q, (r, t, g)), row(k, (r, t, g)), row(v, (r, t, h)), row(grad_out, (r, t, h))
                dqt, dkt, dvt, wt = (
                    row(dq, (r, t, h)),
                    row(dk, (r, t, h)),
                    row(dv, (r, t, h)),
                    _factors(w, r, t, h, same),
                )
                vdo = _dot(vt, do)
                if low_rank:
                    at, bt, p = row(a, (r, t, h)), row(b, (r, t, h)), row(read, (r, t, h))
                    dat, dbt = row(da, (r, t, h)), row(db, (r, t, h))
                    pdo = _dot(p, do)
                    _along_keys(D, kt, at, dvt, dp)
                    _add(_dot(qt, at), do, dp)
                    _along_values(D, S, wt, qt, bt, vt, p, do, dp, dkt, dat, sg, sp, sd)
                    for i in range(keys):
                        dqt[i] = wt[i] * sg[i] + at[i] * pdo + kt[i] * vdo
                        dat[i] += qt[i] * pdo
                        dbt[i] = wt[i] * sp[i]
                        sd[i] += qt[i] * sg[i] + bt[i] * sp[i]
                else:
                    _along_keys_plain(D, kt, dvt)
                    _along_values_plain(D, S, wt, qt, vt, do, dkt, sg, sd)
                    for i in range(keys):
                        dqt[i] = wt[i] * sg[i] + kt[i] * vdo
                        sd[i] += qt[i] * sg[i]
                _add(_dot(qt, kt), do, dvt)
                _add(vdo, qt, dkt)
                if dw.shape[3] == keys:
                    _set(row(dw, (r, t, h)), sd)
                else:
                    dw[r, t, h, 0] = _sum(sd)
        _copy(D, dstate[r, h])


@inner
def _factors(w, r, t, h, same):
    """The decay factors of a token: a vector of w, or its one factor for all keys."""
    if w.shape[3] == same.size:
        return row(w, (r, t, h))
    same[:] = w[r, t, h, 0]
    return same


@inner
def _copy(x, into):
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            into[i, j] = x[i, j]


@inner
def _set(x, y):
    for i in range(x.size):
        x[i] = y[i]


@inner
def _add(c, x, y):
    """y <- y + c x."""
    for i in range(x.size):
        y[i] += c * x[i]


@inner
def _sum(x):
    total = x.dtype.type(0)
    for i in range(x.size):
        total += x[i]
    return total


@inner
def _dot(x, y):
    total = x.dtype.type(0)
    for i in range(x.size):
        total += x[i] * y[i]
    return total


@inner
def _recall(S, w, b, q, p, y):
    """p = (w b)' S and y = (w q)' S."""
    p[:] = 0
    y[:] = 0
    for i in range(0, S.shape[0], 2):
        S0, S1 = row(S, (i,)), row(S, (i + 1,))
        b0, b1, q0, q1 = w[i] * b[i], w[i + 1] * b[i + 1], w[i] * q[i], w[i + 1] * q[i + 1]
        for j in range(S.shape[1]):
            p[j] += b0 * S0[j] + b1 * S1[j]
            y[j] += q0 * S0[j] + q1 * S1[j]


@inner
def _write(S, w, a, p, k, v):
    """S <- w S + a p' + k v'."""
    for i in range(S.shape[0]):
        Si, wi, ai, ki = row(S, (i,)), w[i], a[i], k[i]
        for j in range(S.shape[1]):
            Si[j] = wi * Si[j] + ai * p[j] + ki * v[j]


@inner
def _write_and_read(S, w, k, v, q, y):
    """S <- w S + k v', then y = q' S."""
    y[:] = 0
    for i in range(0, S.shape[0], 2):
        S0, S1 = row(S, (i,)), row(S, (i + 1,))
        w0, w1, k0, k1, q0, q1 = w[i], w[i + 1], k[i], k[i + 1], q[i], q[i + 1]
        for j in range(S.shape[1]):
            s0 = w0 * S0[j] + k0 * v[j]
            s1 = w1 * S1[j] + k1 * v[j]
            S0[j] = s0
            S1[j] = s1
            y[j] += q0 * s0 + q1 * s1


@inner
def _next(states, place, w, a, p, k, v):
    """The next state: w S + a p' + k v'."""
    for i in range(states.shape[1]):
        Si, new, wi, ai, ki = row(states, (place, i)), row(states, (place + 1, i)), w[i], a[i], k[i]
        for j in range(states.shape[2]):
            new[j] = wi * Si[j] + ai * p[j] + ki * v[j]


@inner
def _along_keys(D, k, a, dv, dp):
    """dv = D' k and dp = D' a."""
    dv[:] = 0
    dp[:] = 0
    for i in range(0, D.shape[0], 2):
        D0, D1, k0, k1, a0, a1 = row(D, (i,)), row(D, (i + 1,)), k[i], k[i + 1], a[i], a[i + 1]
        for j in range(D.shape[1]):
            dv[j] += k0 * D0[j] + k1 * D1[j]
            dp[j] += a0 * D0[j] + a1 * D1[j]


@inner
def _along_keys_plain(D, k, dv):
    """dv = D' k."""
    dv[:] = 0
    for i in range(0, D.shape[0], 2):
        D0, D1, k0, k1 = row(D, (i,)), row(D, (i + 1,)), k[i], k[i + 1]
        for j in range(D.shape[1]):
            dv[j] += k0 * D0[j] + k1 * D1[j]


@inner
def _along_values(D, S, w, q, b, v, p, g, dp, dk, da, sg, sp, sd):
    """dk = D v, da = D p, sg = S g, sp = S dp, sd = the sums of S D along V; then D <- w (D + q g' + b dp')."""
    for i in range(S.shape[0]):
        Di, Si, wi, qi, bi = row(D, (i,)), row(S, (i,)), w[i], w[i] * q[i], w[i] * b[i]
        zero = v.dtype.type(0)
        dv_, dp_, sg_, sp_, sd_ = zero, zero, zero, zero, zero
        for j in range(S.shape[1]):
            d, s = Di[j], Si[j]
            dv_ += d * v[j]
            dp_ += d * p[j]
            sg_ += s * g[j]
            sp_ += s * dp[j]
            sd_ += s * d
            Di[j] = wi * d + qi * g[j] + bi * dp[j]
        dk[i], da[i], sg[i], sp[i], sd[i] = dv_, dp_, sg_, sp_, sd_


@inner
def _along_values_plain(D, S, w, q, v, g, dk, sg, sd):
    """dk = D v, sg = S g, sd = the sums of S D along V; then D <- w (D + q g')."""
    for i in range(S.shape[0]):
        Di, Si, wi, qi = row(D, (i,)), row(S, (i,)), w[i], w[i] * q[i]
        zero = v.dtype.type(0)
        dv_, sg_, sd_ = zero, zero, zero
        for j in range(S.shape[1]):
            d, s = Di[j], Si[j]
            dv_ += d * v[j]
            sg_ += s * g[j]
            sd_ += s * d
            Di[j] = wi * d + qi * g[j]
        dk[i], sg[i], sd[i] = dv_, sg_, sd_
