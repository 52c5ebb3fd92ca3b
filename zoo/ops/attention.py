"""Scaled dot-product attention with grouped heads, masks, biases, soft-caps and sinks: one function, exact, fused.

Vaswani et al. 2017, arXiv:1706.03762. Everything that torch's fused `scaled_dot_product_attention` can express
exactly goes through it, also where that takes a rewriting:

    value width != key width    the narrower is padded with zeros
    learned sink logit          one extra key with that score and value 0, carried in one extra channel
    sliding window, chunks      blocks of queries, each over its own slice of keys: O(T W) memory
    long masked rows            blocks of queries, each with its own rows of the mask, recomputed in backward

Only a logit soft-cap needs the scores themselves; they are made for a block of queries at a time. Short rows on a
CPU in training make them too: up to 32 x 32 that is faster than torch's fused kernel (1.1 to 1.7 times).
A query that sees no key yields zeros, forward and backward, on every path.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from zoo.ops.visibility import Visibility

__all__ = ["attention", "attention_maps", "naive_attention", "one_query_attention"]

BiasFunction = Callable[[slice, slice], Tensor]

# A dense mask up to this many entries is cheaper than a loop over blocks of queries.
DENSE_ENTRIES = 1 << 22
BLOCK = 256
# Up to so many scores a head and row, the formula itself is faster on a CPU than the fused kernel in training.
SHORT_ENTRIES = 32 * 32


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    visible: Visibility,
    *,
    scale: float | None = None,
    bias: BiasFunction | None = None,
    softcap: float | None = None,
    sink_logit: Tensor | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Attention output (B, H, T, V).

    q: (B, H, T, K); k: (B, G, S, K); v: (B, G, S, V), with H a multiple of G (query head h reads group h // (H/G)).
    scale: factor of the scores, 1/sqrt(K) by default.
    bias: function of a slice of queries and a slice of keys that returns what is added to the scaled (and capped)
        scores: float (H, t, s) or (B, H, t, s).
    softcap: scores become softcap * tanh(scores / softcap) before bias and mask (Gemma Team 2024, arXiv:2408.00118).
    sink_logit: (H,), a logit in the softmax that no value belongs to (OpenAI 2025, arXiv:2508.10925).
    dropout: probability of dropping an attention weight.
    """
    t, s = q.shape[-2], k.shape[-2]
    scale = _default_scale(q) if scale is None else scale
    if t * s <= SHORT_ENTRIES and _is_short_training(q, k):
        return _block(q, k, v, visible, slice(0, t), slice(0, s), scale, bias, softcap, sink_logit, dropout, True)
    if softcap is None and bias is None and visible.plain_causal:
        return _fused(q, k, v, None, scale=scale, sink_logit=sink_logit, dropout=dropout, causal=True)
    if visible.banded and t > 2 * max(visible.reach or 0, BLOCK):
        return _blocks(q, k, v, visible, scale, bias, softcap, sink_logit, dropout)
    mask_entries = 0 if visible.everything or not (visible.causal or visible.reach or bias or softcap) else t * s
    if visible.query_documents is not None:
        mask_entries = t * s
    if mask_entries > DENSE_ENTRIES and t > BLOCK:
        return _blocks(q, k, v, visible, scale, bias, softcap, sink_logit, dropout)
    return _block(q, k, v, visible, slice(0, t), slice(0, s), scale, bias, softcap, sink_logit, dropout)


def _is_short_training(q: Tensor, k: Tensor) -> bool:
    return q.device.type == "cpu" and (q.requires_grad or k.requires_grad) and not torch.compiler.is_compiling()


def _default_scale(q: Tensor) -> float:
    return float(q.shape[-1]) ** -0.5


def _blocks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    visible: Visibility,
    scale: float,
    bias: BiasFunction | None,
    softcap: float | None,
    sink_logit: Tensor | None,
    dropout: float,
) -> Tensor:
    """Blocks of queries one after the other; a block's mask and scores live only as long as the block."""
    t, s = q.shape[-2], k.shape[-2]
    needs_grad = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
    banded = visible.banded and visible.sinks == 0
    size = max(BLOCK, visible.reach or 0) if banded else BLOCK
    outputs = []
    for start in range(0, t, size):
        rows = slice(start, min(start + size, t))
        columns = visible.band(rows, s) if banded else slice(0, s)
        arguments = (q[..., rows, :], k[..., columns, :], v[..., columns, :], visible, rows, columns, scale, bias)
        if needs_grad and not torch.compiler.is_compiling():
            outputs.append(
                checkpoint(_block, *arguments, softcap, sink_logit, dropout, use_reentrant=False)  # (B, H, t, V)
            )
        else:
            outputs.append(_block(*arguments, softcap, sink_logit, dropout))
    return torch.cat(outputs, dim=-2)


