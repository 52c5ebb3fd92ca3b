"""Shapes that the field knows, as inequalities between arms, and what the rows at hand say about each.

An inequality is on the medians over the reported seeds. It is asked of the largest size that ran the arms it names;
`smoke` rows train for a few steps and are never asked. One of three answers: holds, does not hold, not run.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Literal, Protocol

from scipy.stats import spearmanr

from benchmarks.report.comparisons import Comparison, Entry
from benchmarks.report.numbers import figure

__all__ = ["Claim", "Factor", "Finding", "Gap", "Limit", "Order", "Rises", "Shape", "judge"]

Answer = Literal["holds", "does not hold", "not run"]
Patterns = tuple[str, ...]
"""Names of arms with shell wildcards."""


@dataclass(frozen=True)
class Finding:
    """What the rows say: the answer, the measured margin, the figures behind it, and where they come from."""

    claim: Claim
    answer: Answer
    margin: float | None = None
    figures: str = ""
    place: str = ""


class Shape(Protocol):
    """One kind of inequality."""

    @property
    def asked(self) -> str:
        """The inequality in words."""
        ...

    def measure(self, comparison: Comparison) -> tuple[bool, float, str] | None:
        """Whether it holds, its margin and its figures; None where arms are missing."""
        ...


@dataclass(frozen=True, kw_only=True)
class Gap:
    """Every arm of `better` beats every arm of `worse` by at least `margin`."""

    better: Patterns
    worse: Patterns
    margin: float
    metric: str | None = None
    """The task's primary metric unless named."""
    lr: float | None = None
    """At this learning rate of the tuning grid, where the rate is part of the claim; else at each arm's best."""

    @property
    def asked(self) -> str:
        at = f" at rate {self.lr:g}" if self.lr else ""
        better, worse = (" and ".join(names) for names in (self.better, self.worse))
        if self.margin < 0:
            return f"{better} at most {-self.margin:g} worse than {worse}{at}"
        return f"{better} better than {worse} by {self.margin:g}{at}"

    def measure(self, comparison: Comparison) -> tuple[bool, float, str] | None:
        sides = [_medians(comparison, names, self.metric, self.lr) for names in (self.better, self.worse)]
        if not all(sides):
            return None
        sign = 1 if comparison.task.higher_is_better else -1
        gap = min(sign * value for value in sides[0].values()) - max(sign * value for value in sides[1].values())
        return gap >= self.margin, gap, f"{_told(sides[0])} against {_told(sides[1])}"


@dataclass(frozen=True, kw_only=True)
class Limit:
    """Every one of these arms stays at or above `least`, or at or below `most`."""

    arms: Patterns
    metric: str | None = None
    least: float | None = None
    most: float | None = None

    @property
    def asked(self) -> str:
        sides = [f"at least {self.least:g}"] if self.least is not None else []
        sides += [f"at most {self.most:g}"] if self.most is not None else []
        return f"{self.metric or 'primary metric'} of {' and '.join(self.arms)} {' and '.join(sides)}"

    def measure(self, comparison: Comparison) -> tuple[bool, float, str] | None:
        found = _medians(comparison, self.arms, self.metric)
        if not found:
            return None
        rooms = [value - self.least for value in found.values() if self.least is not None]
        rooms += [self.most - value for value in found.values() if self.most is not None]
        return min(rooms) >= 0, min(rooms), _told(found)


@dataclass(frozen=True, kw_only=True)
class Rises:
    """The metric rises with state bytes over these arms: Spearman's rank correlation is at least `least`."""

    arms: Patterns = ("*",)
    least: float = 0.8
    fewest: int = 3
    """Arms below which a rank correlation says nothing."""

    @property
    def asked(self) -> str:
        return f"Spearman of the primary metric and state bytes over {' and '.join(self.arms)} at least {self.least:g}"

    def measure(self, comparison: Comparison) -> tuple[bool, float, str] | None:
        found = _medians(comparison, self.arms, None)
        sizes = {entry.label: entry.outcome.state_bytes for entry in comparison.entries if entry.outcome}
        if len(found) < self.fewest or len({sizes[label] for label in found}) < 2:
            return None
        sign = 1 if comparison.task.higher_is_better else -1
        rank = float(spearmanr([sizes[label] for label in found], [sign * v for v in found.values()]).statistic)  # type: ignore[attr-defined]
        return rank >= self.least, rank - self.least, f"Spearman {figure(rank)} over {len(found)} arms"


@dataclass(frozen=True, kw_only=True)
class Factor:
    """The metric of `lower` is at most `most` times that of `higher`."""

    lower: str
    higher: str
    most: float
    metric: str | None = None

    @property
    def asked(self) -> str:
        return f"{self.metric or 'primary metric'} of {self.lower} at most {self.most:g} times that of {self.higher}"

    def measure(self, comparison: Comparison) -> tuple[bool, float, str] | None:
        sides = [_medians(comparison, (name,), self.metric) for name in (self.lower, self.higher)]
        if not all(sides):
            return None
        low, high = max(sides[0].values()), min(sides[1].values())
        return low <= self.most * high, self.most * high - low, f"{_told(sides[0])} against {_told(sides[1])}"


@dataclass(frozen=True, kw_only=True)
class Order:
    """The arms stand in this order, the best first; equals are in order."""

    arms: Patterns
    metric: str | None = None

    @property
    def asked(self) -> str:
        return " no worse than ".join(self.arms)

    def measure(self, comparison: Comparison) -> tuple[bool, float, str] | None:
        found = _medians(comparison, self.arms, self.metric)
        if len(found) < len(self.arms):
            return None
        sign = 1 if comparison.task.higher_is_better else -1
        values = [sign * found[arm] for arm in self.arms]
        gap = min(a - b for a, b in pairwise(values))
        return gap >= 0, gap, _told(found)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What is known, where it was published, and the inequality that would show it."""

    text: str
    paper: str
    suite: str
    task: str
    """A name with shell wildcards: the first task that ran the arms is asked."""
    shape: Shape


def judge(claims: Sequence[Claim], comparisons: Sequence[Comparison]) -> list[Finding]:
    """A finding for each claim, in its order. `comparisons` have the largest size first."""
    return [_judged(claim, comparisons) for claim in claims]


def _judged(claim: Claim, comparisons: Sequence[Comparison]) -> Finding:
    for comparison in comparisons:
        wanted = comparison.suite == claim.suite and fnmatchcase(comparison.task.name, claim.task)
        if not wanted or comparison.size == "smoke":
            continue
        measured = claim.shape.measure(comparison)
        if measured is not None:
            holds, margin, figures = measured
            return Finding(claim, "holds" if holds else "does not hold", margin, figures, comparison.name)
    return Finding(claim, "not run")


def _medians(comparison: Comparison, names: Patterns, metric: str | None, lr: float | None = None) -> dict[str, float]:
    """Medians by label; nothing at all where a pattern finds no arm."""
    found: dict[str, float] = {}
    for name in names:
        matches = [entry for entry in comparison.entries if fnmatchcase(entry.label, name)]
        told = {entry.label: value for entry in matches if (value := _median(entry, metric, lr)) is not None}
        if not told:
            return {}
        found |= told
    return found


def _median(entry: Entry, metric: str | None, lr: float | None) -> float | None:
    if lr is None:
        values: Sequence[float] = list(entry.values(metric or entry.task.primary).values())
    else:
        values = next((point.values for point in entry.curve if abs(point.lr / lr - 1) < 0.02), ())
    return statistics.median(values) if values else None


def _told(values: dict[str, float]) -> str:
    return ", ".join(f"{label} {figure(value)}" for label, value in values.items())
