"""Gated causal convolution as a mixer: each token sees a fixed number of tokens before it, at fixed distances.

    value, gate = x W                        E channels each
    y_t = sum_j w_j value_{t - j d}          each channel on its own: W taps, d tokens apart
    out (y * act(gate))

Gates: Dauphin et al. 2016, arXiv:1612.08083. Dilation that doubles from layer to layer, so that L layers see 2^L tokens
and more: van den Oord et al. 2016, arXiv:1609.03499. A tap of one number for each channel, not of a matrix: Wu et al.
2019, arXiv:1901.10430. With `input_gate` and a linear gate it is the short convolution of H3 (Fu et al. 2022,
arXiv:2212.14052), Zoology's BaseConv (Arora et al. 2023, arXiv:2312.04927) and LFM2.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.blocks.api import Slot
from zoo.blocks.fixed_state import FixedState
from zoo.blocks.init import init_linear
from zoo.blocks.recurrent_mixer import RecurrentConfig, RecurrentMixer, Tokens
from zoo.blocks.short_conv import ShortConv
from zoo.registry import register

__all__ = ["Conv", "ConvConfig"]

LONGEST = 9  # doublings before the dilation starts again from 1: 512, as in WaveNet


@register("mixer", "conv", paper="Dauphin et al. 2016, arXiv:1612.08083")
class ConvConfig(RecurrentConfig):
    """Gated causal convolution, dilated: the baseline whose view is short and fixed."""

    state_field: ClassVar[str | None] = "width"

    width: Annotated[int, Field(ge=2)] = 4
    """Taps W of each channel."""
    dilation: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1)] | Literal["doubling"] = "doubling"
    """Tokens between taps, of the layers in turn; "doubling": 1, 2, 4 ... 512, and again."""
    expand: Annotated[float, Field(gt=0)] = 1.0
    """Channels E over D."""
    gate: Literal["none", "linear", "sigmoid", "silu"] = "silu"
    """What the gate's projection goes through before it is multiplied on the convolution's output."""
    input_gate: bool = False
    """A linear gate of its own on the convolution's input."""
    bias: bool = True
    """Of the convolution."""

    def dilation_of(self, layer: int) -> int:
        """Tokens between the taps of one layer."""
        if self.dilation == "doubling":
            return 2 ** (layer % (LONGEST + 1))
        return self.dilation[layer % len(self.dilation)]

    def build_causal(self, slot: Slot) -> Conv:
        return Conv(self, slot)


class Conv(RecurrentMixer):
    """(B, T, D) -> (B, T, D). See ConvConfig for the choices and the module docstring for the formula."""

    def __init__(self, config: ConvConfig, slot: Slot) -> None:
        super().__init__()
        self.config, self.where = config, slot.where
        self.channels = max(1, round(slot.dim * config.expand))
        self.branches = 1 + (config.gate != "none") + config.input_gate
        self.inputs = nn.Linear(slot.dim, self.branches * self.channels, bias=False)
        self.conv = ShortConv(
            self.channels, config.width, bias=config.bias, activation=False, dilation=config.dilation_of(slot.layer)
        )
        self.out = nn.Linear(self.channels, slot.dim, bias=False)
        self._std, self._out_std = slot.std(slot.dim), slot.output_std(self.channels)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        init_linear(self.inputs, self._std)
        init_linear(self.out, self._out_std)

    def mix(self, x: Tensor, tokens: Tokens, state: FixedState | None) -> Tensor:
        value, *gates = self.inputs(x).split(self.channels, dim=-1)  # (B, T, E) each
        if self.config.input_gate:
            value = value * gates.pop()
        y = self.conv(value, tokens, state)  # (B, T, E)
        if gates:
            y = y * self._activated(gates[0])
        return self.out(y)  # (B, T, D)

    def _activated(self, gate: Tensor) -> Tensor:
        if self.config.gate == "linear":
            return gate
        return F.silu(gate) if self.config.gate == "silu" else torch.sigmoid(gate)

    def empty(self, batch: int, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        return {"tail": self.conv.empty(batch, device, dtype)}

    def core_flops(self, batch: int, length: int, memory_length: int = 0) -> int:
        """The taps, 2 a multiply-add."""
        return 2 * batch * length * self.channels * self.config.width
