"""Two sets of examples one after the other in one training run: pre-training, then the task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from recipes.data.keys import seed_of
from zoo.registry import ConfigError

__all__ = ["Phases"]

Batch = dict[str, Tensor]
Bounds = list[tuple[int, int]]


class _Ordered(Protocol):
    order_identity: Any

    def __len__(self) -> int: ...
    def batch(self, indices: Sequence[int], key: tuple[int, ...] | None) -> Batch: ...
    def targets(self, batch: Batch) -> int: ...
    def count_targets(self, indices: Sequence[int], key: tuple[int, ...] | None) -> int: ...
    def epoch_order(self, key: tuple[int, ...] | None, bounds: Bounds) -> tuple[list[int], list[int]]: ...


class Phases:
    """Examples for EpochLoader: `steps` batches of `first`, then batches of `second` to the end.

    The loader's epochs are stretches of `steps` batches here, so that the second phase starts with one and everything
    the loader does for epochs (resume, windows, ranks) holds for phases. Example number i of a stretch is the i-th of
    the stream of the phase, which goes through epoch after epoch of its set; the last batch of such an epoch is left
    out where it is not full. size: examples of a global batch, of all ranks.
    """

    def __init__(self, first: _Ordered, second: _Ordered, *, steps: int, size: int, seed: int) -> None:
        for name, examples in (("pre-training", first), ("training", second)):
            if len(examples) < size:
                raise ConfigError(f"{len(examples)} {name} examples are too few for a batch of {size}")
        self.parts = (first, second)
        self.steps, self.size, self.seed = steps, size, seed
        self._orders: dict[tuple[int, int], np.ndarray] = {}

    def __len__(self) -> int:
        return self.steps * self.size

    @property
    def order_identity(self) -> int:
        """A number of all that the order depends on beside the loader's own settings."""
        return seed_of("phases", self.steps, self.size, *(part.order_identity for part in self.parts))

    def epoch_bounds(self, size: int, ranks: int) -> None:
        """Equal batches, as the loader makes them."""
        if size != self.size:
            raise ConfigError(f"these phases are made for batches of {self.size}, got {size}")

    def epoch_order(self, key: tuple[int, ...] | None, bounds: Bounds) -> tuple[list[int], list[int]]:
        """As the examples are numbered."""
        return list(range(len(self))), list(range(len(bounds)))

    def batch(self, indices: Sequence[int], key: tuple[int, ...] | None) -> Batch:
        ((part, rows, inner),) = self._places(indices, key)
        return part.batch(rows, inner)

    def targets(self, batch: Batch) -> int:
        return self.parts[1].targets(batch)

    def count_targets(self, indices: Sequence[int], key: tuple[int, ...] | None) -> int:
        return sum(part.count_targets(rows, inner) for part, rows, inner in self._places(indices, key))

    def _places(
        self, indices: Sequence[int], key: tuple[int, ...] | None
    ) -> list[tuple[_Ordered, list[int], tuple[int, int]]]:
        """Which rows of which phase, under the key of which of its epochs. One entry for the examples of a batch."""
        epoch = 0 if key is None else key[1]
        phase = min(epoch, 1)
        part = self.parts[phase]
        whole = len(part) // self.size * self.size
        stream = np.asarray(indices, dtype=np.int64) + max(epoch - 1, 0) * len(self)
        found = []
        for turn in np.unique(stream // whole).tolist():
            places = stream[stream // whole == turn] % whole
            found.append((part, self._order(phase, turn)[places].tolist(), (self.seed, turn)))
        return found

    def _order(self, phase: int, turn: int) -> np.ndarray:
        """Rows of one epoch of a phase, batch after batch. The two used last are kept."""
        if (phase, turn) not in self._orders:
            part = self.parts[phase]
            full = [(start, start + self.size) for start in range(0, len(part) - self.size + 1, self.size)]
            rows, batches = part.epoch_order((self.seed, turn), full)
            made = np.asarray([row for batch in batches for row in rows[slice(*full[batch])]], dtype=np.int64)
            kept = list(self._orders.items())[-1:]
            self._orders = dict([*kept, ((phase, turn), made)])
        return self._orders[phase, turn]
