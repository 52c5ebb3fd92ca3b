"""Synthesised clips on the disk: one file for each plan, whole or not there, and known by the sha256 of its content."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from recipes.data.speech.clips import StoredAudio
from zoo.files import write_whole

__all__ = ["cache_file", "content_hash", "read_audio", "write_audio"]


def cache_file(name: str, plan: Any) -> Path:
    """Where clips made by `plan`, plain values, are kept: $ZOO_SPEECH_PATH, or a folder of the user's cache."""
    chosen = os.environ.get("ZOO_SPEECH_PATH")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(chosen) if chosen else cache / "architecture-zoo" / "speech"
    key = hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest()
    return folder / f"{name}-{key[:12]}.npz"


def content_hash(audio: StoredAudio) -> str:
    """sha256 over the lengths and samples."""
    total = hashlib.sha256(audio.offsets.astype("<i8").tobytes())
    total.update(audio.flat.astype("<i2").tobytes())
    return total.hexdigest()


def write_audio(path: Path, audio: StoredAudio) -> str:
    """Keep the clips; returns their hash."""
    found = content_hash(audio)
    path.parent.mkdir(parents=True, exist_ok=True)
    parts = {"flat": audio.flat, "offsets": audio.offsets, "sha256": np.array(found)}
    write_whole(path, lambda file: np.savez(file, **parts))
    return found


def read_audio(path: Path) -> tuple[StoredAudio, str] | None:
    """The clips and their hash; None where there are none, or where they are not what was written."""
    try:
        with np.load(path) as held:
            audio, told = StoredAudio(held["flat"], held["offsets"]), str(held["sha256"])
    except (OSError, ValueError, KeyError, EOFError):
        return None
    return (audio, told) if content_hash(audio) == told else None
