"""Documents end to end in full rows, for training; and windows over documents in which each token is scored once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from recipes.data.keys import seed_of
from recipes.data.text.padding import IGNORE, length_mask
from recipes.data.text.sequences import Sequences
from zoo.registry import ConfigError

__all__ = ["PackedExamples", "WindowExamples"]

Batch = dict[str, Tensor]


class PackedExamples:
    """Rows of `length` tokens cut from all documents end to end. Batches are

        ids        (B, T) int64
        labels     (B, T) int64, the next token of the document; -100 at a document's last token
        documents  (B, T) int64, the document of each token, numbered from 0 in each row; only with `isolate`
        token_mask (B, T) bool, False on the padding; only where there is some

    so no document is asked for the first token of the next, and each other token is a label exactly once an epoch. Only
    the last row is padded, and only where the tokens do not come out even.

    documents: ids of each; empty ones are left out. bos, eos: ids set before and after each. isolate: also say which
    document each token is of, so that a model with Capability.DOCUMENTS sees no other. shift: cut the rows elsewhere in
    each epoch of training (the tokens are a ring, and the first row starts at a place drawn from (seed, epoch)).
    """

    def __init__(
        self,
        documents: Sequences,
        length: int,
        *,
        bos: int | None = None,
        eos: int | None = None,
        isolate: bool = False,
        shift: bool = False,
        pad: int = 0,
    ) -> None:
        if length < 1:
            raise ConfigError(f"length should be at least 1, got {length}")
        framed = documents.framed(bos, eos)
        self.flat = framed.flat
        self.length = length
        self.isolate = isolate
        self.shift = shift
        self.pad = pad
        starts = framed.offsets[:-1][framed.lengths > 0]
        self._is_start = np.zeros(len(self.flat), dtype=bool)
        self._is_start[starts] = True
        # Labels among the first i tokens: all but those before a document's start (a ring: the last is before one).
        scored = np.append(~self._is_start[1:], False) if len(self.flat) else np.zeros(0, dtype=bool)
        self._scored_before = np.concatenate([[0], np.cumsum(scored)])

    def __len__(self) -> int:
        return -(-len(self.flat) // self.length)

    @property
    def tokens(self) -> int:
        """Tokens of an epoch."""
        return len(self.flat)

    def batch(self, indices: Sequence[int], key: tuple[int, ...] | None) -> Batch:
        rows = np.asarray(indices, dtype=np.int64)  # (B,)
        total = len(self.flat)
        place = rows[:, None] * self.length + np.arange(self.length)  # (B, T) from the epoch's first token
        lengths = np.minimum(total - rows * self.length, self.length)
        real = None if (lengths == self.length).all() else place < total
        place = (place + self._offset(key)) % total
        following = place + 1
        following[following == total] = 0
        ids = self.flat[place].astype(np.int64)
        labels = self.flat[following].astype(np.int64)
        labels[self._is_start[following]] = IGNORE
        made: Batch = {}
        if real is not None:
            ids[~real], labels[~real] = self.pad, IGNORE
            made["token_mask"] = torch.from_numpy(real)
        if self.isolate:
            begins = self._is_start[place]
            begins[:, 0] = False
            if real is not None:  # the padding is a document of its own
                begins[~real] = False
                rest = np.flatnonzero(lengths < self.length)
                begins[rest, lengths[rest]] = True
            made["documents"] = torch.from_numpy(begins.cumsum(axis=1))
        return {"ids": torch.from_numpy(ids), "labels": torch.from_numpy(labels), **made}

    def targets(self, batch: Batch) -> int:
        return int((batch["labels"] != IGNORE).sum())

    def count_targets(self, indices: Sequence[int], key: tuple[int, ...] | None) -> int:
        rows = np.asarray(indices, dtype=np.int64)
        total, count = len(self.flat), self._scored_before
        if not total:
            return 0
        offset = self._offset(key)
        starts = rows * self.length + offset
        stops = np.minimum(rows * self.length + self.length, total) + offset
        # On the ring, place p >= total is p - total of the next round, which has count[total] labels behind it.
        behind = lambda place: count[place % total] + place // total * count[total]  # noqa: E731
        return int((behind(stops) - behind(starts)).sum())

    def _offset(self, key: tuple[int, ...] | None) -> int:
        return seed_of("offset", *key) % len(self.flat) if self.shift and key is not None else 0


class WindowExamples:
    """Windows of at most `length` tokens over each document, for evaluation: each token but a document's first is
    scored exactly once, and never sees another document.

    Successive windows of a document start `length - context` tokens apart, and only the labels that no window before
    has scored are kept: from the second window on, the first label stands behind `context` tokens that are read and not
    scored. context = 0: windows side by side, so position t of a window has t + 1 tokens to see.

    Batches as those of PackedExamples: ids, labels, token_mask where windows are of unequal lengths.
    documents: ids of each. bos, eos: ids set before and after each; without `bos` the first token of a document is
    never scored.
    """

    def __init__(
        self,
        documents: Sequences,
        length: int,
        *,
        context: int = 0,
        bos: int | None = None,
        eos: int | None = None,
        pad: int = 0,
    ) -> None:
        if length < 1:
            raise ConfigError(f"length should be at least 1, got {length}")
        if not 0 <= context < length:
            raise ConfigError(f"context should be from 0 to below the length {length}, got {context}")
        self.rows = documents.framed(bos, eos)
        self.length = length
        self.context = context
        self.pad = pad
        step = length - context
        predicted = np.maximum(self.rows.lengths - 1, 0)  # labels of each document
        counts = np.where(predicted > 0, 1 + -(-np.maximum(predicted - length, 0) // step), 0)
        number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)  # window within its document
        begin = number * step
        available = np.repeat(predicted, counts) - begin
        self._starts = np.repeat(self.rows.offsets[:-1], counts) + begin
        self._lengths = np.minimum(available, length)
        self._unscored = np.where(number > 0, context, 0)

    def __len__(self) -> int:
        return len(self._starts)

    @property
    def lengths(self) -> np.ndarray:
        """(N,) tokens in each window."""
        return self._lengths

    def batch(self, indices: Sequence[int], key: tuple[int, ...] | None) -> Batch:
        rows = np.asarray(indices, dtype=np.int64)
        lengths = self._lengths[rows]
        width = int(lengths.max(initial=0))
        places = np.arange(width)
        place = self._starts[rows][:, None] + places  # (B, T)
        real = places < lengths[:, None]
        last = len(self.rows.flat) - 1
        ids = self.rows.flat[np.minimum(place, last)].astype(np.int64)
        labels = self.rows.flat[np.minimum(place + 1, last)].astype(np.int64)
        ids[~real] = self.pad
        labels[~real | (places < self._unscored[rows][:, None])] = IGNORE
        made = {"ids": torch.from_numpy(ids), "labels": torch.from_numpy(labels)}
        mask = length_mask(lengths, width)
        return made if mask is None else made | {"token_mask": mask}

    def targets(self, batch: Batch) -> int:
        return int((batch["labels"] != IGNORE).sum())

    def count_targets(self, indices: Sequence[int], key: tuple[int, ...] | None) -> int:
        rows = np.asarray(indices, dtype=np.int64)
        return int((self._lengths[rows] - self._unscored[rows]).sum())
