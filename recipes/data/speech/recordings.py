"""Recordings in files or in the cells of a table, decoded one by one by soundfile as they are needed."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zoo.ops.log_mel import SAMPLE_RATE
from zoo.registry import ConfigError
from zoo.speech.audio import load_audio, mono

__all__ = ["FileAudio", "TableAudio", "text_of"]


def text_of(text: str, lowercase: bool) -> str:
    """Words with one space between them; "" for names such as _silence_."""
    words = " ".join(text.split())
    if words.startswith("_") and words.endswith("_"):
        return ""
    return words.lower() if lowercase else words


class FileAudio:
    """Reads clips from files; their lengths come from their headers. Raises ConfigError that names a broken one."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = list(paths)

    def lengths(self) -> NDArray[np.int64]:
        return _lengths(self.paths, lambda path: (str(path), str(path)))

    def __call__(self, row: int) -> Tensor:
        return load_audio(self.paths[row])


class TableAudio:
    """Reads clips from a column of {"bytes", "path"}, as sets of the Hub have it when they are not decoded.

    torchcodec, which `datasets` would decode with, is not needed.
    """

    def __init__(self, table: Any, column: str, place: str) -> None:
        self.table, self.column, self.place = table, column, place

    def lengths(self) -> NDArray[np.int64]:
        return _lengths(range(len(self.table)), self._source)

    def __call__(self, row: int) -> Tensor:
        soundfile = _soundfile()
        source, name = self._source(row)
        try:
            samples, rate = soundfile.read(source, dtype="float32", always_2d=True)  # (L, channels)
        except (soundfile.SoundFileError, OSError) as error:
            raise ConfigError(f"{name} cannot be read as audio: {str(error).splitlines()[0]}", "data") from None
        try:
            return mono(torch.from_numpy(samples.T), rate)
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}", "data") from None

    def _source(self, row: int) -> tuple[Any, str]:
        cell = self.table[int(row)][self.column] or {}
        name = f"row {row} of {self.place}"
        if cell.get("bytes"):
            return io.BytesIO(cell["bytes"]), name
        if cell.get("path") and Path(cell["path"]).is_file():
            return cell["path"], name
        raise ConfigError(f"{name} holds no audio in '{self.column}'", "data")


def _lengths(things: Sequence[Any], source: Callable[[Any], tuple[Any, str]]) -> NDArray[np.int64]:
    """(N,) samples after resampling, from the headers alone."""
    soundfile = _soundfile()
    found = []
    for thing in things:
        opened, name = source(thing)
        try:
            told = soundfile.info(opened)
        except (soundfile.SoundFileError, OSError) as error:
            raise ConfigError(f"{name} cannot be read as audio: {str(error).splitlines()[0]}", "data") from None
        if not told.frames:
            raise ConfigError(f"{name} holds no sample", "data")
        found.append(-(-told.frames * SAMPLE_RATE // told.samplerate))
    return np.array(found, dtype=np.int64)


def _soundfile() -> Any:
    try:
        import soundfile
    except ImportError:
        raise ConfigError("recordings need soundfile; pip install 'architecture-zoo[speech]'", "data") from None
    return soundfile
