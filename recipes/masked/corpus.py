"""A corpus as masked rows: the tokenizer, the rows of each split, and the labelled texts of the downstream task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from recipes.data.text.corpora import Labelled, LabelledText, TextData
from recipes.data.text.sequences import Sequences
from recipes.data.text.tokenizers import Tokenizer
from zoo.registry import ConfigError

__all__ = ["LabelledSplits", "MaskedData", "labelled_splits", "pieces", "rows_of"]


@dataclass(frozen=True)
class LabelledSplits:
    """Labelled texts of the three splits, and the names of the classes."""

    train: tuple[Labelled, ...]
    val: tuple[Labelled, ...]
    test: tuple[Labelled, ...]
    classes: tuple[str, ...]


@dataclass(frozen=True)
class MaskedData:
    """What the recipe trains and evaluates on.

    train: examples that are masked anew in each epoch. val, test: examples whose masks never change. rows: the ids of
    each split without special tokens, cut to the length of a row. labelled: None where the corpus has no classes.
    """

    tokenizer: Tokenizer
    train: Any
    val: Any
    test: Any
    rows: dict[str, Sequences]
    labelled: LabelledSplits | None
    source: str
    content_hash: str


def rows_of(corpus: TextData | LabelledText, tokenizer: Tokenizer, length: int) -> dict[str, Sequences]:
    """Documents of each split as rows of at most `length` ids; a longer document is cut, none is joined to another."""
    return {split: pieces(tokenizer.sequences(getattr(corpus, split)), length) for split in ("train", "val", "test")}


def pieces(rows: Sequences, length: int) -> Sequences:
    """Rows cut into pieces of `length` ids, the last of each row being shorter; empty rows are left out."""
    counts = -(-rows.lengths // length)  # (N,)
    first = np.repeat(np.cumsum(counts) - counts, counts)
    starts = np.repeat(rows.offsets[:-1], counts) + (np.arange(counts.sum()) - first) * length
    return Sequences(rows.flat, np.append(starts, len(rows.flat)).astype(np.int64))


def labelled_splits(corpus: TextData | LabelledText) -> LabelledSplits | None:
    """The labelled texts of a corpus; None where it has none. Raises ConfigError where a split lacks them."""
    if not isinstance(corpus, LabelledText) or not corpus.labelled_train:
        return None
    for split in ("val", "test"):
        if not getattr(corpus, f"labelled_{split}"):
            raise ConfigError(f"has labelled texts to train on but none for {split}; check data.splits", "data")
    return LabelledSplits(corpus.labelled_train, corpus.labelled_val, corpus.labelled_test, corpus.classes)


def split_texts(rows: Sequence[Labelled]) -> tuple[list[str], list[int]]:
    """Texts, and the numbers of their classes."""
    return [text for text, _ in rows], [label for _, label in rows]
