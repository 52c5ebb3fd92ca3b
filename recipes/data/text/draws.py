"""Random numbers by place: what is drawn for an example depends on (seed, epoch, example) alone, not on its batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from recipes.data.keys import seed_of

__all__ = ["Draws"]


class Draws:
    """Uniform numbers for B rows, from a hash of (key, row's number, purpose, place): whole batches are drawn at once,
    and each row gets what it would get alone.

    rows: (B,) numbers of the rows. key: (seed, epoch); None, as in evaluation, is a key too: always the same.
    """

    def __init__(self, key: tuple[int, ...] | None, rows: Sequence[int] | NDArray[np.int64]) -> None:
        self._key = key
        self._rows = _mixed(np.asarray(rows, dtype=np.uint64))

    @classmethod
    def of(cls, source: torch.Generator | Draws, rows: int) -> Draws:
        """Draws for `rows` rows from a generator; draws stay as they are."""
        if isinstance(source, Draws):
            return source
        return cls((int(torch.randint(2**62, (), generator=source)),), np.arange(rows))

    def __getitem__(self, places: NDArray[np.int64]) -> Draws:
        """The draws of some of the rows, by their places in the batch."""
        some = Draws.__new__(Draws)
        some._key, some._rows = self._key, self._rows[places]
        return some

    def uniform(self, purpose: str, places: int) -> NDArray[np.float64]:
        """(B, places) in [0, 1)."""
        base = np.uint64(seed_of(purpose, *self._key) if self._key is not None else seed_of(purpose))
        columns = _mixed(np.arange(places, dtype=np.uint64) + (base << np.uint64(20)))  # (places,)
        bits = _mixed(self._rows[:, None] ^ columns) >> np.uint64(11)  # (B, places) 53 bits
        return bits.astype(np.float64) * 2.0**-53

    def generator(self, row: int, purpose: str) -> np.random.Generator:
        """A numpy generator for one row, by its place in the batch; for what cannot be drawn for all at once."""
        key = self._key if self._key is not None else ("evaluation",)
        return np.random.default_rng(seed_of(purpose, *key, int(self._rows[row])))


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """splitmix64 (Steele et al. 2014), whose outputs of neighbouring inputs look independent."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
