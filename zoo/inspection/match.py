"""Making one model as large as another: one whole number is changed until a count agrees, or the match is refused.

    solve(build, target, low=1, high=4096, tolerance=0.01)     build(value) -> a count that grows with value

Three matchings, never mixed (shared protocol: parameters, FLOPs, state bytes): what is matched and what is not is in
the record, so that a table can say it. Nothing is run: models are built and counted on the meta device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from zoo.registry import ConfigError

__all__ = ["Match", "solve"]


@dataclass(frozen=True)
class Match:
    """The value that brings a count closest to its target."""

    value: int
    reached: float
    target: float

    @property
    def error(self) -> float:
        """(reached - target) / target."""
        return self.reached / self.target - 1.0


def solve(
    build: Callable[[int], float],
    target: float,
    *,
    low: int,
    high: int,
    tolerance: float = 0.01,
    step: int = 1,
    what: str = "the count",
    knob: str = "the value",
) -> Match:
    """The value among low, low + step, ... up to high whose count `build(value)` is closest to `target`.

    `build` must not fall as the value grows; it is asked for about 2 log2((high - low) / step) values. `what` and
    `knob` name both in errors. Raises ConfigError where the closest count is further than `tolerance` (a share of the
    target) away, and says what the neighbours reach.
    """
    if target <= 0:
        raise ConfigError(f"{what} of the reference should be above 0, got {target:g}", "match")
    if low > high or step < 1:
        raise ConfigError(f"{knob} has no value from {low} to {high} in steps of {step}", "match")
    counts: dict[int, float] = {}

    def counted(place: int) -> float:
        value = low + place * step
        if value not in counts:
            counts[value] = build(value)
        return counts[value]

    first, last = 0, (high - low) // step
    if counted(last) < counted(first):
        raise ConfigError(f"{what} falls as {knob} grows: it cannot be solved by it", "match")
    while last - first > 1:  # the target lies between the counts at `first` and at `last`, or outside both ends
        middle = (first + last) // 2
        if counted(middle) < target:
            first = middle
        else:
            last = middle
    best = min((first, last), key=lambda place: abs(counted(place) - target))
    found = Match(low + best * step, counted(best), target)
    if abs(found.error) > tolerance:
        tried = ", ".join(
            f"{counted(place):,.0f} at {knob}={low + place * step}" for place in dict.fromkeys((first, last))
        )
        raise ConfigError(
            f"{what} {target:,.0f} cannot be reached within {100 * tolerance:g} percent by {knob} from {low} to {high}"
            f"{'' if step == 1 else f' in steps of {step}'}; closest: {tried}",
            "match",
        )
    return found
