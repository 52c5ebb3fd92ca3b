"""The one recurrence of linear attention, retention, lightning, GLA, Mamba-2, the delta rules, KDA and RWKV-7.

    P_t = diag(exp(g_t)) S_{t-1}                       S (K, V), one matrix per row and head
    S_t = P_t + a_t (b_t' P_t) + k_t v_t'
    o_t = S_t' q_t

    linear attention     no g, no a            GLA                  g per key channel, no a
    retention, lightning g a constant          delta rule           a = -beta k, b = k, and beta k in the place of k
    Mamba-2              g per token and head  gated delta, KDA     the same with g per head, or per key channel
                                               RWKV-7               its own g, a and b

Four forms of it, equal in outputs, final states and gradients: `naive_recurrence` is the formula as a loop over time,
`recurrence_step` one turn of that loop, `chunked_recurrence` is made of matrix products (the form for any device, for
torch.compile and for export), and zoo/ops/kernels.py names the compiled ones. `recurrence` picks.

The chunked form. With u_t = P_t' b_t every write is a key times a value, a_t u_t' + k_t v_t', so inside a chunk that
starts from S the u solve one triangular system, (1 - M_ba) u = b~ S + M_bk v (Yang et al. 2024, arXiv:2406.06484),
where M_xy[i, j] = x_i' exp(g_{j+1} + ... + g_i) y_j. Log decays are only ever summed, never subtracted, and every
exponential is at most 1: decays near 0, and exactly 0, need no guard.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["chunked_recurrence", "naive_recurrence", "recurrence", "recurrence_step"]

SUB_CHUNK = 8  # decays per channel: tokens whose pairs are formed channel by channel


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
    out_dtype = v.dtype
    with torch.autocast(q.device.type, enabled=False):
        q, k, v, decay, a, b, state = (x if x is None else at_least_fp32(x) for x in (q, k, v, decay, a, b, state))
        q, k = shared_heads(q, v.shape[2]), shared_heads(k, v.shape[2])
        k, decay, a = skip_and_start(k, v, decay, a, mask, starts)
        if state is None:
            state = v.new_zeros(v.shape[0], v.shape[2], k.shape[3], v.shape[3])
        if q.shape[1] == 1:
            turn = [None if x is None else x[:, 0] if x.dim() > 1 else x for x in (q, k, v, decay, a, b)]
            out, state = recurrence_step(*turn, state)  # type: ignore[arg-type]
            return out[:, None].to(out_dtype), state
        out, state = chunked_recurrence(q, k, v, decay, a, b, state, chunk)
        return out.to(out_dtype), state


def recurrence_step(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor | None, a: Tensor | None, b: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor]:
    """One token: q, k, a, b (B, H, K), v (B, H, V), decay (H,), (B, H) or (B, H, K) -> (B, H, V), state (B, H, K, V)."""
    if decay is not None:
        decay = decay[..., None, None] if decay.dim() < 3 else decay[..., None]
        state = decay.exp() * state  # (B, H, K, V)
    new = k[..., None] * v[..., None, :]
    if a is not None and b is not None:
        new = new + a[..., None] * (b[..., None, :] @ state)
    state = state + new
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

    q, k, a, b (B, T, H, K), v (B, T, H, V), decay (H,), (B, T, H) or (B, T, H, K), state (B, H, K, V).
    """
    length = v.shape[1]
    c = min(chunk, length)
    g = None if decay is None else _chunked_decay(decay, length, c)  # (B, n, H, c, 1 or K)
    q, k, v = (_chunks(x, c) for x in (q, k, v))  # (B, n, H, c, K or V)
    pairs = _Pairs(g, c, q)
    to_here, to_end, whole = pairs.to_here, pairs.to_end, pairs.whole
    written = _decayed(k, to_end).mT @ v  # (B, n, H, K, V)
    if a is None or b is None:
        seen, state = _diagonal_scan(whole, written, state)  # (B, n, H, K, V) states that the chunks start from
        out = _decayed(q, to_here) @ seen + pairs(q, k) @ v  # (B, n, H, c, V)
        return _tokens(out, length), state
    a, b = _chunks(a, c), _chunks(b, c)
    seen_by_b, strict = _decayed(b, to_here), pairs(b, k).tril(-1)
    right = torch.cat([seen_by_b, strict @ v], dim=-1)  # (B, n, H, c, K + V)
    system = -pairs(b, a).tril(-1)  # its diagonal of ones is not stored
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    of_state, of_values = solved.split([k.shape[-1], v.shape[-1]], dim=-1)  # u = of_state S + of_values
    late = _decayed(a, to_end).mT  # (B, n, H, K, c)
    eye = torch.eye(k.shape[-1], dtype=v.dtype, device=v.device)
    turn = late @ of_state + (eye if whole is None else eye * whole)  # (B, n, H, K, K)
    seen, state = _matrix_scan(turn, written + late @ of_values, state)
    u = of_state @ seen + of_values  # (B, n, H, c, V)
    out = _decayed(q, to_here) @ seen + pairs(q, a) @ u + pairs(q, k) @ v
    return _tokens(out, length), state


