"""Two-layer feed-forward: (B, T, D) -> (B, T, F) -> (B, T, D).

Vaswani et al. 2017, arXiv:1706.03762. GELU: Hendrycks & Gimpel 2016, arXiv:1606.08415; squared ReLU: So et al. 2021,
arXiv:2109.08668.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.blocks.api import Context, FFNConfig, Slot, Step, Sublayer
from zoo.blocks.init import init_linear
from zoo.ops.few_rows import few_rows
from zoo.registry import register

__all__ = ["ACTIVATIONS", "MLP", "ActivationName", "MLPConfig", "activate", "rounded"]

ActivationName = Literal["gelu", "gelu_tanh", "relu", "relu2", "silu", "identity"]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
    "silu": F.silu,
    "identity": lambda x: x,
}

_IN_PLACE: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": torch._C._nn.gelu_,  # pyright: ignore[reportAttributeAccessIssue]
    "gelu_tanh": lambda x: torch._C._nn.gelu_(x, approximate="tanh"),  # pyright: ignore[reportAttributeAccessIssue]
    "relu": F.relu_,
    "silu": lambda x: F.silu(x, inplace=True),
}


def activate(name: str, hidden: Tensor) -> Tensor:
    """The activation of a tensor that nothing else reads: without gradients it overwrites it.

    In a block's forward pass this is the largest tensor, and a second one of its size is a quarter of the peak memory.
    """
    if name in _IN_PLACE and not torch.is_grad_enabled() and not torch.compiler.is_compiling():
        return _IN_PLACE[name](hidden)
    return ACTIVATIONS[name](hidden)


def rounded(width: float, multiple: int) -> int:
    """`width` cut to an int and rounded up to a multiple: rounded(2/3 * 4 * 4096, 256) = 11008, as Llama does."""
    return -(-int(width) // multiple) * multiple


@register("ffn", "mlp", paper="Vaswani et al. 2017, arXiv:1706.03762")
class MLPConfig(FFNConfig):
    """Linear, activation, linear."""

    ratio: Annotated[float, Field(gt=0)] = 4.0
    """Hidden width over D, where `hidden` is not given."""
    hidden: Annotated[int, Field(ge=1)] | None = None
    activation: ActivationName = "gelu"
    bias: bool = True
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Dropout on the hidden activations while training."""

    def build(self, slot: Slot) -> MLP:
        return MLP(self, slot)


class MLP(Sublayer):
    """(B, T, D) -> (B, T, D)."""

    pointwise = True

    def __init__(self, config: MLPConfig, slot: Slot) -> None:
        super().__init__()
        self.config, self.where = config, slot.where
        hidden = config.hidden or int(slot.dim * config.ratio)
        self._std, self._out_std = slot.std(slot.dim) * slot.branch_gain, slot.output_std(hidden)
        self.up = nn.Linear(slot.dim, hidden, bias=config.bias)
        self.down = nn.Linear(hidden, slot.dim, bias=config.bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        init_linear(self.up, self._std)
        init_linear(self.down, self._out_std)

    def step(self, state: Any) -> Step:
        name, up, down = self.config.activation, few_rows(self.up), few_rows(self.down)
        return lambda x, _: down(activate(name, up(x)))  # (N, D)

    def forward(self, x: Tensor, context: Context, state: Any = None) -> Tensor:
        h = activate(self.config.activation, self.up(x))  # (B, T, F)
        if self.config.dropout:
            h = F.dropout(h, self.config.dropout, self.training)
        return self.down(h)  # (B, T, D)
