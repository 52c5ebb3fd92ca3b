"""The one recurrence of linear attention, retention, lightning, GLA, Mamba-2, the delta rules, KDA and RWKV-7.

    P_t = diag(exp(g_t)) S_{t-1}                       S (K, V), one matrix per row and head
    S_t = P_t + a_t (b_t' P_t) + k_t v_t'
    o_t = S_t' q_t

    linear attention     no g, no a            GLA                  g per key channel, no a
    retention, lightning g a constant          delta rule           a = -beta k, b = k, and beta k in the place of k
    Mamba-2              g per token and head  gated delta, KDA     the same with g per head, or per key channel
                                               RWKV-7               its own g, a and b

Forms of it, equal in outputs, final states and gradients: `naive_recurrence` is the formula as a loop over time,
`recurrence_step` one turn of that loop, `chunked_recurrence` is made of matrix products (the form for any device, for
torch.compile and for export), compiled/recurrence.py has loops for a CPU and fla_recurrence.py kernels for CUDA.
`recurrence` picks, by zoo/ops/kernels.py.

The chunked form. With u_t = P_t' b_t every write is a key times a value, a_t u_t' + k_t v_t', so inside a chunk that
starts from S the u solve one triangular system, (1 - M_ba) u = b~ S + M_bk v (Yang et al. 2024, arXiv:2406.06484),
where M_xy[i, j] = x_i' exp(g_{j+1} + ... + g_i) y_j. Log decays are only ever summed, never subtracted, and every
exponential is at most 1: decays near 0, and exactly 0, need no guard.
"""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from zoo.ops.kernels import chosen
from zoo.ops.precision import full_precision

__all__ = ["chunked_recurrence", "naive_recurrence", "recurrence", "recurrence_step"]


def recurrence(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor | None = None,
    a: Tensor | None = None,
    b: Tensor | None = None,
    *,
    state: Tensor | None = None,
    mask: Tensor | None = None,
    starts: Tensor | None = None,
    chunk: int = 64,
) -> tuple[Tensor, Tensor]:
    """Outputs (B, T, H, V) in v's dtype and the final state (B, H, K, V) of the recurrence above.

    q, k, a, b: (B, T, H, K), v: (B, T, H, V). q and k may have fewer heads G, a divisor of H: neighbouring heads then
    share one (Mamba-2). decay: log decays g <= 0, (H,), (B, T, H) or (B, T, H, K); None: no decay. state: (B, H, K, V)
    or None for zeros. mask: (B, T) bool, False = the token leaves the state as it is, to the bit. starts: (B, T) bool,
    True = the token begins a document and sees an empty state. Half-precision inputs are computed in fp32, and the
    state is fp32 or better. Raises ValueError for shapes that do not fit, or one of a and b without the other.
    """
    check_shapes(q, k, v, decay, a, b, state, mask, starts)
    heads, length, out_dtype = v.shape[2], v.shape[1], v.dtype
    form = chosen("recurrence", v.device, v.dtype) if length > 1 else "torch"
    if form == "numba" and q.shape[2] < heads and a is None and (decay is None or decay.dim() < 4):
        form = "torch"  # wide products beat the loops: 0.7 of their time (benchmarks.speed mixers case=mamba2-2048)
    starts = starts if starts is None or mask is None else starts & mask
    given = [x for x in (q, k, v, decay, a, b, state) if x is not None]
    dtype = reduce(torch.promote_types, [x.dtype for x in given], torch.float32)
    with full_precision(v):
        if state is None:
            state = v.new_zeros(v.shape[0], heads, k.shape[3], v.shape[3], dtype=dtype)
        k, decay, a = without_masked(k, decay, a, mask, v)
        if form == "fla":
            from zoo.ops.fla_recurrence import fla_recurrence

            q, k = shared_heads(q, heads), shared_heads(k, heads)
            return fla_recurrence(q, k, v, decay, a, b, state, starts)
        decay = with_starts(decay, starts, v)
        q, k, v, state = (x.to(dtype) for x in (q, k, v, state))
        decay, a, b = (x if x is None else x.to(dtype) for x in (decay, a, b))
        if form == "numba":
            from zoo.ops.compiled.recurrence import compiled_recurrence

            out, final = compiled_recurrence(q, k, v, decay, a, b, state)
            return out.to(out_dtype), final
        if length == 1:
            q, k = shared_heads(q, heads), shared_heads(k, heads)
            turn = [x if x is None or x.dim() == 1 else x[:, 0] for x in (q, k, v, decay, a, b)]
            out, state = recurrence_step(*turn, state)  # type: ignore[arg-type]
            return out[:, None].to(out_dtype), state  # type: ignore[return-value]
        out, state = chunked_recurrence(q, k, v, decay, a, b, state, chunk)
        return out.to(out_dtype), state


