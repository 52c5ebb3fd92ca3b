"""Gated DeltaNet: the delta rule with a forgetting factor per head and token. Yang et al. 2024, arXiv:2412.06464.

    S_t = exp(g_t) (1 - beta_t k_t k_t') S_{t-1} + beta_t k_t v_t'      S (K, V) per head
    o_t = S_t' q_t / sqrt(K)                                            decay first, then the delta rule, then the read
    g_t = -exp(A) softplus(alpha_t + dt)                                one number per head, A and dt as in Mamba

All else is DeltaNet (delta.py), with values twice as wide as keys and a SiLU gate on the normed outputs. exp(A) starts
uniform in 0 ... 16 as in the authors' code, unless `decay_rates` says otherwise.
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field, field_validator
from torch import Tensor, nn

from zoo.blocks.api import Slot
from zoo.blocks.decay import init_log_uniform, init_step_bias, log_decay, step_size
from zoo.blocks.init import init_linear
from zoo.blocks.mixers.delta import DeltaConfig
from zoo.blocks.output_gate import GateName
from zoo.registry import register

__all__ = ["GatedDeltaConfig", "HeadDecay"]


@register("mixer", "gated_delta", paper="Yang et al. 2024, arXiv:2412.06464")
class GatedDeltaConfig(DeltaConfig):
    """The delta rule with a forgetting factor per head and token."""

    expand_v: Annotated[float, Field(gt=0)] = 2.0
    """Value width V over K."""
    gate: GateName = "silu"
    """Gate of x on the heads' outputs."""

    decay_rates: tuple[Annotated[float, Field(ge=0)], Annotated[float, Field(gt=0)]] = (0.0, 16.0)
    """exp(A) starts uniform between these. With one head for a long memory the default may forget too fast to learn."""

    @field_validator("decay_rates")
    @classmethod
    def _ordered(cls, value: tuple[float, float]) -> tuple[float, float]:
        if value[0] > value[1]:
            raise ValueError(f"should be the lower rate, then the higher, got {value[0]:g}, {value[1]:g}")
        return value

    def build_decay(self, slot: Slot, heads: int, key_dim: int) -> HeadDecay:
        return HeadDecay(slot, heads, self.decay_rates)


class HeadDecay(nn.Module):
    """x (B, T, D) -> log decays (B, T, H), -exp(A) softplus(alpha(x) + dt), in fp32 or better."""

    undecayed = ("A_log", "dt_bias")

    def __init__(self, slot: Slot, heads: int, rates: tuple[float, float] = (0.0, 16.0)) -> None:
        super().__init__()
        self.rates = rates
        self.alpha = nn.Linear(slot.dim, heads, bias=False)
        self.A_log = nn.Parameter(torch.empty(heads))
        self.dt_bias = nn.Parameter(torch.empty(heads))
        self._std = slot.std(slot.dim)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        init_linear(self.alpha, self._std)
        init_log_uniform(self.A_log, *self.rates)
        init_step_bias(self.dt_bias)

    def forward(self, x: Tensor) -> Tensor:
        return log_decay(self.A_log, step_size(self.alpha(x), self.dt_bias))  # (B, T, H)
