"""`spoken_digits`: strings of digits in the voices of eSpeak NG, the embedded default of speech recognition."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from recipes.data.keys import seed_of
from recipes.data.speech import espeak
from recipes.data.speech.augment import noisy
from recipes.data.speech.cache import cache_file, read_audio, write_audio
from recipes.data.speech.clips import Clips, SpeechData, SpeechDataConfig, StoredAudio
from recipes.data.speech.silence import SILENCES, nobody_speaks
from recipes.data.speech.voices import INSTALL, split_voices, voices
from recipes.data.splitting import by_name
from zoo.ops.log_mel import SAMPLE_RATE
from zoo.registry import ConfigError, register

__all__ = ["DIGITS", "SpokenDigits", "Utterance"]

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
VERSION = 0  # raised when the content changes, so that old clips are not found
HELD = 0.1  # share of the strings that training never has
MARGIN = 0.15  # most seconds of silence before and after the words


@dataclass(frozen=True)
class Utterance:
    """One clip to be made. `voice` is "" where nobody speaks; `text` is then the kind of silence."""

    split: str
    seed: int
    voice: str
    text: str
    rate: int = 175
    pitch: int = 50

    @property
    def words(self) -> str:
        return self.text if self.voice else ""


@register("data", "spoken_digits")
class SpokenDigits(SpeechDataConfig):
    """Strings of one to four digits spoken by eSpeak NG (GPL-3.0-or-later, extra: speech) in 99 voices.

    Synthetic: its error rates say nothing of human speech. 69 of the voices train; 7 are kept for validation
    and 23 for the test, whole families. Both splits have, beside their unseen voices, as many clips of training voices
    with strings that training never has (of two digits and more), and a few without speech. Rates are 130 to 220 words
    a minute, pitches 25 to 75, and white noise lies 10 to 35 dB below the voice. Clips are made once, in a process of
    their own, and kept in the user's cache. What they are depends on these numbers only, not on the run's seed.
    """

    clips: int = Field(default=1600, ge=1)
    """For training."""
    held_clips: int = Field(default=240, ge=1)
    """Of unseen voices, for validation and for the test each."""
    silent_clips: int = Field(default=64, ge=0)
    """Training clips without speech; an eighth as many in the other splits."""
    accents: tuple[str, ...] = Field(default=("en-us",), min_length=1)
    """Languages of eSpeak NG by turns: en-us, en-gb-x-rp, en-gb-scotland, en-029, en-us-nyc, en-gb-x-gbclan."""

    def load(self, seed: int = 0) -> SpeechData:
        told = self.plan()
        release = version("espeakng-loader")
        path = cache_file("spoken_digits", [VERSION, release, [vars(one) for one in told]])
        held = read_audio(path)
        if held is None:
            audio = synthesised(told)
            held = audio, write_audio(path, audio)
        audio, content = held
        texts, speakers = tuple(one.words for one in told), tuple(one.voice for one in told)
        whole = Clips(texts, speakers, audio.lengths, audio)
        rows = {
            split: [row for row, one in enumerate(told) if one.split == split] for split in ("train", "val", "test")
        }
        splits = {split: whole[chosen] for split, chosen in rows.items()}
        return SpeechData(
            **splits, source=f"digits spoken by eSpeak NG (espeakng-loader {release})", content_hash=content
        )

    def plan(self) -> list[Utterance]:
        """All clips, in the order in which they are made. Raises ConfigError where eSpeak NG is not installed."""
        by_split = split_voices(voices())
        told = []
        for split, count in (("train", self.clips), ("val", self.held_clips), ("test", self.held_clips)):
            told += self._spoken(split, by_split[split], count, "own")
            if split != "train":
                told += self._spoken(split, by_split["train"], count, "seen")
            silent = self.silent_clips if split == "train" else -(-self.silent_clips // 8)
            kinds = [SILENCES[n % len(SILENCES)] for n in range(silent)]
            told += [Utterance(split, seed_of(split, "silence", n), "", kind) for n, kind in enumerate(kinds)]
        return told

    def _spoken(self, split: str, names: Any, count: int, purpose: str) -> list[Utterance]:
        found = []
        for n in range(count):
            draw = np.random.default_rng(seed_of("spoken_digits", VERSION, split, purpose, n))
            digits = draw.integers(10, size=int(draw.integers(1, 5)))
            while len(digits) > 1 and is_held(digits) is (split == "train"):
                digits = draw.integers(10, size=len(digits))
            voice = f"{self.accents[n % len(self.accents)]}+{names[n % len(names)]}"
            rate, pitch = int(draw.integers(130, 221)), int(draw.integers(25, 76))
            text = " ".join(DIGITS[digit] for digit in digits)
            found.append(Utterance(split, int(draw.integers(2**31)), voice, text, rate, pitch))
        return found


def is_held(digits: NDArray[np.int64]) -> bool:
    """Whether a string is one that training never has."""
    return by_name("".join(map(str, digits))) < HELD


def synthesised(told: list[Utterance]) -> StoredAudio:
    """The clips of a plan: voices at 16,000 hertz with silence around and noise over them, int16."""
    from torchaudio.transforms import Resample

    spoken, rate = run_espeak([vars(one) for one in told if one.voice])
    resample, voiced = Resample(rate, SAMPLE_RATE), iter(range(len(spoken.lengths)))
    clips = []
    for one in told:
        draw = np.random.default_rng(one.seed)
        if one.voice:
            samples = resample(spoken(next(voiced)))  # (L,)
            before, after = (int(share * MARGIN * SAMPLE_RATE) for share in draw.random(2))
            loud = samples / samples.abs().max().clamp(min=1e-4)
            clip = noisy(torch.nn.functional.pad(loud, (before, after)), draw.uniform(10, 35), draw)
            clip = clip * draw.uniform(0.2, 0.9) / clip.abs().max()
        else:
            clip = nobody_speaks(one.text, draw)
        clips.append((clip * 32767).round().numpy().astype(np.int16))
    return StoredAudio.of(clips)


def run_espeak(plan: list[dict[str, Any]]) -> tuple[StoredAudio, int]:
    """What eSpeak NG says, in a fresh process, and its sample rate. Raises ConfigError."""
    with TemporaryDirectory() as folder:
        asked, made = Path(folder, "plan.json"), Path(folder, "speech.npz")
        asked.write_text(json.dumps(plan), encoding="utf-8")
        command = [sys.executable, espeak.__file__, str(asked), str(made)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            why = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
            raise ConfigError(f"eSpeak NG failed: {why}; {INSTALL}", "data")
        with np.load(made) as held:
            return StoredAudio(held["flat"], held["offsets"]), int(held["rate"])
