"""Different mixers in different layers: a pattern, repeated over the depth.

    pattern [a, a, a, b] of 10 layers: a a a b a a a b a a

Jamba (Lieber et al. 2024, arXiv:2403.19887) alternates state space layers and attention, Gemma 2 (Gemma Team 2024,
arXiv:2408.00118) windows and full attention. A block knows nothing of it: `at(layer, depth)` returns the layer's own.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from zoo.blocks.api import Capability, MixerConfig, Slot, Sublayer
from zoo.blocks.mixers.attention import AttentionConfig
from zoo.registry import decode, register

__all__ = ["HybridConfig"]


def _mixers(value: Any) -> Any:
    return (
        tuple(decode("mixer", item, str(i)) for i, item in enumerate(value))
        if isinstance(value, (list, tuple))
        else value
    )


@register("mixer", "hybrid", paper="Lieber et al. 2024, arXiv:2403.19887")
class HybridConfig(MixerConfig):
    """A pattern of mixers, repeated over the layers."""

    pattern: Annotated[tuple[MixerConfig, ...], BeforeValidator(_mixers), Field(min_length=1)] = (AttentionConfig(),)
    """Mixers of the layers, first to last, then from the start again."""
    offset: Annotated[int, Field(ge=0)] = 0
    """Where in the pattern layer 0 stands."""

    @property
    def capabilities(self) -> Capability:  # type: ignore[override]
        """What all of them can do."""
        common = ~Capability(0)
        for mixer in self.pattern:
            common &= mixer.capabilities
        return common

    def at(self, layer: int, depth: int) -> MixerConfig:  # type: ignore[override]
        mixer = self.pattern[(layer + self.offset) % len(self.pattern)]
        return mixer.at(layer, depth)

    def for_memory(self) -> MixerConfig | None:
        """The pattern's mixers that can read another sequence, in the same places; None unless all can."""
        found = [mixer.for_memory() for mixer in self.pattern]
        if any(mixer is None for mixer in found):
            return None
        return self.model_copy(update={"pattern": tuple(found)})

    def build(self, slot: Slot) -> Sublayer:
        return self.at(slot.layer, slot.depth).build(slot)
