"""What a text corpus offers: three splits of documents, of pairs, or of labelled texts, in plain strings."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from zoo.registry import Config, ConfigError

__all__ = [
    "Labelled",
    "LabelledText",
    "LabelledTextConfig",
    "Pair",
    "PairData",
    "PairDataConfig",
    "TextData",
    "TextDataConfig",
    "check_splits",
    "text_hash",
]

Labelled = tuple[str, int]
"""A text and the number of its class."""


@dataclass(frozen=True)
class TextData:
    """Documents in three splits without overlap. `source` says where they come from, in words."""

    train: tuple[str, ...]
    val: tuple[str, ...]
    test: tuple[str, ...]
    source: str
    content_hash: str


@dataclass(frozen=True)
class Pair:
    """A source text and its target. `references`: every right answer, `target` among them."""

    source: str
    target: str
    references: tuple[str, ...]


@dataclass(frozen=True)
class PairData:
    """Pairs in three splits without overlap of sources."""

    train: tuple[Pair, ...]
    val: tuple[Pair, ...]
    test: tuple[Pair, ...]
    source: str
    content_hash: str


@dataclass(frozen=True)
class LabelledText:
    """Texts in three splits for pre-training, and labelled texts of the same splits for a downstream task.

    labelled_*: (text, number of its class in `classes`).
    """

    train: tuple[str, ...]
    val: tuple[str, ...]
    test: tuple[str, ...]
    labelled_train: tuple[Labelled, ...]
    labelled_val: tuple[Labelled, ...]
    labelled_test: tuple[Labelled, ...]
    classes: tuple[str, ...]
    source: str
    content_hash: str


class TextDataConfig(Config):
    """Base of corpora of documents, kind "data"."""

    def load(self, seed: int = 0) -> TextData:
        """Read, check and split the corpus; splits do not depend on `seed`, the run's. Raises ConfigError."""
        raise NotImplementedError


class PairDataConfig(Config):
    """Base of corpora of pairs, kind "data"."""

    def load(self, seed: int = 0) -> PairData:
        """Read, check and split the corpus; splits do not depend on `seed`, the run's. Raises ConfigError."""
        raise NotImplementedError


class LabelledTextConfig(Config):
    """Base of corpora of labelled texts, kind "data"."""

    def load(self, seed: int = 0) -> LabelledText:
        """Read, check and split the corpus; splits do not depend on `seed`, the run's. Raises ConfigError."""
        raise NotImplementedError


def text_hash(texts: Iterable[str]) -> str:
    """sha256 over texts in order, in hexadecimal. Their lengths count: ["ab", "c"] is not ["a", "bc"]."""
    total = hashlib.sha256()
    for text in texts:
        encoded = text.encode("utf-8")
        total.update(len(encoded).to_bytes(8, "little") + encoded)
    return total.hexdigest()


def check_splits(name: str, **splits: Any) -> None:
    """Raises ConfigError when a split is empty."""
    for split, rows in splits.items():
        if not len(rows):
            raise ConfigError([(("data",), f"{name} leaves nothing for the {split} split")])
