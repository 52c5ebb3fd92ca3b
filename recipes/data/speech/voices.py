"""The voices of eSpeak NG by family, so that unseen voices are of unseen families.

A family is a name without the digits behind it: klatt, klatt2 ... klatt6. Left out are `adam`, which is klatt6 again,
`fast`, which is the plain voice, the whispers, which are no voices, and names with spaces, which cannot be asked for.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from recipes.data.splitting import by_name
from zoo.registry import ConfigError

__all__ = ["INSTALL", "family", "split_voices", "voices"]

INSTALL = "pip install 'architecture-zoo[speech]'"
DOUBLES = ("adam", "fast")
TEST, VALIDATION = 0.28, 0.12
"""Share of the families for the test, and of all others for validation."""


def voices() -> list[str]:
    """Names of the installed voices, sorted, without importing the package. Raises ConfigError where it is absent."""
    spec = find_spec("espeakng_loader")
    places = list(spec.submodule_search_locations or []) if spec else []
    folder = Path(places[0], "espeak-ng-data", "voices", "!v") if places else None
    if folder is None or not folder.is_dir():
        raise ConfigError(f"'spoken_digits' needs the package espeakng-loader; {INSTALL}", "data")
    names = sorted(path.name for path in folder.iterdir())
    return [name for name in names if name not in DOUBLES and " " not in name and not name.startswith("whisper")]


def family(voice: str) -> str:
    """mike2 and Mike are one family."""
    return voice.rstrip("0123456789").lower()


def split_voices(names: Iterable[str]) -> dict[str, list[str]]:
    """Voices of train, val and test: whole families, by the sha1 of their name."""
    found: dict[str, list[str]] = {"train": [], "val": [], "test": []}
    for name in names:
        home = family(name)
        held = by_name(f"validation {home}") < VALIDATION
        found["test" if by_name(home) < TEST else "val" if held else "train"].append(name)
    return found
