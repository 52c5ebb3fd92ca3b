"""Plain text files as documents."""

from __future__ import annotations

import glob
import re
from pathlib import Path
from typing import Literal

from recipes.data.hub import Splits
from zoo.registry import ConfigError

__all__ = ["SUFFIXES", "Unit", "is_text", "read_text_files"]

SUFFIXES = (".txt", ".text", ".md")
Unit = Literal["document", "paragraph", "line"]


def is_text(path: str) -> bool:
    """Whether a path is plain text: a file or pattern by its suffix, a folder by what lies in it."""
    place = Path(path).expanduser()
    if place.is_dir():
        return any(inner.suffix in SUFFIXES for inner in place.rglob("*"))
    return place.suffix in SUFFIXES


def read_text_files(path: str, splits: Splits, unit: Unit) -> dict[str, list[str]]:
    """Texts of each split. A file is of the split that its name or its first folder below `path` tells, or else of
    training. unit: what is a document: a file, a paragraph (up to an empty line), or a line.

    Raises ConfigError when there is no such file, or one that is no UTF-8.
    """
    place = Path(path).expanduser()
    root = place if place.is_dir() else place.parent
    if place.is_dir():
        files = sorted(inner for inner in place.rglob("*") if inner.suffix in SUFFIXES and inner.is_file())
    else:
        files = [place] if place.is_file() else sorted(map(Path, glob.glob(str(place))))
    if not files:
        raise ConfigError([(("data", "path"), f"no such file or folder '{path}'")])
    names = {name: split for split in ("train", "val", "test") if (name := getattr(splits, split)) is not None}
    found: dict[str, list[str]] = {name: [] for name in names}
    for file in files:
        below = file.relative_to(root).parts if file.is_relative_to(root) else (file.name,)
        split = next((name for name in (below[0], file.stem) if name in names), splits.train)
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ConfigError([(("data", "path"), f"{file} is not UTF-8 (byte {error.start})")]) from None
        found[split] += [part for part in _units(text, unit) if part.strip()]
    return {split: texts for split, texts in found.items() if texts or split == splits.train}


def _units(text: str, unit: Unit) -> list[str]:
    if unit == "document":
        return [text]
    if unit == "line":
        return text.splitlines()
    return [part.strip("\n") for part in re.split(r"\n[ \t]*\n", text)]
