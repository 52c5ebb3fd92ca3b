"""GRU as a mixer: an LSTM without a cell state of its own. Cho et al. 2014, arXiv:1406.1078.

    r, z = sigmoid(x W + h U + b)        n = tanh(x W_n + b_n + r (h U_n + c_n))        h <- (1 - z) n + z h

One layer of torch's own nn.GRU, which applies r after the product with U_n, not before it as the paper does. Biases
start at 0. All else is lstm.py.
"""

from __future__ import annotations

from typing import ClassVar

from torch import nn

from zoo.blocks.api import Slot
from zoo.blocks.mixers.lstm import LSTM, LSTMConfig
from zoo.registry import register

__all__ = ["GRU", "GRUConfig"]


@register("mixer", "gru", paper="Cho et al. 2014, arXiv:1406.1078")
class GRUConfig(LSTMConfig):
    """One GRU layer: an LSTM with fewer gates and one state."""

    def build_causal(self, slot: Slot) -> GRU:
        return GRU(self, slot)


class GRU(LSTM):
    """(B, T, D) -> (B, T, D). The state is `hidden` (B, E)."""

    layer: ClassVar[type[nn.LSTM | nn.GRU]] = nn.GRU
    parts: ClassVar[tuple[str, ...]] = ("hidden",)

    def remember(self) -> None:
        """A GRU has no forget gate: z starts in the middle."""
