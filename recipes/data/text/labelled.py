"""Labelled rows for classification."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from recipes.data.text.padding import length_mask
from recipes.data.text.sequences import Sequences
from zoo.registry import ConfigError

__all__ = ["LabelledExamples"]

Batch = dict[str, Tensor]


class LabelledExamples:
    """Rows of ids with a class each: {"ids" (B, T) int64, "token_mask" (B, T) bool where padded, "label" (B,) int64}.

    cls, sep: ids set before and after each row, as far as given. limit: rows are cut to this many tokens, these two
    included.
    """

    def __init__(
        self,
        rows: Sequences,
        labels: Sequence[int],
        *,
        cls: int | None = None,
        sep: int | None = None,
        pad: int = 0,
        limit: int | None = None,
    ) -> None:
        if len(rows) != len(labels):
            raise ConfigError(f"should have as many labels as rows, got {len(rows)} rows, {len(labels)} labels")
        self.rows = rows.framed(cls, sep, limit)
        self.labels = torch.tensor(list(labels), dtype=torch.int64)
        self.pad = pad

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def lengths(self) -> np.ndarray:
        """(N,) tokens of each row."""
        return self.rows.lengths

    def batch(self, indices: Sequence[int], key: tuple[int, ...] | None) -> Batch:
        rows = np.asarray(indices, dtype=np.int64)
        ids, lengths = self.rows.batch(rows, self.pad)
        made = {"ids": torch.from_numpy(ids), "label": self.labels[torch.from_numpy(rows)]}
        mask = length_mask(lengths, ids.shape[1])
        return made if mask is None else made | {"token_mask": mask}

    def targets(self, batch: Batch) -> int:
        return len(batch["label"])

    def count_targets(self, indices: Sequence[int], key: tuple[int, ...] | None) -> int:
        return len(indices)
