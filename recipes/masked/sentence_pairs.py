"""Two segments a row, of which the second follows the first or comes from elsewhere (Devlin et al. 2018, task 2)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from recipes.data.text.collators import masked_lm
from recipes.data.text.draws import Draws
from recipes.data.text.padding import IGNORE, length_mask
from recipes.data.text.sequences import Sequences
from recipes.data.text.tokenizers import Tokenizer
from zoo.registry import ConfigError

__all__ = ["SentencePairs"]

Batch = dict[str, Tensor]


class SentencePairs:
    """cls A sep B sep: A and B are neighbouring segments of a document, or B is one of another document, half each.

    Each document is cut into segments of at most (limit - 3) / 2 ids, and at least two; documents of one id are left
    out. Batches are

        ids         (B, T) int64
        labels      (B, T) int64, the masked tokens; -100 elsewhere
        token_types (B, T) int64, 0 up to the first sep, 1 after it and on padding
        next        (B,) int64, 0 where B follows A, 1 where it does not
        token_mask  (B, T) bool, only where a row is padded

    All draws of a row depend on (seed, epoch, row) alone. Masks: see `collators.masked_lm`.
    """

    def __init__(
        self,
        documents: Sequences,
        tokenizer: Tokenizer,
        probability: float = 0.15,
        *,
        mask: float = 0.8,
        random: float = 0.1,
        whole_word: bool = False,
        limit: int = 128,
    ) -> None:
        if tokenizer.cls_id is None or tokenizer.sep_id is None:
            raise ConfigError("next_sentence needs a tokenizer with cls and sep among its special tokens", "task")
        most = (limit - 3) // 2
        if most < 1:
            raise ConfigError(f"should be at least 5 for two segments, got {limit}", "task.length")
        self.tokenizer = tokenizer
        self.masking = {"probability": probability, "mask": mask, "random": random, "whole_word": whole_word}
        starts, owner = [], []
        for number, (start, stop) in enumerate(zip(documents.offsets[:-1], documents.offsets[1:], strict=True)):
            size = int(stop - start)
            if size < 2:
                continue
            parts = max(2, -(-size // most))
            starts.append(start + np.arange(parts) * size // parts)
            owner.append(np.full(parts, number))
        if len(starts) < 2:
            raise ConfigError("next_sentence needs two documents of two tokens or more", "data")
        begin, self.owner = np.concatenate(starts), np.concatenate(owner)  # (S,) segments, in order
        lasts = np.append(begin[1:], 0)
        ends = np.where(np.append(self.owner[1:] == self.owner[:-1], False), lasts, documents.offsets[self.owner + 1])
        self.segments = [documents.flat[start:stop] for start, stop in zip(begin, ends, strict=True)]
        self.firsts = np.flatnonzero(self.owner[1:] == self.owner[:-1])  # segments that have a follower
        sizes = ends - begin
        self.lengths = sizes[self.firsts] + sizes[self.firsts + 1] + 3

    def __len__(self) -> int:
        return len(self.firsts)

    def batch(self, indices: Sequence[int], key: tuple[int, ...] | None) -> Batch:
        numbers = np.asarray(indices, dtype=np.int64)
        draws = Draws(key, numbers)
        first = self.firsts[numbers]  # (B,)
        away = draws.uniform("next", 1)[:, 0] < 0.5
        second = np.where(away, self._elsewhere(first, draws), first + 1)
        cls, sep = self.tokenizer.cls_id, self.tokenizer.sep_id
        rows = [
            [cls, *self.segments[a].tolist(), sep, *self.segments[b].tolist(), sep]
            for a, b in zip(first.tolist(), second.tolist(), strict=True)
        ]
        ids, lengths = Sequences.of(rows).batch(np.arange(len(rows)), self.tokenizer.pad_id or 0)
        real = length_mask(lengths, ids.shape[1])
        after = np.array([len(self.segments[a]) + 2 for a in first.tolist()])  # (B,)
        inputs, labels = masked_lm(
            ids,
            self.tokenizer,
            generator=draws,
            real=None if real is None else real.numpy(),
            **self.masking,  # type: ignore[arg-type]
        )
        made = {
            "ids": torch.from_numpy(inputs),
            "labels": torch.from_numpy(labels),
            "token_types": torch.from_numpy((np.arange(ids.shape[1]) >= after[:, None]).astype(np.int64)),
            "next": torch.from_numpy(away.astype(np.int64)),
        }
        return made if real is None else made | {"token_mask": real}

    def _elsewhere(self, first: np.ndarray, draws: Draws) -> np.ndarray:
        """(B,) for each segment one of another document, all of them being equally likely."""
        low = np.searchsorted(self.owner, self.owner[first], side="left")
        high = np.searchsorted(self.owner, self.owner[first], side="right")
        others = len(self.owner) - (high - low)
        place = (draws.uniform("elsewhere", 1)[:, 0] * others).astype(np.int64)
        return np.where(place < low, place, place + (high - low))

    def targets(self, batch: Batch) -> int:
        return int((batch["labels"] != IGNORE).sum())

    def count_targets(self, indices: Sequence[int], key: tuple[int, ...] | None) -> int:
        return self.targets(self.batch(indices, key))
