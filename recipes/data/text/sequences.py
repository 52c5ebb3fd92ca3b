"""Rows of ids of any lengths, kept in one flat array, so that a batch is one indexing operation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["Sequences"]

Ids = NDArray[np.int32]


class Sequences:
    """N rows of ids. `flat` (total,) int32 holds them end to end, row i at flat[offsets[i] : offsets[i + 1]]."""

    def __init__(self, flat: Ids, offsets: NDArray[np.int64]) -> None:
        self.flat = flat
        self.offsets = offsets

    @classmethod
    def of(cls, rows: Iterable[Sequence[int] | NDArray]) -> Sequences:
        """From rows of ids: lists or arrays."""
        arrays = [np.asarray(row, dtype=np.int32) for row in rows]
        offsets = np.zeros(len(arrays) + 1, dtype=np.int64)
        np.cumsum([len(row) for row in arrays], out=offsets[1:])
        return cls(np.concatenate(arrays) if arrays else np.zeros(0, dtype=np.int32), offsets)

    @classmethod
    def join(cls, parts: Sequence[Sequences]) -> Sequences:
        """The rows of several, one after another."""
        lengths = np.concatenate([part.lengths for part in parts]) if parts else np.zeros(0, dtype=np.int64)
        flat = np.concatenate([part.flat for part in parts]) if parts else np.zeros(0, dtype=np.int32)
        return cls(flat, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> Ids:
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        row %= len(self)
        return self.flat[self.offsets[row] : self.offsets[row + 1]]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """(N,) ids in each row."""
        return np.diff(self.offsets)

    def lengths_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """(B,) ids in each of the rows (B,)."""
        return self.offsets[rows + 1] - self.offsets[rows]

    def framed(self, before: int | None = None, after: int | None = None, limit: int | None = None) -> Sequences:
        """The rows, cut to at most `limit` ids in all, with an id before and one after each, where these are given."""
        extra = (before is not None) + (after is not None)
        lengths = self.lengths
        if limit is not None:
            if limit < extra:
                raise ValueError(f"limit should be at least {extra}, got {limit}")
            lengths = np.minimum(lengths, limit - extra)
        offsets = np.concatenate([[0], np.cumsum(lengths + extra)]).astype(np.int64)
        flat = np.empty(offsets[-1], dtype=np.int32)
        if before is not None:
            flat[offsets[:-1]] = before
        if after is not None:
            flat[offsets[1:] - 1] = after
        # Where each kept id comes from, and where it goes: its row's start, and its place in the row.
        place = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        source = np.repeat(self.offsets[:-1], lengths) + place
        goal = np.repeat(offsets[:-1] + (before is not None), lengths) + place
        flat[goal] = self.flat[source]
        return Sequences(flat, offsets)

    def chunks(self, length: int) -> Sequences:
        """All ids end to end, cut into rows of exactly `length`. Every id is used; where they do not come out even, the
        last row starts earlier and repeats some. Fewer than `length` ids are one short row, none are no row."""
        if length < 1:
            raise ValueError(f"length should be at least 1, got {length}")
        total = len(self.flat)
        if total <= length:
            return Sequences.of([self.flat] if total else [])
        starts = np.minimum(np.arange(0, total, length), total - length)
        flat = self.flat[starts[:, None] + np.arange(length)].reshape(-1)
        return Sequences(flat, np.arange(len(starts) + 1, dtype=np.int64) * length)

    def batch(self, rows: NDArray[np.int64], fill: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rows (B,) as ids (B, T), filled up with `fill` on the right, and their lengths (B,); both int64."""
        starts = self.offsets[rows]  # (B,)
        lengths = self.offsets[rows + 1] - starts  # (B,)
        width = int(lengths.max(initial=0))
        places = np.arange(width)  # (T,)
        index = starts[:, None] + places  # (B, T)
        np.minimum(index, max(len(self.flat) - 1, 0), out=index)
        ids = self.flat[index].astype(np.int64) if width else np.zeros((len(rows), 0), dtype=np.int64)
        if width and int(lengths.min()) < width:
            ids[places >= lengths[:, None]] = fill
        return ids, lengths
