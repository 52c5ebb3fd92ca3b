"""Kimi Delta Attention: the delta rule with a forgetting factor per key channel. Kimi Team 2025, arXiv:2510.26692.

    S_t = (1 - beta_t k_t k_t') diag(exp(g_t)) S_{t-1} + beta_t k_t v_t'      S (K, V) per head, g_t (K,)
    o_t = S_t' q_t / sqrt(K)
    g_t = -exp(A) softplus(alpha_t + dt)      A one number per head, alpha_t of low rank and dt one per channel

All else is DeltaNet (delta.py), with an output gate of low rank that is a sigmoid, which the paper found better than
SiLU. Both low-rank maps pass through V numbers. exp(A) starts uniform in 1 ... 16.
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from zoo.blocks.api import Slot
from zoo.blocks.decay import init_log_uniform, init_step_bias, log_decay, step_size
from zoo.blocks.low_rank import LowRank
from zoo.blocks.mixers.delta import DeltaConfig
from zoo.blocks.output_gate import GateName
from zoo.registry import register

__all__ = ["ChannelDecay", "KDAConfig"]


@register("mixer", "kda", paper="Kimi Team 2025, arXiv:2510.26692")
class KDAConfig(DeltaConfig):
    """The delta rule with a forgetting factor per key channel and token, and low-rank gates."""

    gate: GateName = "sigmoid"
    """Gate of x on the heads' outputs."""
    rank: Annotated[int, Field(ge=1)] | None = None
    """Numbers that the decay's and the gate's logits pass through; None: V."""

    def build_decay(self, slot: Slot, heads: int, key_dim: int) -> ChannelDecay:
        return ChannelDecay(slot, self.rank or self.value_dim(key_dim), heads, key_dim)

    def build_gate(self, slot: Slot, heads: int, value_dim: int) -> nn.Module | None:
        return LowRank(slot, self.rank or value_dim, heads * value_dim) if self.gate != "none" else None


class ChannelDecay(nn.Module):
    """x (B, T, D) -> log decays (B, T, H, K), -exp(A) softplus(alpha(x) + dt), in fp32 or better."""

    undecayed = ("A_log", "dt_bias")

    def __init__(self, slot: Slot, rank: int, heads: int, key_dim: int) -> None:
        super().__init__()
        self.alpha = LowRank(slot, rank, heads * key_dim)
        self.A_log = nn.Parameter(torch.empty(heads))
        self.dt_bias = nn.Parameter(torch.empty(heads * key_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        init_log_uniform(self.A_log, 1.0, 16.0)
        init_step_bias(self.dt_bias)

    def forward(self, x: Tensor) -> Tensor:
        step = step_size(self.alpha(x), self.dt_bias)  # (B, T, H K)
        return log_decay(self.A_log[:, None], step.unflatten(-1, (self.A_log.shape[0], -1)))  # (B, T, H, K)
