"""The run folder: config.yaml (the settings, complete), metrics.csv, checkpoints/, model/ (the exported model),
figures/, log.txt and result.json, whose status is "ok", "failed" or "interrupted" however the run ended.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from recipes.metrics_file import MetricsFile
from zoo.files import write_text
from zoo.registry import ConfigError


def rank() -> int:
    """This process's rank on its machine; only rank 0 writes."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def read_settings(run: Path, where: str) -> dict[str, Any]:
    """The settings in a run folder. Raises ConfigError, with `where` as the place."""
    path = run / "config.yaml"
    if not path.is_file():
        raise ConfigError(f"'{run}' is not a run folder (no config.yaml in it)", where)
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"'{path}' is not YAML: {str(error).splitlines()[0]}", where) from None
    if not isinstance(settings, dict):
        raise ConfigError(f"'{path}' does not hold settings", where)
    return settings


def check_folder(settings: Mapping[str, Any], out: Path) -> None:
    """A new run needs a folder without another run; a resumed one goes on in its own. Raises ConfigError."""
    resume = settings.get("resume")
    if resume is None:
        held = [name for name in ("result.json", "checkpoints") if (out / name).exists()]
        if held and rank() == 0:
            text = f"'{out}' already holds a run ({held[0]}); name another folder, or use resume={out}"
            raise ConfigError(text, "out")
    elif Path(resume).resolve() != out.resolve():
        raise ConfigError("a resumed run goes on in its own folder; leave out= away", "out")
    else:
        read_settings(Path(resume), "resume")


def open_folder(settings: Mapping[str, Any], out: Path, step: int | None) -> None:
    """Write config.yaml; where a run goes on from `step`, keep the rows of metrics.csv up to there. Raises OSError."""
    out.mkdir(parents=True, exist_ok=True)
    stored = {**settings, "resume": None, "out": str(out)}
    write_text(out / "config.yaml", yaml.safe_dump(stored, sort_keys=False, allow_unicode=True))
    if step is not None and (out / "metrics.csv").exists():
        MetricsFile(out / "metrics.csv").truncate(step)
    with suppress(FileNotFoundError):  # what it says is no longer true
        (out / "result.json").unlink()


def step_of(checkpoint: Path | None) -> int:
    """The step in a checkpoint's name; 0 for none."""
    return int(checkpoint.stem.partition("=")[2]) if checkpoint is not None else 0
