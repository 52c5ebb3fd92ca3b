"""Many runs from one command line: Hydra's sweeper and launcher call `job` once for each combination.

Each run has a folder of its own, `out`/0, `out`/1 ...; one that fails is reported and marked, and the others go on.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from zoo import paths
from zoo.cli.budget import check_budget
from zoo.cli.compose import Composer, escaped, finish, now
from zoo.cli.errors import explain, report
from zoo.cli.start import claimed, start

__all__ = ["job", "sweep"]


def sweep(composer: Composer) -> int:
    """Run every combination. Returns 0, or 1 when any of them did not end well. Raises ConfigError."""
    import hydra

    recipe = composer.options.value("recipe") or ""
    out = composer.options.value("out") or f"runs/{recipe if recipe.isidentifier() else 'sweep'}/{now()}"
    folder = Path(out)
    with claimed(folder), composer.in_own_words(), _hydra_reads([*composer.repeatable, f"out='{escaped(out)}'"]):
        try:
            run = hydra.main(config_path=str(paths.config_dir()), config_name=composer.config_name, version_base="1.3")
            run(job)()
        except Exception:
            if os.listdir(folder) == ["multirun.yaml"]:  # refused before the first run
                (folder / "multirun.yaml").unlink()
            raise
    results = [file for name in ("result.json", "eval.json") for file in folder.rglob(name)]
    states = {file.parent: json.loads(file.read_text(encoding="utf-8"))["status"] for file in results}
    well = sum(status == "ok" for status in states.values())
    print(f"{well} of {len(states)} runs ended well; results in {folder}", flush=True)
    return 0 if states and well == len(states) else 1


def job(config: Any) -> float:
    """One run of a sweep. Returns its first validation figure, for sweepers that optimise; NaN where there is none."""
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf

    hydra = HydraConfig.get()
    out = Path(os.path.relpath(hydra.runtime.output_dir))
    words = [word for word in hydra.overrides.task if not word.startswith("out=")]
    title = f"run {hydra.job.num} ({' '.join(words).replace('++given.', '')})"
    print(title, flush=True)
    try:
        check_budget(hydra.runtime.choices)
        composed: Any = OmegaConf.to_container(config, resolve=False)
        settings = finish({**composed, "out": str(out)})
        searched = [word for word in hydra.overrides.hydra if word.startswith("hydra.searchpath=")]
        result = start(settings, [*searched, *words])
    except Exception as error:
        told = explain(error)
        if told is None or os.environ.get("ZOO_TRACEBACK") == "1":
            traceback.print_exc()
        text = told[0] if told else f"{type(error).__name__}: {error}"
        report(f"{title} failed: {text}")
        _mark_failed(out, text)
        return float("nan")
    figures = [value for name, value in result.get("metrics", {}).items() if name.startswith("val/")]
    return float(figures[0]) if figures else float("nan")


def _mark_failed(out: Path, text: str) -> None:
    """A result that says so, where the recipe did not come to write one."""
    with contextlib.suppress(OSError):
        out.mkdir(parents=True, exist_ok=True)
        if not (out / "result.json").exists():
            temporary = out / ".result.json"
            temporary.write_text(json.dumps({"status": "failed", "error": text}, indent=2) + "\n", encoding="utf-8")
            temporary.replace(out / "result.json")


@contextlib.contextmanager
def _hydra_reads(words: list[str]) -> Iterator[None]:
    """Hydra takes its words from sys.argv, and with HYDRA_FULL_ERROR it leaves errors to us."""
    argv, full = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv, os.environ["HYDRA_FULL_ERROR"] = [argv[0], "--multirun", *words], "1"
    try:
        yield
    finally:
        sys.argv = argv
        if full is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = full
