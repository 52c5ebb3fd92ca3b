"""Rows as the runner would write them, of suites that do not exist: no training is needed to test a report."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.suites.api import Arm, Job, Outcome, Row, Task

MACHINE = {"cpu": "made", "cores": 2, "versions": {"python": "3.11", "torch": "2.8"}}
SETTINGS: dict[str, Any] = {"dim": 64, "steps": 1000}
RATES = (1e-3, 3.16e-3, 1e-2)


@dataclass(frozen=True)
class MadeSuite:
    """Enough of a suite for the report."""

    name: str
    told: Sequence[Task]
    title: str = "A made suite"
    paper: str = "nobody"
    version: int = 1
    seeds: int = 3
    rest: dict[str, Any] = field(default_factory=dict)

    def tasks(self, size: str) -> Sequence[Task]:
        return self.told


def row(
    arm: str,
    seed: int = 0,
    lr: float | None = 3.16e-3,
    *,
    role: str = "reported",
    suite: str = "made",
    task: str = "recall",
    size: str = "small",
    status: str = "ok",
    message: str = "",
    metrics: dict[str, float] | None = None,
    state: int = 4096,
    settings: dict[str, Any] | None = None,
    version: int = 1,
    options: dict[str, Any] | None = None,
    taken: str = "2026-11-30T19:00:00+00:00",
) -> Row:
    """One row; `metrics` alone matters to most tests."""
    job = Job(
        suite=suite, version=version, task=task, size=size, seed=seed, lr=lr,
        arm=Arm(name=arm, mixer=arm, options=options or {}), role=role, settings=settings or SETTINGS,
    )  # type: ignore[arg-type]  # fmt: skip
    outcome = Outcome(
        metrics=metrics or {"accuracy": 0.5}, params=100_000 + state, params_non_embedding=80_000,
        flops_per_token=2.5e5, state_bytes=state, matched={"params": "within 0.4 %", "state": "not matched"},
    )  # fmt: skip
    return Row(
        key=job.key, job=job, status=status, message=message, outcome=outcome if status == "ok" else None, seconds=61.0,
        cpu_seconds=60.0, peak_bytes=3 * 2**28, command="python -m benchmarks.run suite=made", taken=taken,
        machine=MACHINE,
    )  # type: ignore[arg-type]  # fmt: skip


def write(rows: Sequence[Row], folder: Path) -> Path:
    """The runner's layout."""
    for one in rows:
        path = folder / one.job.size / f"{one.job.suite}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(one)) + "\n")
    return folder


ARMS = {
    "attention": (0.995, 32768),
    "hybrid_3to1": (0.985, 20480),
    "gated_delta": (0.95, 17408),
    "mamba2": (0.82, 16896),
    "linear_attention": (0.22, 8320),
    "retention": (0.34, 16384),
    "my_mixer <b>": (0.61, 1024),
}
"""Accuracy and state; the last is a user's own, with a name that has to be escaped."""

MADE_RECALL = MadeSuite(
    "made", [Task(name="recall", primary="accuracy", trivial=1 / 128, solved=0.9, title="Associative recall")]
)
MADE_FAMILIES = MadeSuite(
    "made_families",
    [
        Task(name="vit", primary="test/accuracy", trivial=0.1),
        Task(name="gpt", primary="test/bits_per_character", higher_is_better=False, trivial=4.4),
        Task(name="t5", primary="test/per", higher_is_better=False, trivial=1.0),
    ],
    title="Mixers in families",
)
SUITES: dict[str, Any] = {"made": MADE_RECALL, "made_families": MADE_FAMILIES}


def many() -> list[Row]:
    """A whole report's worth: a tuned suite with everything that may go wrong, and a suite of families."""
    draw = random.Random(0)
    rows: list[Row] = []
    for arm, (accuracy, state) in ARMS.items():
        for n, lr in enumerate(RATES):
            for seed in (1000, 1001):
                value = max(0.0, accuracy - 0.1 * abs(n - (2 if arm == "mamba2" else 1)) + draw.gauss(0, 0.01))
                rows.append(row(arm, seed, lr, role="tuning", metrics={"accuracy": value}, state=state))
        for seed in range(5):
            value = min(1.0, accuracy + draw.gauss(0, 0.03)) if draw.random() > 0.15 else 0.2 * accuracy
            more = {f"accuracy@{pairs}": value * (1 - pairs / 100) for pairs in (4, 8, 16, 32)}
            lr = 1e-2 if arm == "mamba2" else 3.16e-3
            rows.append(row(arm, seed, lr, metrics={"accuracy": value, **more}, state=state))
    sentence = "mixer: 'rwkv7' cannot be built at width 30. Fits: attention."
    rows.append(row("rwkv7", 1000, 1e-3, role="tuning", status="refused", message=sentence))
    rows.append(row("mamba2", 5, 1e-2, status="crashed", message="RuntimeError: out of memory"))
    rows.append(row("retention", 1002, 1e-1, role="tuning", status="timed out", message="after 600 s"))
    rows.append(row("retention", 5, metrics={"accuracy": float("nan")}, state=16384))
    for task, metric, base in (
        ("vit", "test/accuracy", 0.93),
        ("gpt", "test/bits_per_character", 2.1),
        ("t5", "test/per", 0.3),
    ):
        for n, arm in enumerate(ARMS):
            family = {"suite": "made_families", "task": task}
            if task == "t5" and arm == "mamba2":
                refusal = (
                    "t5.decoder.cross: 'mamba2' cannot read a second sequence (needs CROSS). Fits: attention, mla."
                )
                rows.append(row(arm, status="refused", message=refusal, **family))
                continue
            worse = -0.02 * n if task == "vit" else 0.05 * n
            for seed in range(3):
                rows.append(row(arm, seed, None, metrics={metric: base + worse + draw.gauss(0, 0.01)}, **family))
    return rows