def recurrence_step(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor | None, a: Tensor | None, b: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor]:
    """One token: q, k, a, b (B, H, K), v (B, H, V), decay (H,), (B, H) or (B, H, K) -> (B, H, V), (B, H, K, V)."""
    if decay is not None:
        decay = decay[..., None, None] if decay.dim() < 3 else decay[..., None]
        state = decay.exp() * state  # (B, H, K, V)
    before = state
    state = torch.addcmul(before, k[..., None], v[..., None, :])
    if a is not None and b is not None:
        state = torch.addcmul(state, a[..., None], b[..., None, :] @ before)
    return (q[..., None, :] @ state)[..., 0, :], state


def naive_recurrence(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor | None = None,
    a: Tensor | None = None,
    b: Tensor | None = None,
    *,
    state: Tensor | None = None,
    mask: Tensor | None = None,
    starts: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`recurrence` as a loop over rows, heads and tokens, in the notation of the formula."""
    (batch, length, heads, width), shared = v.shape, v.shape[2] // q.shape[2]
    outputs, finals = [], []
    for r in range(batch):
        for h in range(heads):
            S = state[r, h] if state is not None else v.new_zeros(q.shape[3], width)
            for t in range(length):
                before = S
                if starts is not None and starts[r, t]:
                    S = torch.zeros_like(S)
                g = None if decay is None else decay[h] if decay.dim() == 1 else decay[r, t, h]
                P = S if g is None else g.exp() * S if g.dim() == 0 else g.exp()[:, None] * S
                S = P + torch.outer(k[r, t, h // shared], v[r, t, h])
                if a is not None and b is not None:
                    S = S + torch.outer(a[r, t, h], b[r, t, h] @ P)
                if mask is not None and not mask[r, t]:
                    S = before
                outputs.append(q[r, t, h // shared] @ S)
            finals.append(S)
    return (
        torch.stack(outputs).view(batch, heads, length, width).transpose(1, 2),
        torch.stack(finals).view(batch, heads, -1, width),
    )


def chunked_recurrence(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor | None,
    a: Tensor | None,
    b: Tensor | None,
    state: Tensor,
    chunk: int,
) -> tuple[Tensor, Tensor]:
    """The recurrence in chunks of `chunk` tokens, made of matrix products; a Python loop runs over chunks only.

    q, k (B, T, G, K), a, b (B, T, H, K), v (B, T, H, V), decay (H,), (B, T, H) or (B, T, H, K), state (B, H, K, V).
    """
    length = v.shape[1]
    c = min(chunk, length)
    if a is None and (decay is None or decay.dim() < 4):
        return _chunked_by_head(q, k, v, decay, state, c)
    q, k = shared_heads(q, v.shape[2]), shared_heads(k, v.shape[2])
    c = c if decay is None or decay.dim() < 4 else 1 << (c - 1).bit_length()  # see _pairs_by_channel
    g = None if decay is None else _chunked_decay(decay, length, c)  # (B, n, H, c, 1 or K)
    to_here, to_end, whole = (None, None, None) if g is None else _decays(g)
    q, k, v = (_chunks(x, c) for x in (q, k, v))  # (B, n, H, c, K or V)
    written = _decayed(k, to_end).mT @ v  # (B, n, H, K, V)
    if a is None or b is None:
        ((qk,),) = _pairs([q], [k], g)  # (B, n, H, c, c)
        seen, state = _diagonal_scan(
            None if whole is None else whole.mT, written, state
        )  # (B, n, H, K, V) before chunks
        out = _decayed(q, to_here) @ seen + qk @ v  # (B, n, H, c, V)
        return _tokens(out, length), state
    a, b = _chunks(a, c), _chunks(b, c)
    (qk, qa), (bk, ba) = _pairs([q, b], [k, a], g)
    right = torch.cat([_decayed(b, to_here), bk.tril(-1) @ v], dim=-1)  # (B, n, H, c, K + V)
    system = -ba.tril(-1)  # its diagonal of ones is not stored
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    of_state, of_values = solved.split([k.shape[-1], v.shape[-1]], dim=-1)  # u = of_state S + of_values
    late = _decayed(a, to_end).mT  # (B, n, H, K, c)
    eye = torch.eye(k.shape[-1], dtype=v.dtype, device=v.device)
    turn = late @ of_state + (eye if whole is None else eye * whole)  # (B, n, H, K, K)
    seen, state = _matrix_scan(turn, written + late @ of_values, state)
    u = of_state @ seen + of_values  # (B, n, H, c, V)
    out = _decayed(q, to_here) @ seen + qa @ u + qk @ v
    return _tokens(out, length), state


def _chunked_by_head(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor | None, state: Tensor, c: int
) -> tuple[Tensor, Tensor]:
    """The same where a head has one decay: values are decayed instead of keys, outputs instead of queries, so that the
    S heads that share q and k are one matrix product of width S V (Dao & Gu 2024, arXiv:2405.21060, section 6).

    q, k (B, T, G, K), v (B, T, H, V), decay (H,) or (B, T, H), state (B, H, K, V).
    """
    length, width, groups = v.shape[1], v.shape[3], q.shape[2]
    q, k = _chunks(q, c), _chunks(k, c)  # (B, n, G, c, K)
    v = _chunks(v.unflatten(2, (groups, -1)).flatten(3), c).unflatten(-1, (-1, width))  # (B, n, G, c, S, V)
    qk = (q @ k.mT)[:, :, :, None]  # (B, n, G, 1, c, c)
    late, whole, to_here = v, None, None
    if decay is None:
        qk = qk.tril()
    else:
        g = _chunked_decay(decay, length, c).unflatten(2, (groups, -1))  # (B, n, G, S, c, 1)
        qk = qk * _between(g)  # (B, n, G, S, c, c)
        to_here, to_end, whole = (x.transpose(3, 4) for x in _decays(g))  # (B, n, G, c, S, 1); whole: one for all c
        late = v * to_end
        whole = whole.expand(*whole.shape[:-1], width).flatten(-2)  # (B, n, G, 1, S V)
    written = k.mT @ late.flatten(-2)  # (B, n, G, K, S V)
    wide = state.unflatten(1, (groups, -1)).transpose(2, 3).flatten(3)  # (B, G, K, S V)
    seen, wide = _diagonal_scan(whole, written, wide)  # (B, n, G, K, S V)
    out = _decayed((q @ seen).unflatten(-1, (-1, width)), to_here)  # (B, n, G, c, S, V)
    out = out + (qk @ v.transpose(3, 4)).transpose(3, 4)
    final = wide.unflatten(-1, (-1, width)).transpose(2, 3).flatten(1, 2)  # (B, H, K, V)
    return _tokens(out.flatten(-2), length).unflatten(-1, (-1, width)).flatten(2, 3), final


def _decays(g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of log decays (..., c, D): the decays from before the first token to each, from each to the last, and of all."""
    sums = g.cumsum(-2)
    return _exp(sums), _exp(_sums_after(g)), _exp(sums[..., -1:, :])


def _exp(sums: Tensor) -> Tensor:
    """exp(sums) of sums of log decays, and 0 where that is below 5e-35 (fp64: 1e-299)."""
    return _Exp.apply(sums)  # type: ignore[return-value]


class _Exp(torch.autograd.Function):
    """The vectorised exponential of a CPU takes 8 to 17 times as long where it underflows, and 3 times at -inf."""

    generate_vmap_rule = True

    @staticmethod
    def forward(sums: Tensor) -> Tensor:
        least = -690.0 if sums.dtype == torch.float64 else -80.0
        return torch.threshold_(sums.clamp(min=least).exp_(), math.exp(least + 1), 0.0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return grad * ctx.saved_tensors[0]


def _sums_after(g: Tensor) -> Tensor:
    """(..., c, D) -> sums of what stands after each token."""
    return F.pad(g[..., 1:, :], (0, 0, 0, 1)).flip(-2).cumsum(-2).flip(-2)


def _pairs(xs: list[Tensor], ys: list[Tensor], g: Tensor | None) -> list[list[Tensor]]:
    """Of all x, y (..., c, K): x_i' exp(g_{j+1} + ... + g_i) y_j for j <= i, (..., c, c), zero above the diagonal."""
    if g is None:
        return [[(x @ y.mT).tril() for y in ys] for x in xs]
    if g.shape[-1] == 1:
        decays = _between(g)
        return [[(x @ y.mT) * decays for y in ys] for x in xs]
    return _pairs_by_channel(xs, ys, g)


def _between(g: Tensor) -> Tensor:
    """(..., c, 1) -> (..., c, c): exp(g_{j+1} + ... + g_i) at [i, j], zero above the diagonal."""
    return _Between.apply(g)  # type: ignore[return-value]


class _Between(torch.autograd.Function):
    """With a backward of two sums and one running sum instead of one for each of these operations."""

    generate_vmap_rule = True

    @staticmethod
    def forward(g: Tensor) -> Tensor:
        c = g.shape[-2]
        later = torch.ones(c, c, dtype=torch.bool, device=g.device).triu(1)  # i > j at [j, i]
        sums = g.mT.expand(*g.shape[:-2], c, c).masked_fill(~later, 0.0).cumsum(-1)
        return _Exp.forward(sums).masked_fill_(later.mT, 0.0).mT

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        """g_t stands in all pairs j < t <= i: those of rows from t on, without those of columns from t on."""
        of_sums = grad * ctx.saved_tensors[0]  # (..., c, c)
        return _sums_from((of_sums.sum(-1) - of_sums.sum(-2))[..., None])


def _sums_from(x: Tensor) -> Tensor:
    """(..., c, 1) -> sums of each token and what stands after it."""
    return x.flip(-2).cumsum(-2).flip(-2)


def _pairs_by_channel(xs: list[Tensor], ys: list[Tensor], g: Tensor) -> list[list[Tensor]]:
    """Where every channel has its decay: blocks of 1, 2, 4 ... tokens are joined in twos. Between the two, x is decayed
    from where the later block begins and y to there, so that their pairs are matrix products."""
    blocks = [[(x * y).sum(-1)[..., None, None] for y in ys] for x in xs]  # (..., c, 1, 1)
    size = 1
    while size < g.shape[-2]:
        early, late = g.unflatten(-2, (-1, 2, size)).unbind(-3)  # (..., c / 2 size, size, K)
        to_here, to_end = _exp(late.cumsum(-2)), _exp(_sums_after(early))
        later = [x.unflatten(-2, (-1, 2, size)).unbind(-3)[1] * to_here for x in xs]
        earlier = [y.unflatten(-2, (-1, 2, size)).unbind(-3)[0] * to_end for y in ys]
        blocks = [
            [_joined(block, x @ y.mT) for block, y in zip(row, earlier, strict=True)]
            for row, x in zip(blocks, later, strict=True)
        ]
        size *= 2
    return [[block.squeeze(-3) for block in row] for row in blocks]


def _joined(blocks: Tensor, between: Tensor) -> Tensor:
    """(..., 2 n, s, s) on the diagonal and (..., n, s, s) beneath it -> (..., n, 2 s, 2 s)."""
    first, second = blocks.unflatten(-3, (-1, 2)).unbind(-3)
    return torch.cat([F.pad(first, (0, first.shape[-1])), torch.cat([between, second], dim=-1)], dim=-2)


def _decayed(x: Tensor, decay: Tensor | None) -> Tensor:
    return x if decay is None else x * decay


def _diagonal_scan(whole: Tensor | None, written: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """States (B, n, H, K, V) before each chunk and the last one, of S <- whole S + written."""
    before = []
    chunks = written.unbind(1)
    factors = [None] * len(chunks) if whole is None else whole.expand(-1, len(chunks), -1, -1, -1).unbind(1)
    for factor, new in zip(factors, chunks, strict=True):
        before.append(state)
        state = state + new if factor is None else torch.addcmul(new, factor, state)
    return torch.stack(before, dim=1), state


def _matrix_scan(turn: Tensor, written: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """The same for S <- turn S + written, turn (B, n, H, K, K)."""
    before = []
    for matrix, new in zip(turn.unbind(1), written.unbind(1), strict=True):
        before.append(state)
        state = new + matrix @ state
    return torch.stack(before, dim=1), state


def _chunks(x: Tensor, c: int) -> Tensor:
    """(B, T, H, K) -> (B, n, H, c, K), with zeros after the last token: they write nothing."""
    return F.pad(x, (0, 0, 0, 0, 0, -x.shape[1] % c)).unflatten(1, (-1, c)).transpose(2, 3)


def _chunked_decay(decay: Tensor, length: int, c: int) -> Tensor:
    """(H,), (B, T, H) or (B, T, H, K) -> (B, n, H, c, 1 or K), where a constant has B = 1, and n = 1 if it can."""
    if decay.dim() == 1 and length % c == 0:
        return decay[:, None, None].expand(1, 1, -1, c, 1)
    if decay.dim() == 1:  # what stands after the last token forgets nothing
        decay = decay.expand(1, length, -1)
    return _chunks(decay if decay.dim() == 4 else decay[..., None], c)


def _tokens(x: Tensor, length: int) -> Tensor:
    """(B, n, H, c, V) -> (B, T, H, V)."""
    return x.transpose(2, 3).flatten(1, 2)[:, :length]


def at_least_fp32(x: Tensor) -> Tensor:
    """Half precision becomes fp32; fp32 and fp64 stay."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def shared_heads(x: Tensor, heads: int) -> Tensor:
    """(..., G, K) -> (..., H, K): neighbouring heads share one."""
    return x if x.shape[-2] == heads else x.repeat_interleave(heads // x.shape[-2], dim=-2)


def without_masked(
    k: Tensor, decay: Tensor | None, a: Tensor | None, mask: Tensor | None, v: Tensor
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """k, decay and a where masked tokens write nothing and forget nothing."""
    if mask is None:
        return k, decay, a
    decay = decay.expand(v.shape[:3]) if decay is not None and decay.dim() == 1 else decay  # (B, T, H)
    k, decay, a = (x if x is None else x.masked_fill(_heads(~mask, x), 0.0) for x in (k, decay, a))  # type: ignore
    return k, decay, a  # type: ignore[return-value]


def with_starts(decay: Tensor | None, starts: Tensor | None, v: Tensor) -> Tensor | None:
    """A log decay of -inf at the first token of a document."""
    if starts is None:
        return decay
    decay = v.new_zeros(v.shape[:3]) if decay is None else decay
    decay = decay.expand(v.shape[:3]) if decay.dim() == 1 else decay  # (B, T, H)
    return decay.masked_fill(_heads(starts, decay), -torch.inf)


def _heads(flags: Tensor, like: Tensor) -> Tensor:
    """(B, T) -> (B, T, 1) or (B, T, 1, 1)."""
    return flags.view(*flags.shape, *[1] * (like.dim() - 2))


def check_shapes(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor | None,
    a: Tensor | None,
    b: Tensor | None,
    state: Tensor | None,
    mask: Tensor | None,
    starts: Tensor | None,
) -> None:
    """Raises ValueError, in one line, for shapes that `recurrence` does not know."""
    if (a is None) != (b is None):
        raise ValueError("recurrence: a and b belong together, got only one of them")
    if v.dim() != 4 or v.shape[1] == 0 or q.dim() != 4 or q.shape[2] < 1 or v.shape[2] % q.shape[2]:
        raise ValueError(
            f"recurrence: q should be (B, T, G, K) and v (B, T, H, V) with T >= 1 and H a multiple of G, "
            f"got {tuple(q.shape)} and {tuple(v.shape)}"
        )
    (batch, length, heads, width), keys = v.shape, q.shape[3]
    per_head = (batch, length, heads)
    wanted = {
        "q": (q, [(batch, length, q.shape[2], keys)]),
        "k": (k, [(batch, length, q.shape[2], keys)]),
        "decay": (decay, [(heads,), per_head, (*per_head, keys)]),
        "a": (a, [(*per_head, keys)]),
        "b": (b, [(*per_head, keys)]),
        "state": (state, [(batch, heads, keys, width)]),
        "mask": (mask, [(batch, length)]),
        "starts": (starts, [(batch, length)]),
    }
    for name, (value, shapes) in wanted.items():
        if value is not None and tuple(value.shape) not in shapes:
            told = " or ".join(str(shape) for shape in shapes)
            raise ValueError(f"recurrence: {name} should be {told}, got {tuple(value.shape)}")