def _block(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    visible: Visibility,
    rows: slice,
    columns: slice,
    scale: float,
    bias: BiasFunction | None,
    softcap: float | None,
    sink_logit: Tensor | None,
    dropout: float,
    explicit: bool = False,
) -> Tensor:
    mask = visible.mask(rows, columns)  # (B or 1, 1, t or 1, s) bool
    added = bias(rows, columns) if bias is not None else None  # (H, t, s) or (B, H, t, s)
    if softcap is not None or explicit:
        return _explicit(q, k, v, mask, added, scale, softcap, sink_logit, dropout)
    return _fused(q, k, v, mask, bias=added, scale=scale, sink_logit=sink_logit, dropout=dropout)


def _fused(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    *,
    scale: float,
    bias: Tensor | None = None,
    sink_logit: Tensor | None = None,
    dropout: float = 0.0,
    causal: bool = False,
) -> Tensor:
    groups, heads, t = k.shape[1], q.shape[1], q.shape[-2]
    empty: Tensor | None = None
    if mask is not None and sink_logit is None:
        # Back ends disagree on a row without keys; let such a row see everything, then put zeros.
        empty = ~mask.any(dim=-1, keepdim=True)  # (B or 1, 1, t or 1, 1)
        mask = mask | empty
    if sink_logit is not None:
        q, k, v, mask, bias = _with_sink(q, k, v, mask, bias, sink_logit, scale, causal)
    added = mask
    if bias is not None:
        bias = bias.to(q.dtype)
        bias = bias if bias.dim() == 4 else bias[None]
        added = bias if mask is None else bias.masked_fill(~mask, -math.inf)
    width = v.shape[-1]
    if width < k.shape[-1]:
        v = F.pad(v, (0, k.shape[-1] - width))
    elif width > k.shape[-1]:
        q, k = F.pad(q, (0, width - q.shape[-1])), F.pad(k, (0, width - k.shape[-1]))
    if groups != heads and q.shape[-2] == 1 and (added is None or added.shape[1] == 1):
        out = _folded(q, k, v, added, scale, dropout)  # (B, H, 1, max(K, V))
    else:
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=added, dropout_p=dropout, is_causal=causal, scale=scale, enable_gqa=groups != heads
        )  # (B, H, t, max(K, V))
    out = out[..., -t:, :width]
    return out if empty is None else out.masked_fill(empty, 0.0)


