"""Taking up a run: the checkpoint it goes on from, and whether the settings are still those that the checkpoint fits.

All of it happens before the run folder is touched, so that a wrong setting leaves a finished run as it was.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from recipes.callbacks.checkpoints import checkpoints
from recipes.task import Task
from zoo.registry import ConfigError


@dataclass
class Origin:
    """Where a run goes on: `path`, what it holds, and the damaged checkpoints that came after it."""

    path: Path | None = None
    state: dict[str, Any] = field(default_factory=dict)
    damaged: list[Path] = field(default_factory=list)


def newest_readable(folder: Path) -> Origin:
    """The newest checkpoint in a folder that can be read; none where there is none. Raises ConfigError.

    A run without any checkpoint was stopped early and starts again; one whose checkpoints are all damaged would lose
    its progress by that, so it is refused.
    """
    held, damaged = checkpoints(folder), []
    for path in reversed(held):
        try:
            state = torch.load(path, weights_only=True, map_location="cpu")
            if isinstance(state, dict) and "state_dict" in state:
                return Origin(path, state, damaged)
        except Exception:  # torch, pickle and zipfile have an error each for every kind of damage
            pass
        damaged.append(path)
    if damaged:
        raise ConfigError(f"'{damaged[0]}' is damaged, and no other checkpoint can be read", "resume")
    return Origin()


def set_aside(damaged: list[Path]) -> None:
    """Rename damaged checkpoints: they must neither be taken for the newest nor count among those that stay."""
    for path in damaged:
        path.rename(path.with_name(f"{path.name}.damaged"))


def check_fits(state: dict[str, Any], task: Task, rank: int, ranks: int) -> None:
    """Raises ConfigError where the task or its loader is not that of a checkpoint."""
    _check_parameters(state["state_dict"], task)
    before = ((state.get("hyper_parameters") or {}).get("settings") or {}).get("optim") or {}
    if before.get("name") not in (None, task.optim.registered_name):
        raise ConfigError(f"the run was trained with {before['name']}; it cannot go on with another", "optim.name")
    if task.loader is None:
        return
    kept = ((state.get("loops") or {}).get("fit_loop") or {}).get("state_dict", {}).get("combined_loader")
    loader = task.loader(rank, ranks)
    if kept and hasattr(loader, "load_state_dict"):
        try:
            loader.load_state_dict(kept[0])
        except ConfigError as error:
            raise ConfigError(error.problems, "resume") from None


def _check_parameters(theirs: dict[str, Any], task: Task) -> None:
    ours = task.state_dict()
    for name in [*ours, *theirs]:
        there, here = (_shape(held.get(name)) for held in (theirs, ours))
        if there != here:
            text = f"{name.removeprefix('model.')} is {there} in the checkpoint and {here} by the settings"
            raise ConfigError(f"{text}; leave model settings and optim.ema as they were", "resume")


def _shape(value: Any) -> str:
    if value is None:
        return "absent"
    return " x ".join(str(size) for size in value.shape) or "a number"
