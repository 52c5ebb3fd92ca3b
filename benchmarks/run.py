"""Run a suite: every arm tuned alike, every job in a process of its own, nothing run twice.

    python -m benchmarks.run suite=recall mixer=attention,linear_attention,mamba2,gated_delta,hybrid_3to1 size=small
    python -m benchmarks.run suite=copy mixer=attention,mine --with my_mixer.py

suite=NAME          one of benchmarks/suites
mixer=A,B,...       registered mixers, also with choices: mixer="attention,{name: delta, conv: 0}"; default: the suite's
task=A,B,...        tasks of the suite; default: those that it runs by default
size=smoke          smoke (one seed, one rate), small (a CPU, minutes an arm and seed) or paper (a GPU)
seeds=N             reported seeds; default: the suite's
jobs=N              processes at a time (1)
threads=N           of each process (1)
timeout=S           seconds for one job
device=cpu          cpu or cuda
retry=false         true: run again what crashed or timed out
out=FOLDER          rows go to FOLDER/<size>/<suite>.jsonl; default: benchmarks/results/suites
with=FILE,...       Python files that register parts of yours; also --with FILE
launcher=NAME       a Hydra launcher (joblib, submitit_slurm, submitit_local, ray) instead of processes here
launcher.KEY=V      that launcher's own settings, e.g. launcher.partition=gpu

A job that crashes or runs out of time marks its own row. Ctrl-C keeps the rows there are and ends the jobs that run
(exit code 130); the same command then goes on from there. benchmarks/protocol.py says how rates are chosen.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol

import yaml
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from benchmarks.files import console, header, results
from benchmarks.processes import Processes, find_suite, import_file, suite_names
from benchmarks.protocol import Cell
from benchmarks.rows import RowFile
from benchmarks.suites.api import SIZES, Arm, Job, Plain, Row, Suite, Task
from benchmarks.words import WordsError, asks_help, choice, integer, split
from zoo.registry import ConfigError, decode, names, nearest

__all__ = ["Options", "cells", "main", "parse", "run"]

KEYS = (
    "suite", "mixer", "task", "size", "seeds", "jobs", "threads", "timeout", "device", "retry", "out", "with",
    "launcher",
)  # fmt: skip
TIMEOUTS = {"smoke": 300, "small": 1800, "paper": 7 * 86400}
TUNING_SEEDS = {"smoke": 1, "small": 1, "paper": 2}


@dataclass(frozen=True)
class Options:
    """What the command line asks for."""

    suite: str
    size: Any
    mixers: tuple[Plain, ...] | None
    tasks: tuple[str, ...] | None
    seeds: int | None
    jobs: int
    threads: int
    timeout: float
    device: str
    retry: bool
    out: Path
    files: tuple[str, ...]
    launcher: str | None
    launcher_words: tuple[str, ...]
    command: str


class Executor(Protocol):
    """Where jobs run: processes here, or a launcher's (benchmarks/launch.py)."""

    @property
    def free(self) -> int: ...
    def start(self, job: Job) -> None: ...
    def finished(self) -> list[Row]: ...
    def close(self) -> None: ...


def parse(words: Sequence[str]) -> Options:
    """Raises WordsError."""
    plain, launcher_words, files = [], [], []
    rest = iter(words)
    for word in rest:
        if word == "--with":
            files.append(next(rest, ""))
            if not files[-1]:
                raise WordsError("with: has no value; give a Python file, e.g. --with my_mixer.py")
        elif word.startswith("launcher."):
            launcher_words.append(word)
        else:
            plain.append(word)
    values = split(plain, KEYS)
    if "suite" not in values:
        raise WordsError(f"suite: is required; choices: {', '.join(suite_names())}")
    if launcher_words and "launcher" not in values:
        raise WordsError(f"'{launcher_words[0]}' needs launcher=NAME")
    files += [file for file in values.get("with", "").split(",") if file]
    for file in files:
        if not Path(file).is_file():
            raise WordsError(f"with: no file '{file}'")
    size = choice(values, "size", "small", SIZES)
    return Options(
        suite=values["suite"],
        size=size,
        mixers=_mixers(values["mixer"]) if "mixer" in values else None,
        tasks=tuple(values["task"].split(",")) if "task" in values else None,
        seeds=integer(values, "seeds", 0, 1, 1000) if "seeds" in values else None,
        jobs=integer(values, "jobs", 1, 1, 10_000),
        threads=integer(values, "threads", 1, 1, os.cpu_count() or 1),
        timeout=integer(values, "timeout", TIMEOUTS[size], 1, 10**8),
        device=choice(values, "device", "cpu", ("cpu", "cuda")),
        retry=choice(values, "retry", "false", ("true", "false")) == "true",
        out=Path(values["out"]) if "out" in values else results() / "suites",
        files=tuple(files),
        launcher=values.get("launcher"),
        launcher_words=tuple(launcher_words),
        command=shlex.join(["python", "-m", "benchmarks.run", *words]),
    )


