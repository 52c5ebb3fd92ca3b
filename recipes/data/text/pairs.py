"""Pairs for sequence-to-sequence models."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from recipes.data.text.padding import IGNORE, length_mask
from recipes.data.text.sequences import Sequences
from zoo.registry import ConfigError

__all__ = ["PairExamples"]

Batch = dict[str, Tensor]


class PairExamples:
    """Source and target rows. Batches are

        source      (B, S) int64
        source_mask (B, S) bool, only where a source is padded
        target      (B, T) int64, what the decoder reads: `start`, then the target without its last token
        labels      (B, T) int64, the target; -100 on padding

    Targets are padded on the right, where a causal decoder needs no mask.

    source, target: as many rows. start: the decoder's first token. eos: ends each target, and is its last label;
    source_eos: ends each source, where a model wants it. limit: rows are cut to this many tokens, eos included.
    """

    def __init__(
        self,
        source: Sequences,
        target: Sequences,
        *,
        start: int,
        eos: int | None,
        source_eos: int | None = None,
        pad: int = 0,
        limit: int | None = None,
    ) -> None:
        if len(source) != len(target):
            raise ConfigError(
                f"should have as many targets as sources, got {len(source)} sources, {len(target)} targets"
            )
        self.source = source.framed(after=source_eos, limit=limit)
        self.labels = target.framed(after=eos, limit=limit)
        self.start = start
        self.pad = pad
        self._targets = self.labels.lengths
        for name, rows in (("source", self.source), ("target", self.labels)):
            empty = np.flatnonzero(rows.lengths == 0)
            if len(empty):
                raise ConfigError(f"the {name} of pair {empty[0]} is empty")

    def __len__(self) -> int:
        return len(self.source)

    @property
    def lengths(self) -> np.ndarray:
        """(N, 2) tokens of each source and target: what `Bucketed` sorts by."""
        return np.stack([self.source.lengths, self._targets], axis=1)

    def batch(self, indices: Sequence[int], key: tuple[int, ...] | None) -> Batch:
        rows = np.asarray(indices, dtype=np.int64)
        source, lengths = self.source.batch(rows, self.pad)
        labels, _ = self.labels.batch(rows, IGNORE)
        target = np.empty_like(labels)
        target[:, :1] = self.start
        target[:, 1:] = labels[:, :-1]
        target[target == IGNORE] = self.pad
        made = {"source": torch.from_numpy(source)}
        mask = length_mask(lengths, source.shape[1])
        if mask is not None:
            made["source_mask"] = mask
        return made | {"target": torch.from_numpy(target), "labels": torch.from_numpy(labels)}

    def targets(self, batch: Batch) -> int:
        return int((batch["labels"] != IGNORE).sum())

    def count_targets(self, indices: Sequence[int], key: tuple[int, ...] | None) -> int:
        return int(self._targets[np.asarray(indices, dtype=np.int64)].sum())