def _folded(q: Tensor, k: Tensor, v: Tensor, added: Tensor | None, scale: float, dropout: float = 0.0) -> Tensor:
    """One new query: the query heads of a group become the rows of one product, keys are read once."""
    b, h, g = q.shape[0], q.shape[1], k.shape[1]
    folded = q.reshape(b, g, h // g, q.shape[-1])
    out = F.scaled_dot_product_attention(folded, k, v, attn_mask=added, dropout_p=dropout, scale=scale)
    return out.reshape(b, h, 1, v.shape[-1])


def one_query_attention(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Attention of one query a head, q (B, H, 1, K), that sees all keys (B, G, S, K) -> (B, H, 1, V)."""
    if v.shape[-1] != k.shape[-1]:
        return _fused(q, k, v, None, scale=scale)
    return _folded(q, k, v, None, scale)


def _with_sink(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    sink_logit: Tensor,
    scale: float,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """A key before all others whose score is the sink logit and whose value is 0.

    The score travels in one extra channel: q gets sink/scale there, real keys 0, the sink key 1. Under the causal
    flag an idle query goes before the others, so that query i sees the sink and keys 0..i.
    """
    b, h, t, _ = q.shape
    channel = (sink_logit.to(q.dtype) / scale).view(1, h, 1, 1).expand(b, h, t, 1)
    q = torch.cat([q, channel], dim=-1)  # (B, H, t, K + 1)
    k = F.pad(k, (0, 1, 1, 0))  # (B, G, s + 1, K + 1), zeros for the sink key
    one = torch.zeros_like(k[:1, :1])
    one[..., 0, -1] = 1.0
    k = k + one
    v = F.pad(v, (0, 0, 1, 0))
    if causal:
        q = F.pad(q, (0, 0, 1, 0))
    if mask is not None:
        mask = F.pad(mask, (1, 0), value=True)
    if bias is not None:
        bias = F.pad(bias, (1, 0))
    return q, k, v, mask, bias


def _explicit(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    scale: float,
    softcap: float | None,
    sink_logit: Tensor | None,
    dropout: float,
) -> Tensor:
    """The formula itself, with the scores in memory; softmax in fp32 or better."""
    b, h, t, _ = q.shape
    weights = _weights(q, k, mask, bias, scale, softcap, sink_logit)  # (B, H, t, s)
    weights = F.dropout(weights, dropout) if dropout else weights
    g = k.shape[1]
    folded = weights.to(v.dtype).reshape(b, g, h // g * t, v.shape[-2])  # query heads of a group side by side
    return (folded @ v).reshape(b, h, t, v.shape[-1])  # (B, H, t, V)


def _weights(
    q: Tensor,
    k: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    scale: float,
    softcap: float | None,
    sink_logit: Tensor | None,
) -> Tensor:
    b, h, t, _ = q.shape
    g = k.shape[1]
    scores = (q * scale).reshape(b, g, h // g * t, q.shape[-1]) @ k.transpose(-1, -2)
    scores = scores.reshape(b, h, t, k.shape[-2])  # (B, H, t, s)
    scores = scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias
    empty: Tensor | None = None
    if mask is not None:
        empty = ~mask.any(dim=-1, keepdim=True) if sink_logit is None else None
        scores = scores.masked_fill(~mask if empty is None else ~(mask | empty), -math.inf)
    if sink_logit is not None:
        sink = sink_logit.to(scores.dtype).view(1, h, 1, 1).expand(b, h, t, 1)
        return torch.cat([sink, scores], dim=-1).softmax(dim=-1)[..., 1:]
    weights = scores.softmax(dim=-1)
    return weights if empty is None else weights.masked_fill(empty, 0.0)


@torch.no_grad()
def attention_maps(
    q: Tensor,
    k: Tensor,
    visible: Visibility,
    *,
    scale: float | None = None,
    bias: BiasFunction | None = None,
    softcap: float | None = None,
    sink_logit: Tensor | None = None,
) -> Tensor:
    """Attention weights (B, H, T, S), computed beside the fused path; a row sums to 1, or less with a sink logit."""
    scale = _default_scale(q) if scale is None else scale
    rows, columns = slice(0, q.shape[-2]), slice(0, k.shape[-2])
    added = bias(rows, columns) if bias is not None else None
    return _weights(q, k, visible.mask(rows, columns), added, scale, softcap, sink_logit)


def naive_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    allowed: Tensor,
    *,
    scale: float | None = None,
    bias: Tensor | None = None,
    softcap: float | None = None,
    sink_logit: Tensor | None = None,
) -> Tensor:
    """The specification: for each query a loop over the keys it may see; zeros where there are none.

    allowed: (B, T, S) bool; bias: (H, T, S) or (B, H, T, S); the rest as in `attention`.
    """
    batch, heads, t, _ = q.shape
    group = heads // k.shape[1]
    scale = _default_scale(q) if scale is None else scale
    rows = []
    for b in range(batch):
        for h in range(heads):
            for i in range(t):
                keys = allowed[b, i].nonzero().flatten().tolist()
                if not keys:
                    rows.append(v[b, h // group, :1].sum(0) * 0)
                    continue
                scores = []
                for j in keys:
                    score = scale * (q[b, h, i] * k[b, h // group, j]).sum()
                    if softcap is not None:
                        score = softcap * torch.tanh(score / softcap)
                    if bias is not None:
                        score = score + (bias[h, i, j] if bias.dim() == 3 else bias[b, h, i, j])
                    scores.append(score)
                if sink_logit is not None:
                    scores.append(sink_logit[h])
                weights = torch.stack(scores).exp()
                weights = weights / weights.sum()
                rows.append(torch.stack([weights[n] * v[b, h // group, j] for n, j in enumerate(keys)]).sum(0))
    return torch.stack(rows).view(batch, heads, t, -1)
