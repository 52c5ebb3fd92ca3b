"""Masked language modelling over rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from recipes.data.text.collators import chosen_for_masking, masked_lm
from recipes.data.text.draws import Draws
from recipes.data.text.padding import IGNORE, length_mask
from recipes.data.text.sequences import Sequences
from recipes.data.text.tokenizers import Tokenizer
from zoo.registry import ConfigError

__all__ = ["MaskedExamples"]

Batch = dict[str, Tensor]


class MaskedExamples:
    """Rows of text between cls and sep, masked anew in each epoch of training, always alike in evaluation. Batches are

        ids        (B, T) int64
        labels     (B, T) int64, the token where it is to be told; -100 elsewhere
        token_mask (B, T) bool, only where a row is padded

    The masks of a row depend on (seed, epoch, row) alone. A short row may have none.

    rows: ids of text, without special tokens. limit: rows are cut to this many tokens, cls and sep included (or cut
    long documents with `Sequences.chunks` before). The others: see `collators.masked_lm`; cls and sep are set as far as
    the tokenizer has them.
    """

    def __init__(
        self,
        rows: Sequences,
        tokenizer: Tokenizer,
        probability: float = 0.15,
        *,
        mask: float = 0.8,
        random: float = 0.1,
        whole_word: bool = False,
        limit: int | None = None,
    ) -> None:
        if not 0 < probability <= 1:
            raise ConfigError(f"probability should be above 0 and at most 1, got {probability}")
        self.tokenizer = tokenizer
        self.rows = rows.framed(tokenizer.cls_id, tokenizer.sep_id, limit)
        self.probability = probability
        self.mask = mask
        self.random = random
        self.pad = tokenizer.pad_id or 0
        self._starts: Sequences | None = None
        if whole_word:  # one pass over all tokens; a row's first token starts a word in any case
            flags = tokenizer.starts_words(self.rows.flat) if len(self.rows.flat) else np.zeros(0, dtype=bool)
            self._starts = Sequences(flags.astype(np.int32), self.rows.offsets)
        masked_lm(
            np.zeros((0, 0), dtype=np.int64),
            tokenizer,
            probability,
            generator=Draws(None, []),
            mask=mask,
            random=random,
        )

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def lengths(self) -> np.ndarray:
        """(N,) tokens of each row."""
        return self.rows.lengths

    def batch(self, indices: Sequence[int], key: tuple[int, ...] | None) -> Batch:
        rows = np.asarray(indices, dtype=np.int64)
        ids, lengths = self.rows.batch(rows, self.pad)
        real = length_mask(lengths, ids.shape[1])
        inputs, labels = masked_lm(
            ids,
            self.tokenizer,
            self.probability,
            generator=Draws(key, rows),
            real=None if real is None else real.numpy(),
            mask=self.mask,
            random=self.random,
            whole_word=self._starts is not None,
            starts=self._word_starts(rows),
        )
        made = {"ids": torch.from_numpy(inputs), "labels": torch.from_numpy(labels)}
        return made if real is None else made | {"token_mask": real}

    def targets(self, batch: Batch) -> int:
        return int((batch["labels"] != IGNORE).sum())

    def count_targets(self, indices: Sequence[int], key: tuple[int, ...] | None) -> int:
        rows = np.asarray(indices, dtype=np.int64)
        ids, lengths = self.rows.batch(rows, self.pad)
        eligible = (ids >= self.tokenizer.first) & (np.arange(ids.shape[1]) < lengths[:, None])
        draws = Draws(key, rows)
        return int(chosen_for_masking(ids, eligible, self.probability, draws, self._word_starts(rows)).sum())

    def _word_starts(self, rows: np.ndarray) -> np.ndarray | None:
        return None if self._starts is None else self._starts.batch(rows, 1)[0].astype(bool)
