"""Jobs through a Hydra launcher: joblib here, submitit (Slurm) or Ray on a cluster.

    python -m benchmarks.run suite=recall size=paper device=cuda launcher=submitit_slurm launcher.partition=gpu

All jobs that can run are handed over as one Hydra multirun of `benchmarks.one_job`, through files below the folder of
the rows, which every machine has to see. Rows are taken as they appear, by this process alone; a job that leaves none
when the multirun ends is marked as crashed. What follows from the rows, further rates and the reported seeds, is the
next multirun. A launcher is a Hydra plugin of its own (pip install hydra-joblib-launcher, hydra-submitit-launcher,
hydra-ray-launcher), and `launcher.KEY=V` sets what it has under hydra.launcher.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import zoo.paths
from benchmarks.rows import row_of
from benchmarks.suites.api import Job, Row

__all__ = ["Launched"]


class Launched:
    """An executor (see benchmarks/run.py) whose jobs a launcher runs.

    jobs: at a time, for joblib; other launchers have their own settings. folder: seen by all machines.
    """

    def __init__(
        self,
        launcher: str,
        words: Sequence[str],
        jobs: int,
        timeout: float,
        folder: Path,
        *,
        command: str,
        machine: Mapping[str, Any],
        files: Sequence[str] = (),
    ) -> None:
        self.launcher, self.jobs, self.timeout, self.command, self.machine = launcher, jobs, timeout, command, machine
        self.words = [f"hydra.{word}" for word in words]
        if launcher == "joblib" and not any(word.startswith("hydra.launcher.n_jobs=") for word in self.words):
            self.words.append(f"hydra.launcher.n_jobs={jobs}")
        self.files = [str(Path(file).resolve()) for file in files]
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = Path(tempfile.mkdtemp(prefix=".launch-", dir=folder.resolve()))
        for name in ("jobs", "rows"):
            (self.folder / name).mkdir()
        self._waiting: dict[str, Job] = {}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def free(self) -> int:
        """Jobs that can be added to the next multirun; none while one runs."""
        return 0 if self._process is not None else 1_000_000

    def start(self, job: Job) -> None:
        """Add a job to the next multirun."""
        asked = {"job": asdict(job), "timeout": self.timeout, "command": self.command, "files": self.files}
        (self.folder / "jobs" / f"{job.key}.json").write_text(json.dumps(asked), encoding="utf-8")
        self._waiting[job.key] = job

    def finished(self, wait: float = 1.0) -> list[Row]:
        """Rows that have appeared; waits up to `wait` seconds for the first."""
        process = self._process = self._process or self._launch()
        until = time.monotonic() + wait
        while True:
            ended = process.poll() is not None  # asked before looking: what is written last is seen
            rows = self._taken()
            if ended:
                rows += [self._lost(job, process.returncode) for job in self._waiting.values()]
                self._waiting.clear()
                self._process = None
            if rows or ended or time.monotonic() > until:
                return rows
            time.sleep(0.1)

    def close(self) -> None:
        """End the multirun and what it started here. Jobs that a cluster has already taken are its own."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGTERM)
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                with suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
            self._process = None
        shutil.rmtree(self.folder, ignore_errors=True)

    def _launch(self) -> subprocess.Popen[bytes]:
        old = os.environ.get("PYTHONPATH")
        path = os.pathsep.join([str(zoo.paths.home()), *([old] if old else [])])
        words = [sys.executable, "-m", "benchmarks.one_job", "--multirun", f"hydra/launcher={self.launcher}"]
        words += [*self.words, f"folder={self.folder}", f"job={','.join(self._waiting)}"]
        with (self.folder / "log.txt").open("ab") as log:
            return subprocess.Popen(
                words, stdout=log, stderr=log, start_new_session=True, env={**os.environ, "PYTHONPATH": path}
            )

    def _taken(self) -> list[Row]:
        rows = []
        for key in list(self._waiting):
            path = self.folder / "rows" / f"{key}.json"
            if path.is_file():
                rows.append(row_of(json.loads(path.read_text(encoding="utf-8"))))
                del self._waiting[key]
        return rows

    def _lost(self, job: Job, code: int) -> Row:
        lines = (self.folder / "log.txt").read_text(encoding="utf-8", errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return Row(
            key=job.key,
            job=job,
            status="crashed",
            message=f"the launcher '{self.launcher}' ended with code {code} and left no row: {last[:200]}",
            outcome=None,
            seconds=0.0,
            cpu_seconds=0.0,
            peak_bytes=0,
            command=self.command,
            taken=datetime.now(UTC).isoformat(timespec="seconds"),
            machine=self.machine,
        )
