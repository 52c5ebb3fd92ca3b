"""The figures: accuracy against state, metric against learning rate, metric against place, arms against tasks.

Every figure is drawn once by matplotlib; files and the page take it from there (inline.py). A point that tells
something when it is reached is a line of its own with the group name `point-N`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from textwrap import fill

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from benchmarks.report import numbers
from benchmarks.report.comparisons import Comparison, Entry
from benchmarks.report.inline import SETTINGS, inline, png, svg
from benchmarks.report.style import INK, MUTED, Look
from benchmarks.report.tables import slug
from benchmarks.report.views import normalised, shared
from benchmarks.statistics import summary

__all__ = ["Drawing", "frontier", "places", "rates", "scores"]

WIDE, HIGH = 4.7, 3.0
"""Inches of the axes' figure without its legend: text stays readable where a page is 390 pixels wide."""
POINTED = re.compile(r"(?P<name>[^@]+)@(?P<at>\d+(?:\.\d+)?(?:e[+-]?\d+)?)(?P<unit>.*)")
LETTERS = 52
"""Of a line of a title."""
BOUNDS = ("_low", "_high")
"""Endings of metrics that bound another one."""


@dataclass(frozen=True)
class Drawing:
    """A figure in its three forms, with the sentence that stands in for it."""

    name: str
    title: str
    alt: str
    svg: str
    png: bytes
    inline: str


