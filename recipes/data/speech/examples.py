"""Batches of clips: log-mel features and the words in tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recipes.data.speech.augment import SpeechAugment, echoed, noisy, spec_augment, tilted, warped
from recipes.data.speech.clips import Clips
from recipes.data.text.draws import Draws
from recipes.data.text.padding import IGNORE
from recipes.data.text.sequences import Sequences
from recipes.data.text.tokenizers import Tokenizer
from zoo.ops.log_mel import HOP, WINDOW, log_mel
from zoo.registry import ConfigError

__all__ = ["SpeechExamples", "levelled", "token_rows"]

Batch = dict[str, Tensor]
MEMORY = 2**28  # bytes of features up to which a set's are kept once they were computed


def levelled(samples: Tensor) -> Tensor:
    """Samples (L,) at a peak of 1, so that loudness tells a model nothing. Digital silence stays as it is."""
    peak = samples.abs().max()
    return samples / peak if peak > 0 else samples


def token_rows(texts: Sequence[str], tokenizer: Tokenizer) -> Sequences:
    """Ids of texts. Raises ConfigError for a text that cannot be written."""
    try:
        return tokenizer.sequences(texts)
    except ValueError as error:
        raise ConfigError(str(error), "data") from None


class SpeechExamples:
    """Clips and their words. Batches are

        source      (B, M, F) fp32, log-mel features of each clip at a peak of 1; 0 on padding
        source_mask (B, F) bool, only where a clip is padded
        target      (B, T) int64, what the decoder reads: `bos`, then the words without their last token
        labels      (B, T) int64, the words and `eos`; -100 on padding

    tokenizer: with pad, bos and eos. limit: words are cut to this many tokens, `eos` included.
    """

    def __init__(
        self,
        clips: Clips,
        tokenizer: Tokenizer,
        augment: SpeechAugment,
        *,
        mels: int,
        floor: float = 8.0,
        limit: int | None = None,
    ) -> None:
        self.clips, self.augment, self.mels, self.floor = clips, augment, mels, floor
        assert tokenizer.bos_id is not None and tokenizer.pad_id is not None
        self.start, self.pad = tokenizer.bos_id, tokenizer.pad_id
        self.labels = token_rows(clips.texts, tokenizer).framed(after=tokenizer.eos_id, limit=limit)
        self._kept: dict[int, Tensor] | None = {} if self.lengths[:, 0].sum() * mels * 4 <= MEMORY else None

    def __len__(self) -> int:
        return len(self.clips)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """(N, 2) frames and tokens of each clip: what `Bucketed` sorts by."""
        return np.stack([np.maximum(self.clips.lengths, WINDOW // 2 + 1) // HOP, self.labels.lengths], axis=1)

    def batch(self, indices: Sequence[int], key: tuple[int, ...] | None) -> Batch:
        rows = np.asarray(indices, dtype=np.int64)
        draws = Draws(key, rows)
        source, mask = self._features(rows, draws, augmented=key is not None)  # (B, M, F), (B, F)
        labels, _ = self.labels.batch(rows, IGNORE)  # (B, T)
        target = np.empty_like(labels)
        target[:, :1] = self.start
        target[:, 1:] = labels[:, :-1]
        target[target == IGNORE] = self.pad
        made = {"source": source}
        if not bool(mask.all()):
            made["source_mask"] = mask
        return made | {"target": torch.from_numpy(target), "labels": torch.from_numpy(labels)}

    def _features(self, rows: NDArray[np.int64], draws: Draws, *, augmented: bool) -> tuple[Tensor, Tensor]:
        """(B, M, F) and the mask (B, F) of the frames. Features of clips as they are, are computed once."""
        noise = self._noise(draws) if augmented else {}
        kept = {} if self._kept is None else self._kept
        found = {place: kept[row] for place, row in enumerate(rows.tolist()) if row in kept and place not in noise}
        missing = [place for place in range(len(rows)) if place not in found]
        if missing:
            clips = [self.clips.read(int(rows[place])) for place in missing]  # (L,) each
            for n, place in enumerate(missing):
                if place in noise:
                    clips[n] = noisy(clips[n], noise[place], draws.generator(place, "noise"))
            for place, x in zip(missing, self._computed(clips), strict=True):
                found[place] = x
                if place not in noise and self._kept is not None:
                    self._kept[int(rows[place])] = x
        frames = torch.tensor([found[place].shape[1] for place in range(len(rows))])  # (B,)
        mask = torch.arange(int(frames.max())) < frames[:, None]  # (B, F)
        source = torch.zeros(len(rows), self.mels, mask.shape[1])
        for place, x in found.items():
            source[place, :, : x.shape[1]] = x
        if augmented and self.augment.warp:
            source = warped(source, self.augment.warp, draws)
        if augmented and self.augment.echo:
            source = echoed(source, frames, self.augment.echo, draws)
        if augmented and self.augment.tilt:
            source = tilted(source, frames, self.augment.tilt, draws)
        if augmented and (self.augment.frequency_masks or self.augment.time_masks):
            source = spec_augment(source, frames, self.augment, draws)
        return source, mask

    def _noise(self, draws: Draws) -> dict[int, float]:
        """Decibels for the clips, by their place, that get noise."""
        chance, level = draws.uniform("noise", 2).T  # (B,) each
        least, most = self.augment.snr
        places = np.flatnonzero(chance < self.augment.noise).tolist()
        return {place: least + (most - least) * float(level[place]) for place in places}

    def _computed(self, clips: list[Tensor]) -> list[Tensor]:
        """Features (M, F) of each clip (L,)."""
        lengths = torch.tensor([len(clip) for clip in clips])
        audio = torch.nn.utils.rnn.pad_sequence([levelled(clip) for clip in clips], batch_first=True)  # (N, L)
        x, mask = log_mel(audio, lengths, mels=self.mels, floor=self.floor)  # (N, M, F), (N, F)
        return [row[:, :size].clone() for row, size in zip(x, mask.sum(1).tolist(), strict=True)]

    def targets(self, batch: Batch) -> int:
        return int((batch["labels"] != IGNORE).sum())

    def count_targets(self, indices: Sequence[int], key: tuple[int, ...] | None) -> int:
        return int(self.labels.lengths_of(np.asarray(indices, dtype=np.int64)).sum())
