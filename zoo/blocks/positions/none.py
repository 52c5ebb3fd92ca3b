"""No positions (Kazemnejad et al. 2023, arXiv:2305.19466): order is known from the causal mask or the mixer alone."""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor, nn

from zoo.blocks.api import Context, PositionConfig, Slot
from zoo.registry import register

__all__ = ["NoPositionConfig", "NoPositions"]


@register("position", "none", paper="Kazemnejad et al. 2023, arXiv:2305.19466")
class NoPositionConfig(PositionConfig):
    """No positions: order comes from the causal mask or the mixer alone."""

    place: ClassVar[Literal["input", "rotary", "bias", "none"]] = "none"

    def build(self, slot: Slot) -> NoPositions:
        return NoPositions()


class NoPositions(nn.Module):
    """x (B, T, D) as it is, for callers that build positions without asking what they are."""

    def forward(self, x: Tensor, context: Context) -> Tensor:
        return x
