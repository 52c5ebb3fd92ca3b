"""The protocol that makes arms comparable: which jobs an arm has, and which learning rate it is reported at.

Every arm of a task starts from the same grid of rates, spaced by sqrt(10), on seeds that are never reported. While the
best rate is the grid's first or last, the grid grows by one rate on that side, up to `EXTENSIONS` on each side; rates
within `TIE` of the best count as equal, and the one furthest from the edges is taken, since a grid that reaches the
metric's ceiling, or never leaves chance, would grow by noise alone. Then the reported seeds run at the rate found. All
of this is decided from the rows there are, so an interrupted comparison goes on where it stopped.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from benchmarks.suites.api import Arm, Job, Plain, Row, Task

__all__ = ["EXTENSIONS", "FIRST_TUNING_SEED", "TIE", "Cell", "Choice", "choose", "next_rate"]

FIRST_TUNING_SEED = 1000
"""Seeds from here on choose rates; reported seeds count from 0."""
EXTENSIONS = 2
"""Rates that a grid may grow by on each side."""
TIE = 0.01
"""Scores this close are no difference between rates, in units of the primary metric."""


@dataclass(frozen=True)
class Choice:
    """The rate that tuning found."""

    rate: float
    interior: bool
    """Whether worse or equal rates lie on both sides."""


def choose(scores: Mapping[float, float], higher_is_better: bool) -> Choice:
    """The best of the rates. Scores that are no finite number are worse than any. Raises ValueError for no scores."""
    if not scores:
        raise ValueError("no rates to choose from")
    rates = sorted(scores)
    gains = [_gain(scores[rate], higher_is_better) for rate in rates]
    best = max(gains)
    last = len(rates) - 1
    equal = [place for place, gain in enumerate(gains) if gain >= best - TIE]
    # the furthest from both ends; of two, the better, then the lower
    place = max(equal, key=lambda p: (min(p, last - p), gains[p], -p))
    return Choice(rates[place], 0 < place < last)


def next_rate(scores: Mapping[float, float], first: Sequence[float], higher_is_better: bool) -> float | None:
    """The rate to try next where the best is at an edge; None where it is inside or the bound is reached.

    first: the grid that tuning started from. A grid of one rate is not tuned, and does not grow.
    """
    found = choose(scores, higher_is_better)
    if found.interior or len(first) < 2:
        return None
    upwards = found.rate == max(scores)
    edge = max(first) if upwards else min(first)
    grown = sum(rate > edge if upwards else rate < edge for rate in scores)
    if grown >= EXTENSIONS:
        return None
    return _rounded(edge * 10 ** ((grown + 1) * (0.5 if upwards else -0.5)))


def _rounded(rate: float) -> float:
    return float(f"{rate:.3g}")


def _gain(score: float, higher_is_better: bool) -> float:
    if not math.isfinite(score):
        return -math.inf
    return score if higher_is_better else -score


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One arm in one task: its jobs, in the order in which they become known."""

    suite: str
    version: int
    task: Task
    size: str
    arm: Arm
    settings: Mapping[str, Plain]
    rates: tuple[float, ...]
    """The first grid; empty where nothing is tuned, and a rate alone is taken as it is."""
    seeds: int
    tuning_seeds: int = 1
    threads: int = 1

    def job(self, role: Literal["tuning", "reported"], seed: int, lr: float | None) -> Job:
        return Job(
            suite=self.suite,
            version=self.version,
            task=self.task.name,
            size=self.size,
            arm=self.arm,
            seed=seed,
            lr=lr,
            role=role,
            settings=self.settings,
            threads=self.threads,
        )

    def next(self, rows: Mapping[str, Row]) -> list[Job]:
        """Jobs that can run now and have no row yet; none where the arm is done, or refuses."""
        return [job for job in self.known(rows) if job.key not in rows]

    def known(self, rows: Mapping[str, Row]) -> list[Job]:
        """Every job that the rows so far lead to. An arm that refuses has only those that ran."""
        tuning: list[Job] = []
        rate = self.rates[0] if self.rates else None
        if len(self.rates) > 1:
            grid = set(self.rates)
            while True:
                tuning = [job for lr in sorted(grid) for job in self._tuning(lr)]
                found = [rows.get(job.key) for job in tuning]
                if any(row is not None and row.status == "refused" for row in found):
                    return [job for job in tuning if job.key in rows]
                if None in found:
                    return tuning
                scores = {lr: self._score(lr, rows) for lr in grid}
                if all(math.isnan(score) for score in scores.values()):
                    return tuning  # nothing ran to its end
                more = next_rate(scores, self.rates, self.task.higher_is_better)
                if more is None:
                    break
                grid.add(more)
            rate = choose(scores, self.task.higher_is_better).rate
        reported = [self.job("reported", seed, rate) for seed in range(self.seeds)]
        if any(job.key in rows and rows[job.key].status == "refused" for job in reported):
            reported = [job for job in reported if job.key in rows]
        return tuning + reported

    def total(self, rows: Mapping[str, Row]) -> int:
        """Jobs in all, as far as can be told: grids may still grow."""
        known = self.known(rows)
        open_ended = any(job.key not in rows for job in known) and all(job.role == "tuning" for job in known)
        return len(known) + (self.seeds if open_ended else 0)

    def _tuning(self, rate: float) -> list[Job]:
        return [self.job("tuning", FIRST_TUNING_SEED + n, rate) for n in range(self.tuning_seeds)]

    def _score(self, rate: float, rows: Mapping[str, Row]) -> float:
        """Mean of the primary metric over the tuning seeds; NaN where one of them gave none."""
        values = []
        for job in self._tuning(rate):
            outcome = rows[job.key].outcome
            values.append(outcome.metrics.get(self.task.primary, math.nan) if outcome is not None else math.nan)
        return statistics.fmean(values)
