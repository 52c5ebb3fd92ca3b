"""The words of `python -m zoo.run`, taken apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from zoo.cli.errors import refuse

__all__ = ["Options", "read_options"]


@dataclass
class Options:
    """What stands on a command line: overrides (key=value) and flags."""

    overrides: list[str] = field(default_factory=list)
    multirun: bool = False
    cfg: bool = False
    help: bool = False
    config_dirs: list[Path] = field(default_factory=list)

    def value(self, key: str) -> str | None:
        """What the last override of a top-level key gives to it, without quotes; None where there is none."""
        for word in reversed(self.overrides):
            name, _, value = word.partition("=")
            if name == key:
                return value.strip("'\"")
        return None


def read_options(words: Sequence[str]) -> Options:
    """Flags and overrides in any order. Raises ConfigError for a config folder that is not there."""
    options, rest = Options(), iter(words)
    for word in rest:
        if word in ("-h", "--help"):
            options.help = True
        elif word in ("-m", "--multirun"):
            options.multirun = True
        elif word == "--cfg":
            options.cfg = True
        elif word == "job" and options.cfg:  # Hydra's spelling: --cfg job
            continue
        elif word in ("--config-dir", "-cd") or word.startswith("--config-dir="):
            folder = word.partition("=")[2] or next(rest, "")
            if not folder or not Path(folder).is_dir():
                raise refuse(f"no such folder: '{folder}'", "--config-dir")
            options.config_dirs.append(Path(folder).absolute())
        else:
            options.overrides.append(word)
    if options.cfg and options.multirun:
        raise refuse("shows one run; leave -m away", "--cfg")
    return options
