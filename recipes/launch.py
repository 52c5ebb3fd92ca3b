"""The way in: settings to a finished run folder, and a run folder to answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from recipes.recipe import find_recipe
from recipes.run_folder import read_settings
from zoo.registry import ConfigError, encode


def launch(settings: Mapping[str, Any], out: Path) -> dict[str, Any]:
    """Do what the settings say in the folder `out`; returns the result, which stands in result.json or eval.json too.

    Everything is decoded, loaded and built before the folder is touched, so a wrong setting leaves nothing behind.
    Raises ConfigError for a wrong setting, OSError where the folder cannot be written, and SystemExit with the shell's
    code (143, 130) for a run that a signal stopped; result.json then says "failed" or "interrupted".
    """
    plain = encode(dict(settings))
    mode = plain.get("mode") or "train"
    if mode == "eval":
        from recipes.evaluation_run import evaluate

        return evaluate(plain, Path(out))
    if mode != "train":
        raise ConfigError(f"should be 'train' or 'eval', got {mode!r}", "mode")
    from recipes.training_run import train

    return train(plain, Path(out))


def predict(run: Path, argv: Sequence[str]) -> int:
    """Answer for a user's own input with the model of the run folder `run`; returns the exit code."""
    run = Path(run)
    settings = read_settings(run, "RUN_DIR")
    if not (run / "model").is_dir():
        raise ConfigError(f"'{run}' holds no exported model; the run has not finished", "RUN_DIR")
    return find_recipe(settings.get("name")).predict(run, argv)
