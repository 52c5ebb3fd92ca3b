"""Where recipes/, configs/ and benchmarks/ lie: beside zoo/ in a checkout, in zoo/_bundle in a wheel."""

from __future__ import annotations

import sys
from pathlib import Path

__all__ = ["catalogue", "config_dir", "home", "use"]

PACKAGE = Path(__file__).resolve().parent


def home() -> Path:
    """The folder that holds recipes/, configs/ and benchmarks/.

    A checkout's own folders win: an editable install, or a wheel built in place, may leave a stale copy in _bundle.
    """
    checkout = PACKAGE.parent
    if (checkout / "configs" / "config.yaml").is_file() and (checkout / "recipes").is_dir():
        return checkout
    return PACKAGE / "_bundle"


def config_dir() -> Path:
    """Hydra's config folder, absolute: a relative one fails from an installed console script."""
    return home() / "configs"


def use() -> None:
    """Put `home()` first on the import path, so that `recipes` is ours whatever lies in the working directory."""
    place = str(home())
    if sys.path[:1] != [place]:
        sys.path.insert(0, place)


def catalogue(group: str, *more: Path) -> dict[str, str]:
    """Choices of a config group and their one-line descriptions: the first comment line of each file.

    `more` are config folders of the user, as given with --config-dir.
    """
    found: dict[str, str] = {}
    for folder in (config_dir(), *more):
        for file in sorted((folder / group).glob("*.yaml")):
            found.setdefault(file.stem, _first_comment(file))
    return found


def _first_comment(file: Path) -> str:
    for line in file.read_text(encoding="utf-8").splitlines():
        text = line.strip()
        if text and not text.startswith("#"):
            break
        comment = text.lstrip("# ").rstrip()
        if comment and not comment.startswith("@package"):
            return comment
    return ""
