"""What sublayers have to say beside their output while a model trains: losses to be added, and measures.

    with collect() as said:
        loss = F.cross_entropy(model(ids).flatten(0, 1), labels.flatten())
    (loss + said.loss).backward()

Every `Context` made inside the block hands `said` to the sublayers as `context.aux`, so no family's forward needs an
argument for it. Entries stand under the sublayer's place, such as `gpt.3.ffn`: where activation checkpointing runs a
layer again, it writes the same entries again, and none counts twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from torch import Tensor

__all__ = ["Auxiliary", "collect", "collected"]

Entries = dict[tuple[str, str], Tensor]


@dataclass
class Auxiliary:
    """Losses and measures by (place, name)."""

    losses: Entries = field(default_factory=dict)
    """Scalars, each with its coefficient in it."""
    measures: Entries = field(default_factory=dict)
    """Sums over the real tokens, without gradient; those of several forward passes may be added up."""

    @property
    def loss(self) -> Tensor | float:
        """The sum of all losses; 0.0 where there are none."""
        return sum(self.losses.values(), 0.0)

    def named_losses(self) -> dict[str, Tensor]:
        """The losses without gradient, summed over places."""
        named: dict[str, Tensor] = {}
        for (_, name), value in self.losses.items():
            named[name] = named[name] + value.detach() if name in named else value.detach()
        return named


_OPEN: ContextVar[Auxiliary | None] = ContextVar("auxiliary", default=None)


@contextmanager
def collect() -> Iterator[Auxiliary]:
    """What the sublayers say in forward passes inside the block. The innermost block hears it."""
    said = Auxiliary()
    token = _OPEN.set(said)
    try:
        yield said
    finally:
        _OPEN.reset(token)


def collected() -> Auxiliary | None:
    """The innermost open collection; None outside of all."""
    return _OPEN.get()
