"""The Hydra side of `python -m benchmarks.run launcher=...`: one job of a suite, wherever a launcher puts it.

    python -m benchmarks.one_job --multirun hydra/launcher=submitit_slurm folder=/shared/run job=0f3a...,77c1...

Reads <folder>/jobs/<job>.json and leaves <folder>/rows/<job>.json. The job still has a process of its own, so that
launchers which reuse workers (joblib, Ray) isolate jobs as the runner itself does, and set threads alike.
"""

from __future__ import annotations

import json
import multiprocessing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import hydra

import zoo.paths
from benchmarks.processes import Processes
from benchmarks.rows import job_of
from zoo.files import write_text

__all__ = ["main", "run_one"]


def run_one(folder: Path, key: str) -> None:
    """Run the job of this key and write its row."""
    from benchmarks.run import machine

    # the name of joblib's own way to start workers would be handed on to the job, which knows no such way
    multiprocessing.set_start_method("forkserver", force=True)
    asked = json.loads((folder / "jobs" / f"{key}.json").read_text(encoding="utf-8"))
    job = job_of(asked["job"])
    executor = Processes(
        1, asked["timeout"], command=asked["command"], machine=machine(), files=asked["files"], suite=job.suite
    )
    try:
        executor.start(job)
        while not (rows := executor.finished()):
            pass
        write_text(folder / "rows" / f"{key}.json", json.dumps(asdict(rows[0])))
    finally:
        executor.close()


@hydra.main(version_base="1.3", config_path=str(zoo.paths.config_dir()), config_name="benchmark_job")
def main(config: Any) -> None:
    """Hydra's entry."""
    run_one(Path(config.folder), str(config.job))


if __name__ == "__main__":
    main()
