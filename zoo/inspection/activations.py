"""Activation memory: what a forward pass of training keeps for its backward pass.

The bytes of all tensors that autograd saves, each storage once, without weights, buffers and inputs. It is what grows
with batch and length. Not in it: what lives only while an operator runs, the output itself where nothing saves it, and
gradients and optimizer states, which go with the parameters.

The pass runs on the meta device, in plain PyTorch. Attention is taken to be fused, as it is on CPUs and GPUs: it keeps
its inputs, its output and one number for each query and head, not the scores (Dao et al. 2022, arXiv:2205.14135).
Recurrences and scans keep what their PyTorch forms keep; compiled ones may keep less.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

__all__ = ["activation_bytes"]


def activation_bytes(model: nn.Module, *inputs: Any, **keywords: Any) -> int:
    """Bytes that `model(*inputs, **keywords)`, all on the meta device, keeps for backward.

    Blocks under activation checkpointing count as nothing: what they recompute is not kept, and no operator saves their
    inputs.
    """
    tensors = [*model.parameters(), *model.buffers(), *inputs, *keywords.values()]
    known = {value.untyped_storage()._cdata for value in tensors if isinstance(value, Tensor)}
    kept: dict[int, torch.UntypedStorage] = {}  # the storages themselves, so that no address is used twice

    def keep(value: Tensor) -> Tensor:
        storage = value.untyped_storage()
        if storage._cdata not in known:
            kept[storage._cdata] = storage
        return value

    with torch.enable_grad(), saved_tensors_hooks(keep, lambda value: value), _FusedAttention():
        output = model(*inputs, **keywords)
    total = sum(storage.nbytes() for storage in kept.values())
    del output  # the graph lives until here
    return total


class _FusedAttention(TorchFunctionMode):
    """torch's attention keeps what its fused kernels keep; on the meta device it would be made of single operators."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is not F.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        given = dict(zip(("query", "key", "value", "attn_mask"), args, strict=False)) | (kwargs or {})
        return _Kept.apply(given["query"], given["key"], given["value"], given.get("attn_mask"))


class _Kept(torch.autograd.Function):
    """q (B, H, T, K), k (B, G, S, K), v (B, G, S, V), mask -> (B, H, T, V), without values."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        batch, heads, length, _ = q.shape
        y = q.new_empty(batch, length, heads, v.shape[-1]).transpose(1, 2)  # (B, H, T, V), laid out as by the kernels
        sums = q.new_empty(q.shape[:-1], dtype=torch.float32)  # (B, H, T)
        if mask is not None and mask.dtype == torch.bool:  # the kernels take it as numbers to add
            mask = mask.to(q.dtype)
        ctx.save_for_backward(q, k, v, mask, y, sums)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, v = ctx.saved_tensors[:3]
        return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), None
