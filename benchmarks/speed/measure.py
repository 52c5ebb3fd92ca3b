"""Timing on a noisy machine: arms alternate in one process, and only ratios within a round are believed.

A machine that others use drifts by tens of percent within a minute, so single milliseconds mean little. Every round
calls every arm once, one after the other, and yields one ratio per pair of arms; the median over the rounds with its
quartiles is what is reported. The order changes from round to round, so that no arm always follows the same one and a
drift within a round cancels. Process CPU time leaves out what other processes took. Wall time is recorded beside it;
it is the better figure on a GPU, and with several threads on an idle machine, as threads that wait burn CPU time.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

__all__ = [
    "Call",
    "Clock",
    "ClockName",
    "Spread",
    "Timings",
    "alternate",
    "exponent",
    "in_turn",
    "settled_heap",
    "told",
]

Call = Callable[[], object]
ClockName = Literal["cpu", "wall"]


@dataclass(frozen=True)
class Spread:
    """Median, quartiles and range of a sample."""

    median: float
    q1: float
    q3: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Raises ValueError on an empty sample."""
        if not values:
            raise ValueError("the spread of no values: measure at least one round")
        ordered = sorted(values)
        if len(ordered) == 1:
            return cls(ordered[0], ordered[0], ordered[0], ordered[0], ordered[0], 1)
        q1, median, q3 = statistics.quantiles(ordered, n=4, method="inclusive")
        return cls(median, q1, q3, ordered[0], ordered[-1], len(ordered))

    def plain(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


@dataclass
class Clock:
    """Seconds per call of one arm, a value per round."""

    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)

    def read(self, clock: ClockName) -> list[float]:
        return self.cpu if clock == "cpu" else self.wall


@dataclass
class Timings:
    """Seconds per call of every arm: `clocks[arm].cpu[round]`, fewer rounds for slow ones; and why others failed."""

    clocks: dict[str, Clock]
    failed: dict[str, str] = field(default_factory=dict)

    def seconds(self, arm: str, clock: ClockName = "cpu") -> Spread:
        """Spread of the seconds of a call. The lower quartile is the least disturbed reading."""
        return Spread.of(self.clocks[arm].read(clock))

    def ratio(self, ours: str, peer: str, clock: ClockName = "cpu") -> Spread:
        """Spread of the per-round ratios ours / peer; below 1 ours is faster."""
        pairs = zip(self.clocks[ours].read(clock), self.clocks[peer].read(clock), strict=False)
        return Spread.of([a / b for a, b in pairs])

    def share(self, arm: str, flops: float, gemm: str, gemm_flops: float, clock: ClockName = "cpu") -> Spread:
        """Spread of (the arm's FLOP rate) / (the matrix product's FLOP rate) in the same rounds."""
        pairs = zip(self.clocks[arm].read(clock), self.clocks[gemm].read(clock), strict=False)
        return Spread.of([(flops / a) / (gemm_flops / b) for a, b in pairs])


def alternate(
    calls: Mapping[str, Call],
    rounds: int,
    *,
    warmup: int = 1,
    least: float = 0.02,
    patience: float = math.inf,
    once: Collection[str] = (),
    wait: Call = lambda: None,
) -> Timings:
    """Time `calls` in alternation.

    A short call is repeated until a sample lasts about `least` seconds, and a long one takes part in the first rounds
    alone, as many as fit into `patience` seconds. Those named in `once` are called once, without a warm-up. Warm-up
    calls are not counted. Garbage is collected before every sample and never during one. `wait` runs before each
    reading of the clocks: on a GPU it is `torch.cuda.synchronize`. A call that raises is left out and told in `failed`.
    """
    timings = Timings({})
    plans: dict[str, tuple[int, int]] = {}  # rounds, and repeats within each
    with settled_heap():
        for name, call in calls.items():
            if name in once:
                plans[name] = (1, 1)
                continue
            try:
                seconds = min(_time(call, 1, wait)[1] for _ in range(max(1, warmup)))
                if seconds > patience:  # a first call may have compiled
                    seconds = min(seconds, _time(call, 1, wait)[1])
            except Exception as error:
                timings.failed[name] = told(error)
                continue
            fitting = rounds if seconds * rounds <= patience else max(1, int(patience / seconds))
            plans[name] = (fitting, max(1, round(least / max(seconds, 1e-6))))
        for turn in range(rounds):
            for name in in_turn([name for name, (fitting, _) in plans.items() if turn < fitting], turn):
                try:
                    cpu, wall = _time(calls[name], plans[name][1], wait)
                except Exception as error:
                    timings.failed[name] = told(error)
                    timings.clocks.pop(name, None)
                    plans.pop(name)
                    continue
                clock = timings.clocks.setdefault(name, Clock())
                clock.cpu.append(cpu)
                clock.wall.append(wall)
    return timings


def told(error: Exception) -> str:
    """An error in one line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__


def in_turn(names: Iterable[str], turn: int) -> list[str]:
    """The order of a round: each starts one further on, and every second one runs backwards."""
    order = list(names)
    start = turn % len(order) if order else 0
    order = order[start:] + order[:start]
    return order if turn % 2 == 0 else order[::-1]


@contextmanager
def settled_heap() -> Iterator[None]:
    """Within the block, what lives already is no matter for the garbage collector: a collection takes no time."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def exponent(lengths: Sequence[float], seconds: Sequence[float]) -> float:
    """Slope of log(seconds) against log(length), by least squares: 1 is linear growth, 2 quadratic."""
    return statistics.linear_regression([math.log(n) for n in lengths], [math.log(s) for s in seconds]).slope


def _time(call: Call, repeats: int, wait: Call) -> tuple[float, float]:
    """(CPU seconds, wall seconds) per call."""
    gc.collect()
    collecting = gc.isenabled()
    gc.disable()
    try:
        wait()
        cpu, wall = time.process_time(), time.perf_counter()
        for _ in range(repeats):
            call()
        wait()
        return (time.process_time() - cpu) / repeats, (time.perf_counter() - wall) / repeats
    finally:
        if collecting:
            gc.enable()