def _mixers(text: str) -> tuple[Plain, ...]:
    """Names and dicts, separated by commas. Raises WordsError."""
    try:
        found = yaml.safe_load(f"[{text}]")
    except yaml.YAMLError:
        raise WordsError(f"mixer: should be names or {{name: ..., ...}}, separated by commas, got '{text}'") from None
    if not all(isinstance(item, (str, dict)) for item in found):
        raise WordsError(f"mixer: should be names or {{name: ..., ...}}, separated by commas, got '{text}'")
    return tuple(found)


def cells(options: Options, suite: Suite, sources: Mapping[str, str]) -> list[Cell]:
    """One for each task and arm. sources: content hash of the file that registered a name of the user's.

    Raises ConfigError for an unknown task or mixer.
    """
    known = list(suite.tasks(options.size))
    default = getattr(suite, "default_tasks", [task.name for task in known])
    wanted = options.tasks or [task.name for task in known if task.name in default]
    mixers = list(options.mixers or getattr(suite, "mixers", ["attention"]))
    own = getattr(suite, "presets", {})
    for mixer in mixers:
        if not (isinstance(mixer, str) and mixer in own):
            decode("mixer", mixer, "mixer")
    made: list[Cell] = []
    for name in wanted:
        task = next((task for task in known if task.name == name), None)
        if task is None:
            choices = [task.name for task in known]
            raise ConfigError(f"unknown task '{name}'{nearest(name, choices)}; choices: {', '.join(choices)}", "task")
        made += [_cell(options, suite, task, arm, sources) for arm in suite.arms(name, mixers)]
    return made


