"""Different mixers in different layers: a pattern, repeated over the depth.

    pattern 3*gated_delta+attention, 10 layers:      g g g a g g g a g g
    the same with from_end:                          g a g g g a g g g a

Jamba (Lieber et al. 2024, arXiv:2403.19887) alternates state space layers and attention, Gemma 2 (Gemma Team 2024,
arXiv:2408.00118) windows and full attention, MiniMax-01 (2025, arXiv:2501.08313) has attention after every seven layers
of lightning attention. A block knows nothing of it: `at(layer, depth)` returns the layer's own mixer.

A pattern is a list of mixers, or text: names joined by `+` or `,`, with a number before `*` for neighbours that are
alike. Items of a list may be such text too, or a dict with the mixer's choices and `repeat`.

    mixer: {name: hybrid, pattern: "7*lightning+attention"}
    mixer: {name: hybrid, pattern: [{name: attention, window: 8, repeat: 3}, {name: attention, position: none}]}
    mixer: {name: hybrid, pattern: gla, layers: {0: attention, -1: {name: attention, window: 8}, 2: {heads: 2}}}

Each mixer has its own choices, also of positions: an attention with `position: none` sees no positions in a family that
rotates; `position: null` means the family's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from zoo.blocks.api import Capability, MixerConfig, Slot, Sublayer
from zoo.blocks.mixers.attention import AttentionConfig
from zoo.registry import ConfigError, decode, encode, merge, names, register

__all__ = ["HybridConfig"]

TIMES = re.compile(r"(?:(\d+)\s*\*)?\s*([A-Za-z_]\w*)")


def _pattern(value: Any) -> Any:
    """Mixers from a list or a text."""
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, (list, tuple)):
        return value
    return tuple(mixer for place, item in enumerate(value) for mixer in _items(item, str(place)))


def _items(value: Any, place: str) -> list[MixerConfig]:
    """The mixers that one item of a list stands for."""
    if isinstance(value, str):
        return [mixer for text in re.split(r"[+,]", value) for mixer in _counted(text.strip(), place)]
    times = 1
    if isinstance(value, Mapping) and "repeat" in value:
        times = value["repeat"]
        value = {key: item for key, item in value.items() if key != "repeat"}
    if not isinstance(times, int) or isinstance(times, bool) or times < 1:
        raise ConfigError([((place, "repeat"), f"should be a whole number of at least 1, got {times!r}")])
    return times * [decode("mixer", value, place)]


def _counted(text: str, place: str) -> list[MixerConfig]:
    found = TIMES.fullmatch(text)
    if found is None or found[1] == "0":
        told = "should be a mixer's name or a count and a name, such as 3*gla"
        raise ConfigError([((place,), f"{told}, got {text!r}; choices: {', '.join(names('mixer'))}")])
    return int(found[1] or 1) * [decode("mixer", found[2], place)]


@register("mixer", "hybrid", paper="Lieber et al. 2024, arXiv:2403.19887")
class HybridConfig(MixerConfig):
    """A pattern of mixers, repeated over the layers."""

    pattern: Annotated[tuple[MixerConfig, ...], BeforeValidator(_pattern), Field(min_length=1)] = (AttentionConfig(),)
    """Mixers of the layers, first to last, then from the start again."""
    offset: Annotated[int, Field(ge=0)] = 0
    """Where in the pattern layer 0 stands; with `from_end`, how many items the last layer is from the pattern's end."""
    from_end: bool = False
    """The last layer has the pattern's last mixer, whatever the depth, and the first layers what is left."""
    tile: bool = True
    """Repeat the pattern. False: it names the mixer of every layer, and one for each."""
    layers: dict[int, MixerConfig] = Field(default_factory=dict)
    """Other mixers for single layers; -1 is the last. A dict without a name changes what the pattern has there."""

    @model_validator(mode="before")
    @classmethod
    def _layers(cls, values: Any) -> Any:
        """Keys that came as text become numbers, and values mixers."""
        layers = values.get("layers") if isinstance(values, Mapping) else None
        if not isinstance(layers, Mapping):
            return values
        found = {}
        for key, value in layers.items():
            place, at = ("layers", str(key)), str(key)
            if not re.fullmatch(r"-?\d+", at):
                raise ConfigError([(place, "should be the number of a layer, such as 0, or -1 for the last")])
            if isinstance(value, Mapping) and "name" not in value:
                value = merge(encode(cls._planned(values, int(at), place)), value)
            found[int(at)] = decode("mixer", value, ".".join(place))
        return {**values, "layers": found}

    @classmethod
    def _planned(cls, values: Mapping[str, Any], layer: int, place: tuple[str, ...]) -> MixerConfig:
        """What the pattern has at a layer, where that depends on no depth."""
        plan = cls(**{key: value for key, value in values.items() if key != "layers"})
        if layer >= 0 and not plan.from_end:
            return plan.pattern[(layer + plan.offset) % len(plan.pattern)]
        if layer < 0 and plan.from_end:
            return plan.pattern[(layer - plan.offset) % len(plan.pattern)]
        told = f"needs 'name': what the pattern has there depends on the depth; choices: {', '.join(names('mixer'))}"
        raise ConfigError([(place, told)])

    @property
    def capabilities(self) -> Capability:  # type: ignore[override]
        """What all of them can do."""
        common = ~Capability(0)
        for mixer in (*self.pattern, *self.layers.values()):
            common &= mixer.capabilities
        return common

    def at(self, layer: int, depth: int) -> MixerConfig:  # type: ignore[override]
        """The mixer of one layer. Raises ConfigError where the pattern or `layers` do not fit the depth."""
        items = len(self.pattern)
        if not self.tile and items != depth:
            told = f"names {items} mixers and the stack has {depth} layers; name {depth}, or set tile to true"
            raise ConfigError([(("mixer", "pattern"), told)])
        outside = [key for key in self.layers if not -depth <= key < depth]
        if outside:
            told = f"the stack has {depth} layers; choices: {-depth} to {depth - 1}"
            raise ConfigError([(("mixer", "layers", str(outside[0])), told)])
        place = layer - depth - self.offset if self.from_end else layer + self.offset
        own = self.layers.get(layer, self.layers.get(layer - depth))
        return (own or self.pattern[place % items]).at(layer, depth)

    def for_memory(self) -> MixerConfig | None:
        """The same plan of what reads another sequence: a layer whose own mixer cannot gets the pattern's first that
        can. None where none can."""
        readers = [mixer.for_memory() for mixer in (*self.pattern, *self.layers.values())]
        first = next((mixer for mixer in readers if mixer is not None), None)
        if first is None:
            return None
        return self.model_copy(
            update={
                "pattern": tuple(mixer.for_memory() or first for mixer in self.pattern),
                "layers": {key: mixer.for_memory() or first for key, mixer in self.layers.items()},
            }
        )

    def build(self, slot: Slot) -> Sublayer:
        return self.at(slot.layer, slot.depth).build(slot)


@register("mixer", "hybrid_3to1", paper="Kimi Team 2025, arXiv:2510.26692")
def hybrid_3to1() -> HybridConfig:
    """Three layers of Gated DeltaNet, then one of attention; the last layer is attention at any depth."""
    return HybridConfig(pattern="3*gated_delta+attention", from_end=True)  # type: ignore[arg-type]


@register("mixer", "hybrid_7to1", paper="MiniMax 2025, arXiv:2501.08313")
def hybrid_7to1() -> HybridConfig:
    """Seven layers of lightning attention, then one of attention; the last layer is attention at any depth."""
    return HybridConfig(pattern="7*lightning+attention", from_end=True)  # type: ignore[arg-type]
