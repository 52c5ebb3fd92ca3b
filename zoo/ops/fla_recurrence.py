"""The recurrence of zoo/ops/recurrence.py by the Triton kernels of flash-linear-attention, for half precision on CUDA.

    no a and b, no decay or one per head     fla.ops.simple_gla.chunk_simple_gla
    no a and b, decay per key channel        fla.ops.gla.chunk_gla
    a and b                                  fla.ops.generalized_delta_rule.chunk_dplr_delta_rule

The library's rule reads the state before its decay, diag(w) S + b~ (a~' S) + k v': so a~ = w b and b~ = a. Documents
become its sequences of different lengths, in one long row. Its state is fp32, its products are in the dtype of v.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["fla_recurrence"]

LOWEST = -100.0
"""Log decays below it are raised to it: exp(-100) is 0 in half precision, and sums of it stay exact enough."""


def fla_recurrence(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor | None,
    a: Tensor | None,
    b: Tensor | None,
    state: Tensor,
    starts: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """q, k, a, b (B, T, H, K), v (B, T, H, V), decay (H,), (B, T, H) or (B, T, H, K), state (B, H, K, V),
    starts (B, T) -> (B, T, H, V) in v's dtype, (B, H, K, V) in fp32."""
    batch = v.shape[0]
    g = None if decay is None else decay.float().clamp(min=LOWEST)
    g = g.expand(v.shape[:3]) if g is not None and g.dim() == 1 else g  # (B, T, H) or (B, T, H, K)
    if a is not None and b is not None:
        g = v.new_zeros(1, dtype=torch.float32) if g is None else g[..., None] if g.dim() == 3 else g
        g = g.expand(k.shape)  # (B, T, H, K)
        a, b = g.exp() * b, a
    rows = [None if x is None else x.to(v.dtype) for x in (q, k, v, a, b)] + [g]
    if starts is None:
        out, final = _kernel(*rows, state.float(), None)  # type: ignore[call-arg]
        return out, final
    rows = [None if x is None else x.flatten(0, 1)[None] for x in rows]  # (1, B T, H, K)
    begins = starts.clone()
    begins[:, 0] = True
    places = begins.flatten().nonzero()[:, 0]  # (N,) first tokens of all documents
    ends = F.pad(places, (0, 1), value=begins.numel())
    of_rows = begins.sum(1).cumsum(0)  # (B,) documents up to each row's end
    first, last = F.pad(of_rows[:-1], (1, 0)), of_rows - 1
    kept = state.float().masked_fill(starts[:, 0, None, None, None], 0.0)
    states = kept.new_zeros(len(places), *kept.shape[1:]).index_copy(0, first, kept)  # (N, H, K, V)
    out, finals = _kernel(*rows, states, ends)  # type: ignore[call-arg]
    return out.unflatten(1, (batch, -1))[0], finals.index_select(0, last)


def _kernel(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor | None,
    b: Tensor | None,
    g: Tensor | None,
    state: Tensor,
    ends: Tensor | None,
) -> tuple[Tensor, Tensor]:
    options = {"scale": 1.0, "initial_state": state, "output_final_state": True, "cu_seqlens": ends}
    if a is not None:
        from fla.ops.generalized_delta_rule import chunk_dplr_delta_rule  # type: ignore[import-not-found]

        return chunk_dplr_delta_rule(q, k, v, a, b, g, **options)
    if g is not None and g.dim() == 4:
        from fla.ops.gla import chunk_gla  # type: ignore[import-not-found]

        return chunk_gla(q, k, v, g, **options)
    from fla.ops.simple_gla import chunk_simple_gla  # type: ignore[import-not-found]

    return chunk_simple_gla(q, k, v, g, **options)
