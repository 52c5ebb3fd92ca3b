"""Span corruption, prefix and denoising objectives over rows, for encoder-decoder models."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from recipes.data.text.collators import noise_counts, noise_spans, prefix_lm, span_corruption
from recipes.data.text.draws import Draws
from recipes.data.text.padding import IGNORE, length_mask
from recipes.data.text.sequences import Sequences
from recipes.data.text.tokenizers import Tokenizer
from zoo.registry import ConfigError

__all__ = ["PrefixExamples", "RewrittenExamples", "SpanExamples"]

Batch = dict[str, Tensor]
Made = tuple[Sequences, Sequences]


class RewrittenExamples(ABC):
    """Base of examples whose source and target are both made from one row. Batches as those of PairExamples:
    source, source_mask where padded, target (what the decoder reads), labels.

    What a row becomes depends on (seed, epoch, row) alone; in evaluation it is always the same. Rows of fewer than
    `least` tokens are left out. start: the decoder's first token. eos: ends sources and targets.
    """

    least = 1

    def __init__(self, rows: Sequences, tokenizer: Tokenizer, *, start: int, eos: int | None) -> None:
        kept = np.flatnonzero(rows.lengths >= self.least)
        self.rows = rows if len(kept) == len(rows) else Sequences.of([rows[row] for row in kept.tolist()])
        self.tokenizer = tokenizer
        self.start = start
        self.eos = eos
        self.pad = tokenizer.pad_id or 0

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def lengths(self) -> np.ndarray:
        """(N,) tokens of each row before it is rewritten."""
        return self.rows.lengths

    @abstractmethod
    def rewrite(self, rows: np.ndarray, draws: Draws) -> Made:
        """Sources and labels of the rows (B,), without eos."""

    @abstractmethod
    def count_targets(self, indices: Sequence[int], key: tuple[int, ...] | None) -> int:
        """Number of labels in `batch(indices, key)`."""

    def batch(self, indices: Sequence[int], key: tuple[int, ...] | None) -> Batch:
        rows = np.asarray(indices, dtype=np.int64)
        sources, rest = (part.framed(after=self.eos) for part in self.rewrite(rows, Draws(key, rows)))
        places = np.arange(len(rows))
        source, lengths = sources.batch(places, self.pad)
        labels, _ = rest.batch(places, IGNORE)
        target = np.empty_like(labels)
        target[:, :1] = self.start
        target[:, 1:] = labels[:, :-1]
        target[target == IGNORE] = self.pad
        batch = {"source": torch.from_numpy(source)}
        mask = length_mask(lengths, source.shape[1])
        if mask is not None:
            batch["source_mask"] = mask
        return batch | {"target": torch.from_numpy(target), "labels": torch.from_numpy(labels)}

    def targets(self, batch: Batch) -> int:
        return int((batch["labels"] != IGNORE).sum())


class SpanExamples(RewrittenExamples):
    """Span corruption as in T5 (Raffel et al. 2019, arXiv:1910.10683); see `collators.span_corruption`.

    Rows of one length (`Sequences.chunks`) give sources and targets of one length each, `spans_lengths` says which, and
    batches without padding. `row_length` finds the length of rows that fills a source of a given length.
    """

    least = 2

    def __init__(
        self,
        rows: Sequences,
        tokenizer: Tokenizer,
        *,
        start: int,
        eos: int | None,
        density: float = 0.15,
        mean_span: float = 3.0,
    ) -> None:
        super().__init__(rows, tokenizer, start=start, eos=eos)
        if not 0 < density < 1:
            raise ConfigError(f"density should be between 0 and 1, got {density}")
        if mean_span < 1:
            raise ConfigError(f"mean_span should be at least 1, got {mean_span}")
        self.density = density
        self.mean_span = mean_span
        sizes = np.unique(self.rows.lengths)
        counts = {int(size): noise_counts(int(size), density, mean_span) for size in sizes}
        spans = max((count for _, count in counts.values()), default=0)
        if spans > len(tokenizer.sentinel_ids):
            have = len(tokenizer.sentinel_ids)
            raise ConfigError(
                f"rows of up to {sizes[-1]} tokens have {spans} spans, which need as many sentinels; got {have}, "
                f"set tokenizer.sentinels={spans}"
            )
        self._labels = np.zeros(int(sizes[-1]) + 1 if len(sizes) else 1, dtype=np.int64)
        for size, (noise, count) in counts.items():
            self._labels[size] = noise + count + (eos is not None)

    def rewrite(self, rows: np.ndarray, draws: Draws) -> Made:
        ids, lengths = self.rows.batch(rows, self.pad)
        noise = noise_spans(lengths, self.density, self.mean_span, draws)
        real = np.arange(ids.shape[1]) < lengths[:, None]
        return span_corruption(ids, noise, self.tokenizer.sentinel_ids, real=real)

    def count_targets(self, indices: Sequence[int], key: tuple[int, ...] | None) -> int:
        return int(self._labels[self.rows.lengths_of(np.asarray(indices, dtype=np.int64))].sum())

    @staticmethod
    def row_length(source_length: int, density: float = 0.15, mean_span: float = 3.0, *, eos: bool = True) -> int:
        """The most tokens in a row whose source has at most `source_length`. Raises ConfigError when there is none."""
        from recipes.data.text.collators import spans_lengths

        length = 1
        while spans_lengths(length + 1, density, mean_span, eos=eos)[0] <= source_length:
            length += 1
        if length < 2:
            raise ConfigError(f"a source of {source_length} tokens is too short for span corruption")
        return length


class PrefixExamples(RewrittenExamples):
    """Prefix language modelling as in T5: the encoder reads a row up to a random place, the decoder writes the rest."""

    least = 2

    def rewrite(self, rows: np.ndarray, draws: Draws) -> Made:
        cuts = self._cuts(rows, draws).tolist()
        parts = [prefix_lm(self.rows[row], cut) for row, cut in zip(rows.tolist(), cuts, strict=True)]
        return Sequences.of([prefix for prefix, _ in parts]), Sequences.of([rest for _, rest in parts])

    def count_targets(self, indices: Sequence[int], key: tuple[int, ...] | None) -> int:
        rows = np.asarray(indices, dtype=np.int64)
        cuts = self._cuts(rows, Draws(key, rows))
        return int((self.rows.lengths_of(rows) - cuts).sum()) + len(rows) * (self.eos is not None)

    def _cuts(self, rows: np.ndarray, draws: Draws) -> np.ndarray:
        """(B,) from 1 to below each length."""
        return 1 + (draws.uniform("prefix", 1)[:, 0] * (self.rows.lengths_of(rows) - 1)).astype(np.int64)
