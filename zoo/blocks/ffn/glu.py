"""Gated feed-forward: down(act(gate(x)) * up(x)). Shazeer 2020, arXiv:2002.05202.

Three matrices instead of two; at two thirds of the width they hold the same parameters as a plain MLP.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.blocks.api import Context, FFNConfig, Slot, Step, Sublayer
from zoo.blocks.ffn.mlp import ActivationName, activate, rounded
from zoo.blocks.init import init_linear
from zoo.ops.few_rows import few_rows
from zoo.ops.gated import GATED, gated
from zoo.registry import register

__all__ = ["GLU", "GEGLUConfig", "GLUConfig", "SwiGLUConfig"]


class GLUConfig(FFNConfig):
    """What all gated feed-forwards choose. Registered under one name per activation."""

    ratio: Annotated[float, Field(gt=0)] = 4.0
    """Hidden width over D of the plain MLP to match; two thirds of it are taken."""
    hidden: Annotated[int, Field(ge=1)] | None = None
    """Hidden width itself; `ratio`, `multiplier` and `multiple_of` are then unused."""
    multiplier: Annotated[float, Field(gt=0)] = 1.0
    """Factor on the two-thirds width, before rounding (Llama 3 8B: 1.3)."""
    multiple_of: Annotated[int, Field(ge=1)] = 8
    """The width is rounded up to a multiple of this (Llama 1 and 2: 256; Llama 3: 1024)."""
    activation: ActivationName = "silu"
    bias: bool = False
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0

    def width(self, dim: int) -> int:
        """Hidden width F for a model of width D. As Llama computes it: cut to an int after each product."""
        if self.hidden is not None:
            return self.hidden
        return rounded(int(self.multiplier * int(2 * (dim * self.ratio) / 3)), self.multiple_of)

    def build(self, slot: Slot) -> GLU:
        return GLU(self, slot)


@register("ffn", "swiglu", paper="Shazeer 2020, arXiv:2002.05202")
class SwiGLUConfig(GLUConfig):
    """Gated by SiLU, at two thirds of the width."""


@register("ffn", "geglu", paper="Shazeer 2020, arXiv:2002.05202")
class GEGLUConfig(GLUConfig):
    """Gated by GELU, at two thirds of the width."""

    activation: ActivationName = "gelu"


class GLU(Sublayer):
    """(B, T, D) -> (B, T, D)."""

    pointwise = True

    def __init__(self, config: GLUConfig, slot: Slot) -> None:
        super().__init__()
        self.config, self.where = config, slot.where
        hidden = config.width(slot.dim)
        self._std, self._out_std = slot.std(slot.dim) * slot.branch_gain, slot.output_std(hidden)
        self.gate = nn.Linear(slot.dim, hidden, bias=config.bias)
        self.up = nn.Linear(slot.dim, hidden, bias=config.bias)
        self.down = nn.Linear(hidden, slot.dim, bias=config.bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        init_linear(self.gate, self._std)
        init_linear(self.up, self._std)
        init_linear(self.down, self._out_std)

    def step(self, state: Any) -> Step:
        name, gate, up, down = self.config.activation, *map(few_rows, (self.gate, self.up, self.down))
        return lambda x, _: down(activate(name, gate(x)).mul_(up(x)))  # (N, D)

    def forward(self, x: Tensor, context: Context, state: Any = None) -> Tensor:
        name = self.config.activation
        gate, up = self.gate(x), self.up(x)  # (B, T, F) each
        h = gated(name, gate, up) if name in GATED else activate(name, gate) * up  # (B, T, F)
        if self.config.dropout:
            h = F.dropout(h, self.config.dropout, self.training)
        return self.down(h)  # (B, T, D)
