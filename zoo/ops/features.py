"""Feature maps of queries and keys for linear attention: phi(q)' phi(k) in the place of exp(q' k / sqrt K)."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["unit"]


def unit(x: Tensor, eps: float = 1e-6) -> Tensor:
    """x / sqrt(|x|^2 + eps) over the last axis, in fp32 or better: a vector of length 0 stays one."""
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    return (wide * (wide.square().sum(-1, keepdim=True) + eps).rsqrt()).to(x.dtype)
