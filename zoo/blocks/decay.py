"""Decays as Mamba and all that took them over start and compute them: exp(-exp(A_log) softplus(x + bias)).

Gu & Dao 2023, arXiv:2312.00752: steps between 0.001 and 0.1, uniform in their logarithm; the bias is what softplus
turns into such a step.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["init_log_uniform", "init_step_bias", "log_decay", "step_size"]


@torch.no_grad()
def init_step_bias(bias: nn.Parameter, low: float = 1e-3, high: float = 0.1, floor: float = 1e-4) -> None:
    """softplus(bias) is uniform in its logarithm between `low` and `high`, and at least `floor`."""
    spread = torch.rand_like(bias) * (math.log(high) - math.log(low)) + math.log(low)
    steps = spread.exp().clamp(min=floor)
    bias.copy_(steps + torch.log(-torch.expm1(-steps)))  # the inverse of softplus


@torch.no_grad()
def init_log_uniform(a_log: nn.Parameter, low: float, high: float) -> None:
    """exp(a_log) is uniform between `low` and `high`."""
    a_log.copy_((torch.rand_like(a_log) * (high - low) + low).clamp(min=1e-4).log())


def step_size(x: Tensor, bias: Tensor) -> Tensor:
    """softplus(x + bias) in fp32 or better."""
    wide = torch.promote_types(torch.promote_types(x.dtype, bias.dtype), torch.float32)
    return F.softplus(x.to(wide) + bias.to(wide))


def log_decay(a_log: Tensor, step: Tensor) -> Tensor:
    """-exp(a_log) step, in the step's dtype."""
    return -a_log.to(step.dtype).exp() * step
