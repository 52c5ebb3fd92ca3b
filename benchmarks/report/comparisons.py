"""What may be compared with what: rows of one suite, version, task, size and settings, gathered by arm."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from benchmarks.processes import find_suite
from benchmarks.suites.api import SIZES, Arm, Outcome, Row, Suite, Task
from zoo.registry import ConfigError

__all__ = ["Comparison", "Entry", "Point", "compare", "leaves", "suites_of"]

REFERENCE = "attention"
"""The arm that others are compared with where it takes part and the settings name no other."""


@dataclass(frozen=True)
class Point:
    """What tuning found at one learning rate: the finite values of the primary metric, and how many runs gave none."""

    lr: float
    values: tuple[float, ...]
    lost: int

    @property
    def mean(self) -> float:
        return sum(self.values) / len(self.values) if self.values else math.nan


@dataclass(frozen=True)
class Entry:
    """One arm of a comparison with all its rows."""

    label: str
    arm: Arm
    task: Task
    rows: tuple[Row, ...]

    @cached_property
    def lr(self) -> float | None:
        """The reported rate; the latest where an extended grid has moved it."""
        done = sorted(self._reported, key=lambda row: row.taken)
        return done[-1].job.lr if done else None

    @cached_property
    def reported(self) -> tuple[tuple[int, Outcome], ...]:
        """Seed and outcome of the rows that figures come from, by seed."""
        rows = {row.job.seed: row.outcome for row in self._reported if row.job.lr == self.lr and row.outcome}
        return tuple(sorted(rows.items(), key=lambda pair: pair[0]))

    @cached_property
    def superseded(self) -> int:
        """Reported rows at a rate that is no longer the chosen one."""
        return sum(row.job.lr != self.lr for row in self._reported)

    @cached_property
    def troubled(self) -> tuple[Row, ...]:
        """Rows that are refused, crashed or timed out."""
        return tuple(row for row in self.rows if row.status != "ok")

    @cached_property
    def outcome(self) -> Outcome | None:
        """Any outcome of the arm: parameters, FLOPs and state are those of all its seeds."""
        if self.reported:
            return self.reported[0][1]
        return next((row.outcome for row in self.rows if row.outcome), None)

    def values(self, metric: str) -> dict[int, float]:
        """Finite values by seed."""
        found = {seed: float(outcome.metrics.get(metric, math.nan)) for seed, outcome in self.reported}
        return {seed: value for seed, value in found.items() if math.isfinite(value)}

    def lost(self, metric: str) -> int:
        """Reported seeds that gave no finite value: they diverged."""
        return len(self.reported) - len(self.values(metric))

    @cached_property
    def curve(self) -> tuple[Point, ...]:
        """The tuning runs, by rate."""
        found: dict[float, list[float]] = {}
        for row in self.rows:
            if row.job.role == "tuning" and row.job.lr is not None and row.status != "refused":
                value = float(row.outcome.metrics.get(self.task.primary, math.nan)) if row.outcome else math.nan
                found.setdefault(row.job.lr, []).append(value)
        return tuple(_point(lr, found[lr]) for lr in sorted(found))

    @property
    def at_edge(self) -> bool:
        """The reported rate is the first or the last of those tried."""
        return bool(self.curve) and self.lr in (self.curve[0].lr, self.curve[-1].lr)

    @property
    def _reported(self) -> list[Row]:
        return [row for row in self.rows if row.status == "ok" and row.job.role == "reported"]


@dataclass(frozen=True)
class Comparison:
    """Arms that were run alike."""

    suite: str
    title: str
    task: Task
    size: str
    version: int
    settings: Mapping[str, Any]
    entries: tuple[Entry, ...]
    told: str = ""
    """What sets it apart from another comparison of the same task and size."""
    known: bool = True
    """False where the suite is not installed, so that the primary metric is a guess."""

    @property
    def heading(self) -> str:
        told = f", {self.told}" if self.told else ""
        return f"{self.task.title or self.task.name} ({self.size}{told})"

    @property
    def name(self) -> str:
        return f"{self.suite}: {self.heading}"

    @property
    def key(self) -> str:
        return f"{self.suite} {self.task.name} {self.size} {self.told}"

    @property
    def named(self) -> Entry | None:
        """The arm that the settings match others to, or attention."""
        wanted = (self.settings.get("to"), REFERENCE)
        return next((entry for name in wanted for entry in self._ran if entry.label == name), None)

    @property
    def reference(self) -> Entry | None:
        """The arm that the others are compared with: the one named, or the first that ran."""
        return self.named or next(iter(self._ran), None)

    @property
    def _ran(self) -> list[Entry]:
        return [entry for entry in self.entries if entry.values(self.task.primary)]

    def ranked(self) -> list[Entry]:
        """Best mean first; arms without a figure last, in the order they came."""
        sign = -1 if self.task.higher_is_better else 1

        def place(entry: Entry) -> tuple[bool, float]:
            values = entry.values(self.task.primary)
            return not values, sign * sum(values.values()) / len(values) if values else 0.0

        return sorted(self.entries, key=place)


def suites_of(rows: Sequence[Row]) -> dict[str, Suite]:
    """The suites that rows name, as far as they are installed."""
    found: dict[str, Suite] = {}
    for name in dict.fromkeys(row.job.suite for row in rows):
        with suppress(ConfigError, ImportError):
            found[name] = find_suite(name)
    return found


def compare(rows: Sequence[Row], suites: Mapping[str, Suite]) -> list[Comparison]:
    """All comparisons, by suite, task and size (paper first)."""
    groups: dict[tuple[str, str, str, int, str], list[Row]] = {}
    for row in rows:
        job = row.job
        groups.setdefault((job.suite, job.task, job.size, job.version, _json(job.settings)), []).append(row)
    alike: dict[tuple[str, str, str], list[tuple[int, str]]] = {}
    for suite, task, size, version, settings in groups:
        alike.setdefault((suite, task, size), []).append((version, settings))
    found = []
    for (name, wanted, size, version, settings), members in groups.items():
        suite = suites.get(name)
        task = _task(suite, wanted, members)
        found.append(
            Comparison(
                suite=name,
                title=suite.title if suite else name,
                task=task,
                size=size,
                version=version,
                settings=json.loads(settings),
                entries=_entries(members, task),
                told=_apart((version, settings), alike[name, wanted, size]),
                known=suite is not None,
            )
        )
    first = {name: n for n, name in enumerate(dict.fromkeys(row.job.suite for row in rows))}
    order = {name: n for n, name in enumerate(reversed(SIZES))}
    return sorted(found, key=lambda c: (first[c.suite], order.get(c.size, len(order)), -c.version))


def _entries(rows: Sequence[Row], task: Task) -> tuple[Entry, ...]:
    arms: dict[str, list[Row]] = {}
    for row in rows:
        arms.setdefault(_json([row.job.arm.name, row.job.arm.mixer, dict(row.job.arm.options)]), []).append(row)
    names = [json.loads(key)[0] for key in arms]
    found = []
    for (key, members), name in zip(arms.items(), names, strict=True):
        _, mixer, options = json.loads(key)
        label = name if names.count(name) == 1 else f"{name} {_json([mixer, options])}"  # one name, two architectures
        found.append(Entry(label, members[0].job.arm, task, tuple(members)))
    return tuple(found)


def _task(suite: Suite | None, name: str, rows: Sequence[Row]) -> Task:
    if suite is not None:
        for task in suite.tasks(rows[0].job.size):  # type: ignore[arg-type]
            if task.name == name:
                return task
    metrics = next((list(row.outcome.metrics) for row in rows if row.outcome), ["none"])
    return Task(name=name, primary=metrics[0], higher_is_better="loss" not in metrics[0])


def _apart(own: tuple[int, str], all_of_them: Sequence[tuple[int, str]]) -> str:
    """The version and the settings in which this group differs from others of the same task and size."""
    if len(all_of_them) == 1:
        return ""
    parsed = [dict(leaves(json.loads(settings))) for _, settings in all_of_them]
    mine = dict(leaves(json.loads(own[1])))
    keys = sorted({key for settings in parsed for key in settings})
    differ = [key for key in keys if len({_json(settings.get(key)) for settings in parsed}) > 1]
    told = [f"{key} {_words(mine.get(key))}" for key in differ]
    if len({version for version, _ in all_of_them}) > 1:
        told.insert(0, f"version {own[0]}")
    return ", ".join(told)


def leaves(settings: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Settings without nesting, by dotted names."""
    found: list[tuple[str, Any]] = []
    for name, value in settings.items():
        found += leaves(value, f"{prefix}{name}.") if isinstance(value, Mapping) else [(prefix + name, value)]
    return found


def _words(value: Any) -> str:
    return value if isinstance(value, str) else _json(value)


def _point(lr: float, values: Sequence[float]) -> Point:
    finite = tuple(value for value in values if math.isfinite(value))
    return Point(lr, finite, len(values) - len(finite))


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=dict)
