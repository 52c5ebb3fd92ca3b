"""The words of the shared benchmarks: Arm, Job, Outcome, Row, Suite.

A suite turns names of mixers into arms, arms into jobs, and runs one job at a time; the runner (benchmarks/run.py)
decides the order, the processes and what need not be run again; the report (benchmarks/report.py) reads rows alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol

__all__ = ["SIZES", "Arm", "Job", "Outcome", "Row", "Suite", "Task"]

Size = Literal["smoke", "small", "paper"]
SIZES: tuple[Size, ...] = ("smoke", "small", "paper")
Plain = Any
"""What JSON can hold: None, bool, int, float, str, lists and dicts of these."""


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One architecture that takes part in a comparison."""

    name: str
    """As tables and figures show it, e.g. `gated_delta` or `attention, ALiBi`."""
    mixer: Plain
    """Value of the registry's kind `mixer`: a name or {name: ..., ...}."""
    options: Mapping[str, Plain] = field(default_factory=dict)
    """What else the suite varies: depth, position, residual, norm, short convolution, ..."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """One thing that is measured: a suite has one or several."""

    name: str
    primary: str
    """The one metric that is compared, declared before anything is run."""
    higher_is_better: bool = True
    trivial: float | None = None
    """What the trivial baseline reaches (chance, or a constant answer)."""
    solved: float | None = None
    """A run counts as a success from here on, where outcomes are bimodal."""
    title: str = ""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One training or measurement, of one arm, with one seed and one learning rate, in one process."""

    suite: str
    version: int
    """The suite's: raised when what it measures changes, so that older rows are not mistaken for new ones."""
    task: str
    size: str
    arm: Arm
    seed: int
    lr: float | None
    role: Literal["tuning", "reported"]
    settings: Mapping[str, Plain]
    """Everything else that matters: width, depth, steps, batch, lengths, what is matched to what, versions."""
    threads: int = 1

    @property
    def key(self) -> str:
        """Hash of everything that matters: rows of equal keys are bit-identical on one machine."""
        text = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What running a job finds."""

    metrics: Mapping[str, float]
    params: int
    params_non_embedding: int
    flops_per_token: float
    """Forward, per token, 2 per multiply-add, causal scores counted in full."""
    state_bytes: int
    """Of one row at the end of the task's longest row, fp32."""
    matched: Mapping[str, Plain] = field(default_factory=dict)
    """What was made equal to the reference, what was changed for it, and what differs still."""
    curves: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Lists for figures, e.g. `train/loss` or `loss by length`."""
    text: str = ""
    """One sentence where the numbers need it."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A job with its outcome, as results/suites/<size>/<suite>.jsonl keeps it, a line each."""

    key: str
    job: Job
    status: Literal["ok", "refused", "crashed", "timed out"]
    """`refused`: this mixer cannot serve here, by the sentence in `message`."""
    message: str
    outcome: Outcome | None
    seconds: float
    """Wall time of the job's process; never compared between arms."""
    cpu_seconds: float
    peak_bytes: int
    command: str
    taken: str
    """UTC, ISO 8601."""
    machine: Mapping[str, Plain]
    """Processor, cores, versions."""


class Suite(Protocol):
    """A file of benchmarks/suites: its docstring gives the task, worked rows and the paper.

    It may also have `mixers`, taken where the command names none (else: attention), `presets`, names beside the
    registry's that its `arms` knows, and `default_tasks`, the names of those that run unless `task=` says more.
    """

    name: str
    title: str
    paper: str
    version: int
    seeds: int
    """Reported seeds; tuning takes others."""

    def tasks(self, size: Size) -> Sequence[Task]: ...

    def arms(self, task: str, mixers: Sequence[Plain]) -> Sequence[Arm]:
        """The arms that a task compares; a suite that compares something else than mixers takes them as a family."""
        ...

    def rates(self, task: str, size: Size) -> Sequence[float]:
        """First grid of learning rates, spaced by sqrt(10), the same for every arm; empty where nothing is tuned."""
        ...

    def settings(self, task: str, size: Size) -> Mapping[str, Plain]: ...

    def run(self, job: Job) -> Outcome:
        """Raises zoo.registry.ConfigError where the arm cannot serve."""
        ...
