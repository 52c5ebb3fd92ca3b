"""Norms over the last axis: LayerNorm, RMSNorm, or none. Attention uses the same ones per head as QK norm."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.blocks.api import NormConfig
from zoo.ops.rms_norm import rms_norm
from zoo.registry import register

__all__ = ["LayerNormConfig", "NoNormConfig", "RMSNorm", "RMSNormConfig"]


@register("norm", "layernorm", paper="Ba, Kiros & Hinton 2016, arXiv:1607.06450")
class LayerNormConfig(NormConfig):
    """Mean 0 and variance 1 over the features, then a learned scale and shift."""

    eps: Annotated[float, Field(gt=0)] = 1e-6
    affine: bool = True
    bias: bool = True

    def build(self, dim: int) -> nn.Module:
        return nn.LayerNorm(dim, eps=self.eps, elementwise_affine=self.affine, bias=self.bias)


@register("norm", "rmsnorm", paper="Zhang & Sennrich 2019, arXiv:1910.07467")
class RMSNormConfig(NormConfig):
    """Root mean square 1 over the features, then a learned scale; no centring."""

    eps: Annotated[float, Field(gt=0)] = 1e-6
    unit_offset: bool = False
    """Scale by 1 + weight, with the weight starting at 0 (Gemma)."""
    affine: bool = True
    """False: no learned scale (Llama 4's queries and keys)."""

    def build(self, dim: int) -> nn.Module:
        return RMSNorm(dim, eps=self.eps, unit_offset=self.unit_offset, affine=self.affine)


@register("norm", "none")
class NoNormConfig(NormConfig):
    """No norm: the input as it is."""

    def build(self, dim: int) -> nn.Module:
        return nn.Identity()


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight; (..., D) -> (..., D), statistics in fp32 or better."""

    def __init__(self, dim: int, eps: float = 1e-6, unit_offset: bool = False, affine: bool = True) -> None:
        super().__init__()
        self.dim, self.eps, self.unit_offset = dim, eps, unit_offset
        self.weight = nn.Parameter(torch.empty(dim)) if affine else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.weight is not None:
            nn.init.constant_(self.weight, 0.0 if self.unit_offset else 1.0)

    def forward(self, x: Tensor) -> Tensor:
        if self.weight is None:
            return F.rms_norm(x, (self.dim,), eps=self.eps)  # (..., D)
        weight = self.weight + 1.0 if self.unit_offset else self.weight
        return rms_norm(x, weight, self.eps)  # (..., D)

    def extra_repr(self) -> str:
        return f"{self.dim}, eps={self.eps}, unit_offset={self.unit_offset}, affine={self.weight is not None}"
