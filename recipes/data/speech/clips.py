"""What a speech set offers: clips of 16,000 samples a second with their words and speakers, in three splits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from recipes.data.speech.augment import SpeechAugment
from zoo.registry import Config

__all__ = ["Clips", "SpeechData", "SpeechDataConfig", "StoredAudio"]


@dataclass(frozen=True)
class Clips:
    """N clips. A text is "" where nobody speaks; a speaker is "" where none is known."""

    texts: tuple[str, ...]
    speakers: tuple[str, ...]
    lengths: NDArray[np.int64]
    """(N,) samples."""
    read: Callable[[int], Tensor]
    """Samples (L,) fp32 of a clip, by its place here."""

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, rows: Sequence[int]) -> Clips:
        """The clips of some rows."""
        rows = list(rows)
        texts, speakers = (tuple(values[row] for row in rows) for values in (self.texts, self.speakers))
        return Clips(texts, speakers, self.lengths[np.asarray(rows, dtype=np.int64)], _Chosen(self.read, rows))

    @property
    def spoken(self) -> list[int]:
        """Rows with words."""
        return [row for row, text in enumerate(self.texts) if text]


@dataclass(frozen=True)
class SpeechData:
    """Clips in three splits without overlap. `source` says where they come from, in words."""

    train: Clips
    val: Clips
    test: Clips
    source: str
    content_hash: str

    def shortened(self, seconds: float | None, rate: int) -> SpeechData:
        """Without training clips of more than `seconds`: what is evaluated stays whole."""
        if seconds is None:
            return self
        kept = np.flatnonzero(self.train.lengths <= seconds * rate).tolist()
        return self if len(kept) == len(self.train) else replace(self, train=self.train[kept])


class SpeechDataConfig(Config):
    """Base of speech sets, kind "data"."""

    augment: SpeechAugment = SpeechAugment()
    max_seconds: float | None = Field(default=30.0, gt=0)
    """Longer training clips are left out; null: none is."""

    def load(self, seed: int = 0) -> SpeechData:
        """Read, check and split; splits do not depend on `seed`, the run's. Raises ConfigError."""
        raise NotImplementedError


class StoredAudio:
    """Reads clips from one array of int16 samples, end to end; clip i is flat[offsets[i] : offsets[i + 1]]."""

    def __init__(self, flat: NDArray[np.int16], offsets: NDArray[np.int64]) -> None:
        self.flat, self.offsets = flat, offsets

    @classmethod
    def of(cls, clips: Iterable[NDArray[np.int16]]) -> StoredAudio:
        clips = list(clips)
        offsets = np.concatenate([[0], np.cumsum([len(clip) for clip in clips])]).astype(np.int64)
        return cls(np.concatenate(clips), offsets)

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.offsets)

    def __call__(self, row: int) -> Tensor:
        samples = self.flat[self.offsets[row] : self.offsets[row + 1]]
        return torch.from_numpy(samples.astype(np.float32) / 32768)


class _Chosen:
    """Reads by the places of some rows; an object rather than a closure, so that workers may be spawned with it."""

    def __init__(self, read: Callable[[int], Tensor], rows: list[int]) -> None:
        self.inner, self.rows = read, rows

    def __call__(self, row: int) -> Tensor:
        return self.inner(self.rows[row])
