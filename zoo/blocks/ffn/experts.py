"""Experts: feed-forwards of one kind with stacked weights (E, outputs, inputs), which work on sorted pairs (M, D).

Each expert is the plain feed-forward of its config (glu.py, mlp.py), and starts as that one does.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.blocks.api import FFNConfig, Slot
from zoo.blocks.ffn.glu import GLUConfig
from zoo.blocks.ffn.mlp import MLPConfig, activate
from zoo.ops.experts import grouped_linear
from zoo.ops.few_rows import few_rows_of
from zoo.ops.gated import GATED, gated
from zoo.registry import ConfigError

__all__ = ["ExpertLinear", "GLUExperts", "MLPExperts", "build_experts"]


class ExpertLinear(nn.Module):
    """E linear maps: (M, I) in groups that end at `ends` (E,) -> (M, O)."""

    undecayed = ("bias",)

    def __init__(self, experts: int, inputs: int, outputs: int, *, bias: bool, std: float) -> None:
        super().__init__()
        self._std = std
        self.weight = nn.Parameter(torch.empty(experts, outputs, inputs))
        self.bias = nn.Parameter(torch.empty(experts, outputs)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.trunc_normal_(self.weight, std=self._std, a=-2 * self._std, b=2 * self._std)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        return grouped_linear(x, self.weight, ends, self.bias)

    def one(self, expert: int) -> Callable[[Tensor], Tensor]:
        """The map of one expert on a CPU without gradients, called again and again: (N, I) -> (N, O)."""
        return few_rows_of(self.weight[expert], None if self.bias is None else self.bias[expert])

    def extra_repr(self) -> str:
        experts, outputs, inputs = self.weight.shape
        return f"experts={experts}, inputs={inputs}, outputs={outputs}, bias={self.bias is not None}"


class GLUExperts(nn.Module):
    """down(act(gate(x)) * up(x)) of each expert."""

    def __init__(self, config: GLUConfig, experts: int, slot: Slot) -> None:
        super().__init__()
        self.config = config
        hidden, std = config.width(slot.dim), slot.std(slot.dim) * slot.branch_gain
        self.gate = ExpertLinear(experts, slot.dim, hidden, bias=config.bias, std=std)
        self.up = ExpertLinear(experts, slot.dim, hidden, bias=config.bias, std=std)
        self.down = ExpertLinear(experts, hidden, slot.dim, bias=config.bias, std=slot.output_std(hidden))

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        name = self.config.activation
        gate, up = self.gate(x, ends), self.up(x, ends)  # (M, F) each
        h = gated(name, gate, up) if name in GATED else activate(name, gate) * up  # (M, F)
        if self.config.dropout:
            h = F.dropout(h, self.config.dropout, self.training)
        return self.down(h, ends)  # (M, D)

    def one(self, expert: int) -> Callable[[Tensor], Tensor]:
        """One expert as a step of decoding calls it: (N, D) -> (N, D)."""
        name, gate, up, down = self.config.activation, self.gate.one(expert), self.up.one(expert), self.down.one(expert)
        return lambda x: down(activate(name, gate(x)).mul_(up(x)))


class MLPExperts(nn.Module):
    """down(act(up(x))) of each expert."""

    def __init__(self, config: MLPConfig, experts: int, slot: Slot) -> None:
        super().__init__()
        self.config = config
        hidden = config.hidden or int(slot.dim * config.ratio)
        std = slot.std(slot.dim) * slot.branch_gain
        self.up = ExpertLinear(experts, slot.dim, hidden, bias=config.bias, std=std)
        self.down = ExpertLinear(experts, hidden, slot.dim, bias=config.bias, std=slot.output_std(hidden))

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        h = activate(self.config.activation, self.up(x, ends))  # (M, F)
        if self.config.dropout:
            h = F.dropout(h, self.config.dropout, self.training)
        return self.down(h, ends)  # (M, D)

    def one(self, expert: int) -> Callable[[Tensor], Tensor]:
        """One expert as a step of decoding calls it: (N, D) -> (N, D)."""
        name, up, down = self.config.activation, self.up.one(expert), self.down.one(expert)
        return lambda x: down(activate(name, up(x)))


def build_experts(config: FFNConfig, experts: int, slot: Slot) -> GLUExperts | MLPExperts:
    """`experts` feed-forwards of this config. Raises ConfigError for one that has no stacked form."""
    if isinstance(config, GLUConfig):
        return GLUExperts(config, experts, slot)
    if isinstance(config, MLPConfig):
        return MLPExperts(config, experts, slot)
    raise ConfigError(
        f"'{config.registered_name}' has no stacked form; choices: mlp, swiglu, geglu", f"{slot.where}.expert"
    )
