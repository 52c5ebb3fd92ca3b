"""A folder of small recordings: a word is a tone, so that a model learns it in seconds; and settings of a tiny run."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

TONES = {"low": 300.0, "mid": 900.0, "high": 2700.0}
RATE = 8000


def tones(words: list[str], rate: int = RATE, seconds: float = 0.2) -> np.ndarray:
    """Samples (L,) of the words' tones, one after another, over faint noise."""
    time = np.arange(int(rate * seconds)) / rate
    sound = [0.5 * np.sin(2 * np.pi * TONES[word] * time) for word in words]
    return (np.concatenate(sound) + 1e-3 * np.random.default_rng(0).standard_normal(len(time) * len(words))).astype(
        "f4"
    )


def quiet(seconds: float, rate: int = RATE) -> np.ndarray:
    """Samples (L,) of a pause."""
    return (1e-3 * np.random.default_rng(0).standard_normal(int(rate * seconds))).astype("f4")


def write_recordings(folder: Path, rows: int = 96, suffix: str = ".wav", margin: float = 0.0) -> Path:
    """transcripts.csv and its files, with up to `margin` seconds before and after the words; speakers a to h."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(1)
    with (folder / "transcripts.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["file", "text", "speaker"])
        for row in range(rows):
            words = draw.choice(list(TONES), size=draw.integers(1, 4)).tolist()
            before, after = (quiet(margin * share) for share in draw.random(2))
            sound = np.concatenate([before, tones(words), after])
            soundfile.write(folder / f"{row}{suffix}", sound, RATE)
            table.writerow([f"{row}{suffix}", " ".join(words).upper(), "abcdefgh"[row % 8]])
    return folder


def speech_settings(folder: Path, **changes: Any) -> dict[str, Any]:
    """Settings of a Whisper that trains a few steps; groups are merged key by key."""
    settings: dict[str, Any] = {
        "name": "whisper",
        "seed": 0,
        "mode": "train",
        "checkpoint": None,
        "resume": None,
        "model": {
            "family": "whisper", "dim": 16, "depth": 1, "heads": 2, "mels": 16, "strides": [2, 2], "init_std": "fan_in"
        },
        "data": {
            "name": "audio_folder", "path": str(folder),
            "augment": {"noise": 0.5, "frequency_masks": 1, "frequency_width": 2, "time_masks": 1},
        },
        "optim": {"name": "adamw", "lr": 1e-2, "ema": 0.9, "schedule": {"name": "wsd", "warmup": 2}},
        "trainer": {"max_steps": 6, "log_every_n_steps": 2, "save_every": 3, "val_check_interval": 3},
        "logger": {"name": "csv"},
        "task": {"batch_size": 16, "tokenizer": {"name": "words"}, "samples": 2},
    }  # fmt: skip
    for key, value in changes.items():
        settings[key] = {**settings[key], **value} if isinstance(value, dict) else value
    return settings