def _cell(options: Options, suite: Suite, task: Task, arm: Arm, sources: Mapping[str, str]) -> Cell:
    rates, seeds = tuple(suite.rates(task.name, options.size)), options.seeds or suite.seeds
    if options.size == "smoke":  # proves that everything runs, tunes nothing
        rates, seeds = rates[len(rates) // 2 :][:1], options.seeds or 1
    return Cell(
        suite=suite.name,
        version=suite.version,
        task=task,
        size=options.size,
        arm=arm,
        settings={
            **suite.settings(task.name, options.size),
            "environment": environment(options.device) | _source(arm, sources),
        },
        rates=rates,
        seeds=seeds,
        tuning_seeds=TUNING_SEEDS[options.size],
        threads=options.threads,
    )


def environment(device: str) -> dict[str, Plain]:
    """What changes the bits of a result beside the job itself."""
    found: dict[str, Plain] = {"device": device}
    for package in ("torch", "numba"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    if os.environ.get("ZOO_KERNELS"):
        found["kernels"] = os.environ["ZOO_KERNELS"]
    return found


def _source(arm: Arm, sources: Mapping[str, str]) -> dict[str, Plain]:
    """The hash of the user's file that an arm is made of, so that an edited file gives other jobs."""
    used = sorted({sources[word] for word in _texts([arm.mixer, dict(arm.options)]) if word in sources})
    return {"source": used} if used else {}


def _texts(value: Plain) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts(item)


def _import_files(files: Sequence[str]) -> dict[str, str]:
    """Import the user's files; content hash by the name of each mixer that they register."""
    sources: dict[str, str] = {}
    names("mixer")
    for file in files:
        before = set(names("mixer"))
        import_file(file)
        digest = hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16]
        sources |= dict.fromkeys(set(names("mixer")) - before, digest)
    return sources


def run(
    todo: Sequence[Cell], file: RowFile, executor: Executor, told: Callable[[Row], None] = lambda row: None
) -> None:
    """Run every cell's jobs to the end; rows are written as they come. Interrupts end the executor's jobs."""
    pending: dict[str, Job] = {}  # known and not started
    running: dict[str, Job] = {}
    try:
        while True:
            for cell in todo:
                for job in cell.next(file.rows):
                    if job.key not in running:
                        pending.setdefault(job.key, job)
            while pending and executor.free > 0:
                key = next(iter(pending))
                job = pending.pop(key)
                executor.start(job)
                running[key] = job
            if not running:
                return
            for row in executor.finished():
                file.append(row)
                del running[row.key]
                told(row)
                if row.status == "refused":  # the arm's other jobs would be refused alike
                    pending = {k: j for k, j in pending.items() if (j.arm, j.task) != (row.job.arm, row.job.task)}
    finally:
        executor.close()


def machine() -> dict[str, Plain]:
    """Processor, cores, versions, and the commit of the code."""
    found = {key: value for key, value in header("", 1).items() if key in ("cpu", "cores", "system", "versions")}
    folder = Path(__file__).resolve().parent
    git = subprocess.run(["git", "-C", str(folder), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return found | {"node": platform.node(), "commit": git.stdout.strip() or None}


def main(words: Sequence[str] | None = None) -> int:
    """Run what the words ask for. Exit codes: 0 done, 1 a job crashed or timed out, 2 a wrong word, 130 interrupted."""
    words = list(sys.argv[1:] if words is None else words)
    if not words or asks_help(words):
        print(__doc__)
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        options = parse(words)
        return _main(options)
    except (WordsError, ConfigError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; finished rows are kept, the same command goes on from there", file=sys.stderr)
        return 130


def _main(options: Options) -> int:
    executor = _executor(options)
    import zoo

    zoo.list_mixers()  # registers everything
    suite = find_suite(options.suite)
    todo = cells(options, suite, _import_files(options.files))
    path = options.out / options.size / f"{suite.name}.jsonl"
    troubled = 0
    with RowFile(path) as file:
        if options.retry:
            file.rows = {key: row for key, row in file.rows.items() if row.status in ("ok", "refused")}
        with _progress() as progress:
            bar = progress.add_task(suite.name, latest="")

            def count() -> None:
                done = sum(job.key in file.rows for cell in todo for job in cell.known(file.rows))
                progress.update(bar, completed=done, total=sum(cell.total(file.rows) for cell in todo))

            count()

            def told(row: Row) -> None:
                nonlocal troubled
                troubled += row.status in ("crashed", "timed out")
                line = _line(row, next(c.task for c in todo if c.task.name == row.job.task))
                count()
                progress.update(bar, latest=line)
                progress.console.print(line, markup=False, soft_wrap=True)

            run(todo, file, executor, told)
            progress.update(bar, latest="")
    print(f"rows: {path}")
    return 1 if troubled else 0


def _executor(options: Options) -> Executor:
    if options.launcher is not None:
        from benchmarks.launch import Launched

        return Launched(
            options.launcher,
            options.launcher_words,
            options.jobs,
            options.timeout,
            options.out,
            command=options.command,
            machine=machine(),
            files=options.files,
        )
    made = Processes(
        options.jobs,
        options.timeout,
        command=options.command,
        machine=machine(),
        files=options.files,
        suite=options.suite if options.suite in suite_names() else None,
    )
    made.warm_up()
    return made


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[latest]}"),
        console=console(),
    )


def _line(row: Row, task: Task) -> str:
    job = row.job
    rate = "" if job.lr is None else f" lr {job.lr:g}"
    head = f"{job.task} {job.arm.name}{rate} seed {job.seed} ({job.role})"
    if row.outcome is None:
        return f"{head}: {row.status}: {row.message}"
    value = row.outcome.metrics.get(task.primary, float("nan"))
    return f"{head}: {task.primary} {value:.4g}, {row.cpu_seconds:.0f} s of CPU"


if __name__ == "__main__":
    raise SystemExit(main())
