"""Different feed-forwards in different layers: a pattern, repeated over the depth, after some first layers.

    first [d], pattern [a, b] of 6 layers: d a b a b a

Every second layer a mixture of experts: Lepikhin et al. 2020, arXiv:2006.16668 (GShard), Lieber et al. 2024,
arXiv:2403.19887 (Jamba). First layers without one: DeepSeek-AI 2024, arXiv:2412.19437.
"""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field

from zoo.blocks.api import FFNConfig, Slot, Sublayer
from zoo.blocks.ffn.glu import SwiGLUConfig
from zoo.blocks.ffn.moe import MoEConfig
from zoo.registry import decode, register

__all__ = ["FFNHybridConfig"]


def _ffns(value: Any) -> Any:
    if not isinstance(value, (list, tuple)):
        return value
    return tuple(decode("ffn", item, str(i)) for i, item in enumerate(value))


FFNs = Annotated[tuple[FFNConfig, ...], BeforeValidator(_ffns)]


@register("ffn", "hybrid", paper="Lepikhin et al. 2020, arXiv:2006.16668")
class FFNHybridConfig(FFNConfig):
    """A pattern of feed-forwards, repeated over the layers."""

    pattern: Annotated[FFNs, Field(min_length=1)] = (SwiGLUConfig(), MoEConfig())
    """Feed-forwards of the layers, in their order, then from the start again."""
    offset: Annotated[int, Field(ge=0)] = 0
    """Where in the pattern it begins."""
    first: FFNs = ()
    """Feed-forwards of the first layers; the pattern begins after them (DeepSeek-V3: three dense ones)."""

    def at(self, layer: int, depth: int) -> FFNConfig:  # type: ignore[override]
        later = layer - len(self.first)
        chosen = self.first[layer] if later < 0 else self.pattern[(later + self.offset) % len(self.pattern)]
        return chosen.at(layer, depth)

    def scaled(self, share: float) -> Self:
        first, pattern = (tuple(ffn.scaled(share) for ffn in ffns) for ffns in (self.first, self.pattern))
        return self.model_copy(update={"first": first, "pattern": pattern})

    def build(self, slot: Slot) -> Sublayer:
        return self.at(slot.layer, slot.depth).build(slot)
