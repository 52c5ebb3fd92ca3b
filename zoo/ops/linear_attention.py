"""Linear attention without a causal order: every query reads the sum over its whole row, document or memory.

    S = sum_s k_s v_s'        o_t = S' q_t        q, k: features of queries and keys

Katharopoulos et al. 2020, arXiv:2006.16236, section 3.2. No scan: two matrix products. The causal form is
zoo/ops/recurrence.py without decay.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from zoo.ops.precision import full_precision
from zoo.ops.recurrence import at_least_fp32, recurrence

__all__ = ["key_value_sums", "naive_row_attention", "read_sums", "row_attention"]


def key_value_sums(k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """k (B, S, H, K), v (B, S, H, V), mask (B, S) bool, True = counts -> S (B, H, K, V) in fp32 or better."""
    with full_precision(k):
        k = _counted(at_least_fp32(k), mask)
        return k.permute(0, 2, 3, 1) @ at_least_fp32(v).transpose(1, 2)  # (B, H, K, S) (B, H, S, V)


def read_sums(q: Tensor, sums: Tensor) -> Tensor:
    """q (B, T, H, K), S (B, H, K, V) -> (B, T, H, V) in fp32 or better."""
    with full_precision(q):
        return (at_least_fp32(q).transpose(1, 2) @ sums).transpose(1, 2)


def row_attention(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, starts: Tensor | None = None, chunk: int = 64
) -> Tensor:
    """q, k (B, T, H, K), v (B, T, H, V) -> (B, T, H, V) in fp32 or better.

    mask: (B, T) bool, True = a real token. starts: (B, T) bool, True = the first token of a packed document; a query
    then reads the sum over its document, which a scan from each side makes, so that the cost stays linear in T.
    """
    if starts is None:
        return read_sums(q, key_value_sums(k, v, mask))
    q, k, v = at_least_fp32(q), _counted(at_least_fp32(k), mask), at_least_fp32(v)
    before, _ = recurrence(q, k, v, starts=starts, chunk=chunk)  # with the token itself
    ends = F.pad(starts[:, 1:], (0, 1))
    after, _ = recurrence(q.flip(1), k.flip(1), v.flip(1), starts=ends.flip(1), chunk=chunk)
    return before + after.flip(1) - (q * k).sum(-1, keepdim=True) * v


def naive_row_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, starts: Tensor | None = None
) -> Tensor:
    """`row_attention` as a loop over rows, heads, queries and keys."""
    (batch, length, heads, width), outputs = v.shape, []
    document = torch.zeros(batch, length) if starts is None else starts.cumsum(1)
    for r in range(batch):
        for t in range(length):
            for h in range(heads):
                S = v.new_zeros(k.shape[3], width)
                for s in range(length):
                    if document[r, s] == document[r, t] and (mask is None or mask[r, s]):
                        S = S + torch.outer(k[r, s, h], v[r, s, h])
                outputs.append(S.T @ q[r, t, h])
    return torch.stack(outputs).view(batch, length, heads, width)


def _counted(k: Tensor, mask: Tensor | None) -> Tensor:
    """Keys with zeros where the mask is False."""
    return k if mask is None else k.masked_fill(~mask[..., None, None], 0.0)