class _Board:
    """Axes, the labels of the points put on them, and the arms in the legend."""

    def __init__(self, arms: Mapping[str, Look], columns: int = 2) -> None:
        lines = -(-len(arms) // columns)
        with mpl.rc_context(SETTINGS):
            self.figure = Figure(figsize=(WIDE, HIGH + 0.19 * lines + 0.15), layout="constrained")
            self.axes: Axes = self.figure.add_subplot()
            handles = [
                Line2D([], [], color=look.color, marker=look.mark, linestyle=look.line, markersize=5.5, label=name)
                for name, look in arms.items()
            ]
            if handles:
                self.figure.legend(handles=handles, loc="outside lower left", ncols=columns, handlelength=2.6)
        self.arms = arms
        self.labels: dict[str, str] = {}
        self.owners: dict[str, str] = {}

    def point(self, x: float, y: float, arm: str, label: str, size: float = 7.0, hollow: bool = False) -> None:
        look, name = self.arms[arm], f"point-{len(self.labels)}"
        self.axes.plot(
            [x], [y], look.mark, color=look.color, markersize=size, gid=name, zorder=3,
            markerfacecolor="#ffffff" if hollow else look.color, markeredgewidth=1.4,
        )  # fmt: skip
        self.labels[name], self.owners[name] = label, arm

    def line(self, x: Sequence[float], y: Sequence[float], arm: str, plain: bool = False) -> None:
        look, name = self.arms[arm], f"series-{len(self.owners)}"
        self.axes.plot(x, y, linestyle="-" if plain else look.line, color=look.color, gid=name, linewidth=1.2, zorder=2)
        self.owners[name] = arm

    def done(self, name: str, title: str, alt: str) -> Drawing:
        with mpl.rc_context(SETTINGS):
            self.axes.set_title(fill(title, LETTERS))
        text = svg(self.figure, name)
        self.figure.set_layout_engine("none")  # places are found: the second file keeps them
        return Drawing(slug(name), title, alt, text, png(self.figure), inline(text, self.labels, self.owners, alt))


def frontier(comparison: Comparison, looks: Mapping[str, Look]) -> Drawing | None:
    """The primary metric against the state's bytes, with intervals; None where no state differs from another."""
    task = comparison.task
    found = [(e, list(e.values(task.primary).values()), e.outcome) for e in comparison.ranked()]
    limits = numbers.limits(task.primary)
    shown = [(e, summary(v, limits=limits), outcome.state_bytes) for e, v, outcome in found if v and outcome]
    if len({size for _, _, size in shown}) < 2:
        return None
    board = _Board({e.label: looks[e.label] for e, _, _ in shown})
    _kilobytes(board.axes, [size for _, _, size in shown])
    for entry, at, size in shown:
        if np.isfinite(at.interval.low):
            board.line([size, size], [at.interval.low, at.interval.high], entry.label, plain=True)
    for entry, at, size in shown:
        value, seeds = numbers.interval(at.mean, at.interval), numbers.amount(at.count, "seed")
        told = f"{value}, {numbers.data(size)} of state, {seeds}"
        board.point(size, at.mean, entry.label, f"{entry.label}: {task.primary} {told}")
    _staircase(board.axes, [(size, at.mean) for _, at, size in shown], task.higher_is_better)
    board.axes.set_xlabel("state of one row (grey: the best up to there)")
    board.axes.set_ylabel(f"{task.primary}, mean with 95 % interval")
    _baseline(board.axes, comparison)
    best = shown[0]
    alt = (
        f"{comparison.name}. {task.primary} against state bytes for {numbers.amount(len(shown), 'arm')}. "
        f"Best: {best[0].label}, {numbers.figure(best[1].mean)} with {numbers.data(best[2])}."
    )
    return board.done(f"{comparison.key} frontier", f"{task.title or task.name}: {task.primary} against state", alt)


def rates(comparison: Comparison, looks: Mapping[str, Look]) -> Drawing | None:
    """The primary metric of the tuning runs against the learning rate; a ring marks a best rate, a cross says that it
    lies at an edge. None where nothing was tuned."""
    task = comparison.task
    shown = [entry for entry in comparison.ranked() if sum(bool(p.values) for p in entry.curve) > 1]
    if not shown:
        return None
    board = _Board({entry.label: looks[entry.label] for entry in shown})
    board.axes.set_xscale("log")
    for entry in shown:
        points = [point for point in entry.curve if point.values]
        board.line([p.lr for p in points], [p.mean for p in points], entry.label)
    for entry in shown:
        for point in (point for point in entry.curve if point.values):
            chosen = entry.lr is not None and point.lr == entry.lr
            told = f"{task.primary} {numbers.figure(point.mean)} at rate {numbers.rate(point.lr)}"
            told += f", {numbers.amount(len(point.values), 'tuning seed')}" + (
                f", {point.lost} without a value" if point.lost else ""
            )
            told += (", chosen, at the edge of the grid" if entry.at_edge else ", chosen") if chosen else ""
            board.point(point.lr, point.mean, entry.label, f"{entry.label}: {told}", 8.5 if chosen else 4.5, chosen)
            if chosen and entry.at_edge:
                board.axes.plot([point.lr], [point.mean], "x", color=INK, markersize=5, zorder=4)
    tried = sorted({point.lr for entry in shown for point in entry.curve})
    board.axes.set_xticks(tried, [numbers.rate(lr) for lr in tried])
    board.axes.minorticks_off()
    board.axes.set_xlabel("learning rate (hollow: chosen; ×: chosen at the edge)")
    board.axes.set_ylabel(f"{task.primary}, mean of tuning seeds")
    edges = [entry.label for entry in shown if entry.at_edge]
    alt = (
        f"{comparison.name}. {task.primary} against learning rate for {numbers.amount(len(shown), 'arm')}. "
        + (f"Best at the edge of the grid: {', '.join(edges)}." if edges else "No best rate at the edge of the grid.")
    )  # fmt: skip
    return board.done(f"{comparison.key} rates", f"{task.title or task.name}: {task.primary} against rate", alt)


def places(comparison: Comparison, looks: Mapping[str, Look]) -> list[Drawing]:
    """Metrics measured at several places, `loss@1x, loss@2x, ...`, each against its place; the primary one's first."""
    families: dict[tuple[str, str], dict[float, str]] = {}
    for entry in comparison.entries:
        for _, outcome in entry.reported:
            for metric in outcome.metrics:
                if (found := POINTED.fullmatch(metric)) and not found["name"].endswith(BOUNDS):
                    families.setdefault((found["name"], found["unit"]), {})[float(found["at"])] = metric
    primary = comparison.task.primary
    ordered = sorted(families.items(), key=lambda family: primary not in family[1].values())
    return [_places(comparison, looks, name, unit, found) for (name, unit), found in ordered if len(found) > 1]


def _places(
    comparison: Comparison, looks: Mapping[str, Look], name: str, unit: str, metrics: Mapping[float, str]
) -> Drawing:
    series: list[tuple[Entry, list[tuple[float, float]]]] = []
    for entry in comparison.ranked():
        found = [(at, list(entry.values(metrics[at]).values())) for at in sorted(metrics)]
        points = [(at, sum(values) / len(values)) for at, values in found if values]
        if points:
            series.append((entry, points))
    board = _Board({entry.label: looks[entry.label] for entry, _ in series})
    _spaced(board.axes.set_xscale, [at for at in metrics if at > 0], len(metrics))
    for entry, points in series:
        board.line([at for at, _ in points], [value for _, value in points], entry.label)
    for entry, points in series:
        for at, value in points:
            label = f"{entry.label}: {name} {numbers.figure(value)} at {at:g}{unit}"
            board.point(at, value, entry.label, label, 5.0)
    values = [value for _, points in series for _, value in points]
    _spaced(board.axes.set_yscale, [value for value in values if value > 0], len(values), beyond=300)
    board.axes.set_xticks(sorted(metrics), [f"{at:g}{unit}" for at in sorted(metrics)])
    board.axes.minorticks_off()
    board.axes.set_xlabel(f"x of {name}@x")
    board.axes.set_ylabel(f"{name}, mean of seeds")
    told = ", ".join(f"{at:g}{unit}" for at in sorted(metrics))
    title = f"{comparison.task.title or comparison.task.name}: {name} at {told}"
    alt = f"{comparison.name}. {name} at {told} for {numbers.amount(len(series), 'arm')}."
    return board.done(f"{comparison.key} {name} {unit} places", title, alt)


def scores(comparisons: Sequence[Comparison]) -> Drawing | None:
    """Arms down, tasks across: the normalised score of each, as `views.matrix` tells it."""
    scored, labels = shared(comparisons)
    if len(scored) < 2 or len(labels) < 2:
        return None
    grid = np.full((len(labels), len(scored)), np.nan)
    for column, comparison in enumerate(scored):
        for entry in (entry for entry in comparison.entries if entry.label in labels):
            score = normalised(entry, comparison)
            grid[labels.index(entry.label), column] = np.nan if score is None else score
    with mpl.rc_context(SETTINGS | {"axes.grid": False}):
        size = (max(1.9 + 0.62 * len(scored), 4.4), 1.3 + 0.26 * len(labels))  # not narrower than its title
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.add_subplot()
        axes.imshow(grid, cmap="RdBu", vmin=0, vmax=2, aspect="auto")  # white: as the reference
        for (row, column), score in np.ndenumerate(grid):
            told = "–" if np.isnan(score) else f"{score:.2f}"
            dark = np.isnan(score) or 0.3 < score < 1.7
            axes.text(column, row, told, ha="center", va="center", color="#000000" if dark else "#fefefe", fontsize=8)
        axes.set_xticks(range(len(scored)), [c.task.name for c in scored], rotation=35, ha="right")
        axes.set_yticks(range(len(labels)), labels)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    first = scored[0]
    name, title = f"{first.suite} {first.size} scores", f"{first.title}: normalised scores"
    axes.set_title(title, fontsize=9, fontweight="bold", loc="left")
    text = svg(figure, name)
    alt = f"Normalised scores of {len(labels)} arms on {len(scored)} tasks of {first.suite}; the table has them too."
    return Drawing(slug(name), title, alt, text, png(figure), "")  # the page shows the table


def _kilobytes(axes: Axes, sizes: Sequence[int]) -> None:
    """A scale of powers of two, in binary units; linear near 0, where a mixer keeps nothing."""
    positive = [size for size in sizes if size > 0]
    if len(positive) < len(sizes):
        axes.set_xscale("symlog", base=2, linthresh=min(positive))
    else:
        axes.set_xscale("log", base=2)
    low, high = np.log2(min(positive)), np.log2(max(positive))
    step = max(1, round((high - low) / 5))
    ticks = [2.0**power for power in range(int(np.floor(low)), int(np.ceil(high)) + 1, step)]
    ticks = ([0.0] if len(positive) < len(sizes) else []) + ticks
    axes.set_xticks(ticks, [numbers.data(tick) for tick in ticks])
    axes.minorticks_off()


def _staircase(axes: Axes, points: Sequence[tuple[int, float]], higher_is_better: bool) -> None:
    """The best of all arms that keep no more than so many bytes."""
    sizes, values = zip(*sorted(points), strict=True)
    best = list(accumulate(values, max if higher_is_better else min))
    axes.step(sizes, best, where="post", color=MUTED, linewidth=1.0, alpha=0.6, zorder=1)


def _spaced(scale: Callable[..., None], positive: Sequence[float], total: int, beyond: float = 3) -> None:
    """A logarithmic scale where all values are positive and span more than a factor."""
    if positive and len(positive) == total and max(positive) / min(positive) > beyond:
        scale("log")


def _baseline(axes: Axes, comparison: Comparison) -> None:
    """The trivial baseline and the bound of success, as far as the task tells them."""
    for value, told in ((comparison.task.trivial, "trivial"), (comparison.task.solved, "solved")):
        if value is not None:
            axes.axhline(value, color=MUTED, linewidth=0.9, linestyle=(0, (2, 2)), zorder=1)
            axes.annotate(
                told, (1, value), xycoords=("axes fraction", "data"), ha="right", va="bottom", fontsize=7.5, color=MUTED
            )