class _Pairs:
    """Products x_i' exp(g_{j+1} + ... + g_i) y_j for j <= i inside each chunk, and the decays from and to its ends."""

    def __init__(self, g: Tensor | None, c: int, like: Tensor) -> None:
        self.g, self.c = g, c
        self.lower = torch.ones(c, c, dtype=torch.bool, device=like.device).tril()
        self.to_here = self.to_end = self.whole = self.decays = None
        if g is None:
            return
        sums = g.cumsum(-2)
        self.to_here, self.whole = sums.exp(), sums[..., -1:, :].exp()  # (B, n, H, c, 1 or K), (B, n, H, 1, 1 or K)
        self.to_end = _sums_after(g).exp()
        if g.shape[-1] == 1:
            self.decays = _segment_sums(g).squeeze(-1).exp()  # (B, n, H, c, c)

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """x, y (B, n, H, c, K) -> (B, n, H, c, c), zero above the diagonal."""
        if self.g is None:
            return (x @ y.mT).tril()
        if self.decays is not None:
            return (x @ y.mT) * self.decays
        return self._by_channel(x, y, self.g)

    def _by_channel(self, x: Tensor, y: Tensor, g: Tensor) -> Tensor:
        """Blocks of a few tokens: inside one every pair and channel has its decay, between them there are products of
        what is decayed to a block's start and from another's end."""
        s = SUB_CHUNK
        short = -self.c % s
        x, y, g = (F.pad(z, (0, 0, 0, short)).unflatten(-2, (-1, s)) for z in (x, y, g))  # (B, n, H, m, s, K)
        inside = torch.einsum("...ik,...jk,...ijk->...ij", x, y, _segment_sums(g).exp())  # (B, n, H, m, s, s)
        from_start, to_end, whole = g.cumsum(-2).exp(), _sums_after(g).exp(), g.sum(-2, keepdim=True).exp()
        rows, earlier = [], None
        queries, keys = (x * from_start).unbind(-3), (y * to_end).unbind(-3)  # m of (B, n, H, s, K)
        for block, (query, key, own, over) in enumerate(
            zip(queries, keys, inside.unbind(-3), whole.unbind(-3), strict=True)
        ):
            row = own if earlier is None else torch.cat([query @ earlier.mT, own], dim=-1)
            rows.append(F.pad(row, (0, (len(queries) - block - 1) * s)))
            earlier = key if earlier is None else torch.cat([earlier * over, key], dim=-2)
        return torch.cat(rows, dim=-2)[..., : self.c, : self.c]


def _sums_after(g: Tensor) -> Tensor:
    """(..., c, D) -> sums of what stands after each token."""
    return F.pad(g[..., 1:, :], (0, 0, 0, 1)).flip(-2).cumsum(-2).flip(-2)


def _segment_sums(g: Tensor) -> Tensor:
    """(..., c, D) -> (..., c, c, D): g_{j+1} + ... + g_i at [i, j], -inf where j > i."""
    c = g.shape[-2]
    later = g.unsqueeze(-2).expand(*g.shape[:-1], c, g.shape[-1]).masked_fill(~_lower(c, -1, g), 0.0)  # g_i at [i, j < i]
    return later.cumsum(-3).masked_fill(~_lower(c, 0, g), -torch.inf)


def _lower(c: int, diagonal: int, like: Tensor) -> Tensor:
    """(c, c, 1) bool, True at and below the diagonal."""
    return torch.ones(c, c, dtype=torch.bool, device=like.device).tril(diagonal)[..., None]


def _decayed(x: Tensor, decay: Tensor | None) -> Tensor:
    return x if decay is None else x * decay


def _diagonal_scan(whole: Tensor | None, written: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """States (B, n, H, K, V) before each chunk and the last one, of S <- whole S + written."""
    before = []
    chunks = written.unbind(1)
    factors = [None] * len(chunks) if whole is None else whole.mT.expand(-1, len(chunks), -1, -1, -1).unbind(1)
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
    """(B, T, G, K) -> (B, T, H, K): neighbouring heads share one."""
    return x if x.shape[2] == heads else x.repeat_interleave(heads // x.shape[2], dim=2)


def skip_and_start(
    k: Tensor, v: Tensor, decay: Tensor | None, a: Tensor | None, mask: Tensor | None, starts: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """k, decay and a with no-ops at masked tokens (they write nothing and forget nothing) and, at the first token of a
    document, a log decay of -inf."""
    if decay is not None and decay.dim() == 1 and (mask is not None or starts is not None):
        decay = decay.expand(*v.shape[:2], -1)  # (B, T, H)
    if starts is not None:
        decay = v.new_zeros(v.shape[:3]) if decay is None else decay
        decay = decay.masked_fill(_heads(starts, decay), -torch.inf)
    if mask is not None:
        skipped = ~mask
        k = k.masked_fill(_heads(skipped, k), 0.0)
        decay = None if decay is None else decay.masked_fill(_heads(skipped, decay), 0.0)
        a = None if a is None else a.masked_fill(_heads(skipped, a), 0.0)
    return k, decay, a


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
