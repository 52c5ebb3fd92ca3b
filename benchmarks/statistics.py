"""Intervals and tests that the protocol asks for, as pure functions of a few seeds' values.

interval       95 percent interval of a mean: Student's t over seeds
bootstrap      of any statistic, by resampling seeds (scipy's bias-corrected and accelerated form)
wilson         of a success rate (Wilson 1927), sound at 0 of 5 and at 5 of 5
paired         two arms on shared seeds: mean difference, its interval, and the p-value of the paired t-test
holm           p-values corrected for the number of arms that are compared (Holm 1979)
sensitivity    how much a wrong learning rate costs (Wortsman et al. 2023, arXiv:2309.14322, section 2.2)
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

__all__ = [
    "UNLIMITED",
    "Interval",
    "Paired",
    "Summary",
    "bootstrap",
    "holm",
    "interval",
    "paired",
    "sensitivity",
    "summary",
    "wilson",
]

LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """From `low` to `high`; both NaN where too few values say nothing."""

    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    def within(self, limits: Interval) -> Interval:
        """The part of it that lies inside `limits`; NaN stays NaN."""
        low, high = (
            end if math.isnan(end) else min(max(end, limits.low), limits.high) for end in (self.low, self.high)
        )
        return Interval(low, high)


UNLIMITED = Interval(-math.inf, math.inf)


@dataclass(frozen=True)
class Summary:
    """What is told of one arm's seeds."""

    count: int
    mean: float
    interval: Interval
    """Of the mean."""
    median: float
    quartiles: Interval
    successes: int | None
    """Seeds that reached `solved`; None for a task without it."""
    success: Interval | None
    """Of the success rate."""


@dataclass(frozen=True)
class Paired:
    """One arm less another, on the seeds that both have."""

    count: int
    difference: float
    interval: Interval
    p: float
    """Two-sided; NaN with fewer than two seeds."""


def summary(
    values: Sequence[float],
    *,
    solved: float | None = None,
    higher_is_better: bool = True,
    limits: Interval = UNLIMITED,
) -> Summary:
    """Of finite values. limits: what the metric can be at all, where its interval ends. Raises ValueError for none."""
    if not values:
        raise ValueError("no values to summarise")
    low, median, high = (float(q) for q in np.quantile(values, [0.25, 0.5, 0.75]))
    successes = None
    if solved is not None:
        successes = sum(value >= solved if higher_is_better else value <= solved for value in values)
    return Summary(
        count=len(values),
        mean=statistics.fmean(values),
        interval=interval(values).within(limits),
        median=median,
        quartiles=Interval(low, high),
        successes=successes,
        success=None if successes is None else wilson(successes, len(values)),
    )


def interval(values: Sequence[float], level: float = LEVEL) -> Interval:
    """Of the mean, by Student's t; NaN with fewer than two values."""
    if len(values) < 2:
        return Interval(math.nan, math.nan)
    half = stats.t.ppf((1 + level) / 2, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    middle = statistics.fmean(values)
    return Interval(middle - float(half), middle + float(half))


def bootstrap(
    values: Sequence[float], statistic: Callable[..., float] = np.mean, level: float = LEVEL, seed: int = 0
) -> Interval:
    """Of a statistic, by 9,999 resamples; equal values give an interval without width, fewer than two NaN."""
    if len(values) < 2:
        return Interval(math.nan, math.nan)
    if min(values) == max(values):  # the acceleration would be 0 / 0
        return Interval(values[0], values[0])
    found = stats.bootstrap(
        (np.asarray(values),), statistic, confidence_level=level, rng=np.random.default_rng(seed)
    ).confidence_interval
    return Interval(float(found.low), float(found.high))


def wilson(successes: int, trials: int, level: float = LEVEL) -> Interval:
    """Of a rate. Raises ValueError unless 0 <= successes <= trials and trials >= 1."""
    found = stats.binomtest(successes, trials).proportion_ci(level, method="wilson")
    return Interval(float(found.low), float(found.high))


def paired(first: Mapping[int, float], second: Mapping[int, float], level: float = LEVEL) -> Paired:
    """`first` less `second`, values by seed. Equal differences on all seeds give p = 0, or 1 where they are 0.

    Raises ValueError where they share no seed.
    """
    differences = [first[seed] - second[seed] for seed in sorted(first.keys() & second.keys())]
    if not differences:
        raise ValueError("the two share no seed")
    mean = statistics.fmean(differences)
    if len(differences) < 2:
        return Paired(1, mean, Interval(math.nan, math.nan), math.nan)
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    if error == 0.0:
        p = float(mean == 0.0)
    else:
        p = float(2 * stats.t.sf(abs(mean) / error, len(differences) - 1))
    return Paired(len(differences), mean, interval(differences, level), p)


def holm(p_values: Sequence[float]) -> list[float]:
    """Corrected p-values in the order given: the k-th smallest of n times n - k + 1, never falling, at most 1.

    NaN stays NaN and is not counted among the n.
    """
    order = sorted((n for n, p in enumerate(p_values) if not math.isnan(p)), key=lambda n: p_values[n])
    corrected = [math.nan] * len(p_values)
    largest = 0.0
    for rank, place in enumerate(order):
        largest = max(largest, min(1.0, p_values[place] * (len(order) - rank)))
        corrected[place] = largest
    return corrected


def sensitivity(losses: Mapping[float, float], initial: float) -> float:
    """Mean over the rates of min(loss, initial) less the best loss: 0 where the rate does not matter.

    losses: final loss by rate, where lower is better; one that is no finite number counts as `initial`, the loss
    before training. Raises ValueError for no losses.
    """
    if not losses:
        raise ValueError("no losses to compare")
    cut = [min(loss, initial) if math.isfinite(loss) else initial for loss in losses.values()]
    return statistics.fmean(cut) - min(cut)
