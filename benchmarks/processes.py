"""Jobs in processes of their own: what one does to itself, by a crash, a leak or a hang, touches no other.

Importing torch and the zoo takes seconds, so processes are forked from a clean one that has imported them and run
nothing (multiprocessing's fork server). A job sets its threads before its first operator, has a process group of its
own, and ends with this process, however this process ends.
"""

from __future__ import annotations

import importlib
import importlib.util
import multiprocessing
import os
import resource
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from multiprocessing import connection, forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import zoo.paths
from benchmarks.rows import outcome_of
from benchmarks.suites.api import Job, Row, Suite
from zoo.registry import ConfigError, nearest

__all__ = ["Processes", "find_suite", "import_file", "suite_names"]

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")


def suite_names() -> list[str]:
    """Names of the suites: the modules of benchmarks/suites that define SUITE."""
    folder = Path(__file__).parent / "suites"
    return sorted(p.stem for p in folder.glob("*.py") if "\nSUITE" in p.read_text(encoding="utf-8"))


def find_suite(name: str) -> Suite:
    """The suite of benchmarks/suites/<name>.py. Raises ConfigError with the choices."""
    known = suite_names()
    if name not in known:
        raise ConfigError(f"unknown suite '{name}'{nearest(name, known)}; choices: {', '.join(known)}", "suite")
    return importlib.import_module(f"benchmarks.suites.{name}").SUITE


def import_file(path: str) -> None:
    """Run a user's file, which registers parts. Raises ConfigError where it cannot be imported."""
    spec = importlib.util.spec_from_file_location(f"with_{Path(path).stem}", path)
    if spec is None or spec.loader is None or not Path(path).is_file():
        raise ConfigError(f"no Python file '{path}'", "with")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ConfigError(f"{path} cannot be imported: {type(error).__name__}: {error}", "with") from error


@dataclass
class _Running:
    job: Job
    process: BaseProcess
    answer: connection.Connection
    log: Path
    begun: float


class Processes:
    """Up to `slots` jobs at a time. `start` one, `finished` gives the rows of those that ended, `close` ends the rest.

    timeout: seconds of wall time for a job. files: Python files of the user that every job imports first. suite: whose
    module the processes have from the start.
    """

    def __init__(
        self,
        slots: int,
        timeout: float,
        *,
        command: str,
        machine: Mapping[str, Any],
        files: Sequence[str] = (),
        suite: str | None = None,
    ) -> None:
        self.slots, self.timeout, self.command, self.machine = slots, timeout, command, machine
        self.files = tuple(str(Path(file).resolve()) for file in files)
        self._logs = tempfile.TemporaryDirectory(prefix="benchmarks-")
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["benchmarks.preload", *([f"benchmarks.suites.{suite}"] if suite else [])])
        self._running: list[_Running] = []

    def warm_up(self) -> None:
        """Start the process that jobs are forked from; it imports while the caller goes on."""
        with _environment():
            forkserver.ensure_running()

    @property
    def free(self) -> int:
        """Jobs that can be started now."""
        return self.slots - len(self._running)

    def start(self, job: Job) -> None:
        """Begin a job in a process of its own."""
        here, there = self._context.Pipe(duplex=False)
        log = Path(self._logs.name) / f"{job.key}.txt"
        process = self._context.Process(target=_job, args=(job, self.files, there, str(log)))
        with _environment():
            process.start()
        there.close()
        self._running.append(_Running(job, process, here, log, time.monotonic()))

    def finished(self, wait: float = 1.0) -> list[Row]:
        """Rows of the jobs that have ended; waits up to `wait` seconds for the first."""
        waited = [one.answer for one in self._running]
        ready = set(connection.wait(waited, wait)) if waited else set()
        rows = []
        for one in list(self._running):
            late = time.monotonic() - one.begun > self.timeout
            if one.answer in ready or late:
                rows.append(self._row(one, answered=one.answer in ready))
                self._running.remove(one)
        return rows

    def close(self) -> None:
        """End what still runs; its jobs leave no row."""
        for one in self._running:
            _end(one.process)
        self._running.clear()
        self._logs.cleanup()

    def _row(self, one: _Running, answered: bool) -> Row:
        found: dict[str, Any] | None = None
        if answered:
            with suppress(EOFError, OSError):
                found = one.answer.recv()
        seconds = time.monotonic() - one.begun
        if found is not None:
            one.process.join(5)
        elif answered:  # the pipe closed without an answer
            one.process.join(5)
            found = {"status": "crashed", "message": _ended(one.process.exitcode, one.log)}
        else:
            found = {"status": "timed out", "message": f"not done after {self.timeout:g} s"}
        _end(one.process)
        one.answer.close()
        one.log.unlink(missing_ok=True)
        return Row(
            key=one.job.key,
            job=one.job,
            status=found["status"],
            message=found["message"],
            outcome=outcome_of(found.get("outcome")),
            seconds=round(seconds, 2),
            cpu_seconds=round(found.get("cpu_seconds", 0.0), 2),
            peak_bytes=found.get("peak_bytes", 0),
            command=self.command,
            taken=datetime.now(UTC).isoformat(timespec="seconds"),
            machine=self.machine,
        )


class _environment:  # noqa: N801  a context manager, named as it reads
    """The fork server's environment: one thread, the import path of this process."""

    def __enter__(self) -> None:
        self._before = dict(os.environ)
        os.environ.update(dict.fromkeys(THREADS, "1"))
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        old = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join([str(zoo.paths.home()), *([old] if old else [])])

    def __exit__(self, *_: object) -> None:
        os.environ.clear()
        os.environ.update(self._before)


def _job(job: Job, files: Sequence[str], answer: connection.Connection, log: str) -> None:
    """The process of a job: says what it found through `answer`."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with open(log, "w", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    answer.send(_found(job, files))
    answer.close()
    sys.stdout.flush()


def _found(job: Job, files: Sequence[str]) -> dict[str, Any]:
    import torch

    torch.set_num_threads(job.threads)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    found: dict[str, Any] = {"status": "ok", "message": ""}
    try:
        for file in files:
            import_file(file)
        found["outcome"] = asdict(find_suite(job.suite).run(job))
    except ConfigError as refusal:
        found |= {"status": "refused", "message": str(refusal)}
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(at.filename).name}:{at.lineno}"
        found |= {"status": "crashed", "message": f"{type(error).__name__}: {' '.join(str(error).split())} ({place})"}
        traceback.print_exc()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return found | {"cpu_seconds": time.process_time(), "peak_bytes": peak}


def _end_with_parent() -> None:
    """A runner that is killed takes its jobs along."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os.killpg(0, signal.SIGKILL)


def _end(process: BaseProcess) -> None:
    """Kill the process and what it started."""
    with suppress(ProcessLookupError, PermissionError):
        if process.pid is not None:
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.join(5)


def _ended(code: int | None, log: Path) -> str:
    last = ""
    with suppress(OSError):
        lines: Iterator[str] = reversed(log.read_text(encoding="utf-8", errors="replace").splitlines())
        last = next((line.strip() for line in lines if line.strip()), "")
    if code is not None and code < 0:
        with suppress(ValueError):
            return f"ended by {signal.Signals(-code).name}" + (f": {last[:200]}" if last else "")
    return f"ended with code {code}" + (f": {last[:200]}" if last else "")
