"""Rows of one batch, each with its own number of real tokens: what every state counts."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["Rows"]


class Rows:
    """Rows with their own number of real tokens."""

    def __init__(self, batch: int, device: torch.device) -> None:
        self.batch, self.device = batch, device
        self.uniform: int | None = 0  # the common count, known without asking the device; None once rows differ
        self._counts: Tensor | None = None  # (B,), only once rows differ: equal rows cost no tensor operation

    @property
    def counts(self) -> Tensor:
        """(B,) real tokens seen, per row."""
        if self.uniform is None:
            assert self._counts is not None
            return self._counts
        return torch.full((self.batch,), self.uniform, dtype=torch.long, device=self.device)

    @property
    def length(self) -> Tensor:
        """(B,) real tokens seen, per row."""
        return self.counts

    @property
    def seen(self) -> Tensor | int:
        """The same as one int while all rows agree, which asks nothing of the device."""
        return self.counts if self.uniform is None else self.uniform

    def advance_rows(self, tokens: int, token_mask: Tensor | None) -> None:
        if token_mask is None and self.uniform is not None:
            self.uniform += tokens
        else:
            self._counts = self.counts + (tokens if token_mask is None else token_mask.sum(-1))
            self.uniform = None

    def can_truncate(self, tokens: int) -> bool:
        """Whether `truncate(tokens)` is possible."""
        return True

    def truncate(self, tokens: int) -> None:
        """Forget all but the first `tokens` of every row; shorter rows stay as they are."""
        if self.uniform is not None:
            self.uniform = min(self.uniform, tokens)
        else:
            self._counts = self.counts.clamp(max=tokens)

    def reorder_counts(self, rows: Tensor) -> None:
        if self._counts is not None:
            self._counts = self._counts.index_select(0, rows)
        self.batch = rows.shape[0]

    def same_rows(self, rows: Tensor) -> bool:
        """True where `rows` is known to leave all as it is; a device is not asked."""
        return (
            rows.device.type == "cpu"
            and rows.shape[0] == self.batch
            and torch.equal(rows, torch.arange(self.batch, dtype=rows.dtype))
        )
