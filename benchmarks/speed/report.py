"""The report: tables for people, plain values for JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from benchmarks.speed.arms import BACKWARD, OURS, Family, Target
from benchmarks.speed.measure import Spread, exponent
from benchmarks.speed.run import Row

__all__ = [
    "LONG",
    "Promise",
    "document",
    "growth",
    "growth_table",
    "line",
    "promise_table",
    "promises",
    "table",
    "verdict",
]

FIGURES = ("CPU ms", "of GEMM", "peak MiB", "CPU time zoo/arm", "wall zoo/arm", "memory zoo/arm", "target")


def table(rows: Sequence[Row], title: str) -> Table:
    """A line an arm. Ratios are ours / theirs, as median [quartiles]; milliseconds are the lower quartile."""
    shown = Table(title=title, title_justify="left")
    for name in ("case", "mode", "arm"):
        shown.add_column(name, no_wrap=True)
    for name in FIGURES:
        shown.add_column(name, justify="right", no_wrap=True)
    before = ("", "")
    for row in rows:
        here = (row.case, row.mode)
        if here != before:
            shown.add_section()
        cells = [
            *(here if here != before else ("", "")),
            row.arm,
            f"{row.cpu.q1 * 1e3:.1f}",
            f"{row.share.median:.2f}" if row.share else "",
            f"{row.peak.median / 2**20:.1f}" if row.peak else "",
            _ratio(row.cpu_ratio),
            _ratio(row.wall_ratio),
            f"{row.memory_ratio:.3f}" if row.memory_ratio else "",
            _targets(row),
        ]
        shown.add_row(*(Text(cell) for cell in cells))  # as they are: brackets are no markup
        before = here
    return shown


Measured = Sequence[tuple[Family[Any], Any]]
"""Cases, each with the family it belongs to."""

LONG = 1024
"""Exponents are read from this length on: below it fixed costs hide them."""
DOUBLED = (512, 4096)
"""Doublings are read between these lengths."""


def line(row: Row) -> str:
    """A row in short, for the screen while the run goes on."""
    peak = f"{row.peak.median / 2**20:9.1f} MiB" if row.peak else " " * 13
    ratio = row.cpu_ratio if row.clock == "cpu" else row.wall_ratio
    shown = f"  zoo/arm {ratio.median:.3f}" if ratio else ""
    facts = "".join(f"  {name} {value:,.10g}" for name, value in row.facts.items())
    return f"  {row.mode:17} {row.arm:22} {row.cpu.q1 * 1e3:10.2f} ms {peak}{shown}{facts}"


def growth(rows: Sequence[Row], measured: Measured) -> list[dict[str, Any]]:
    """How cost grows in each series, mode and arm: exponents of CPU time and of peak memory in length, and the largest
    factor between a length and its double; None where the lengths are too few."""
    places = {case.name: place for part, case in measured if part.series and (place := part.series(case))}
    bounds = {case.name: part.growth for part, case in measured if part.growth}
    found: dict[tuple[str, str, str], dict[int, Row]] = {}
    for row in rows:
        if row.case in places:
            name, length = places[row.case]
            found.setdefault((name, row.mode, row.arm), {})[length] = row
    told = []
    for (name, mode, arm), points in found.items():
        lengths = sorted(length for length in points if length >= LONG)
        if len(lengths) < 3:
            continue
        long = [points[length] for length in lengths]
        peaks = [row.peak.median for row in long if row.peak is not None]
        steps = [
            points[2 * length].cpu.q1 / points[length].cpu.q1
            for length in points
            if DOUBLED[0] <= length < DOUBLED[1] and 2 * length in points
        ]
        told.append(
            {
                "series": name,
                "mode": mode,
                "arm": arm,
                "lengths": lengths,
                "time": exponent(lengths, [row.cpu.q1 for row in long]),
                "memory": exponent(lengths, peaks) if len(peaks) == len(lengths) and min(peaks) > 0 else None,
                "doubling": max(steps, default=None),
                "bound": bounds.get(long[0].case),
            }
        )
    return told


def growth_table(entries: Sequence[dict[str, Any]]) -> Table:
    """A line for each entry of `growth`."""
    title = f"growth with length: exponents from {LONG} on (1 = linear), largest factor of a doubling"
    shown = Table(title=title, title_justify="left")
    for name in ("series", "mode", "arm", "time", "memory", "doubling"):
        shown.add_column(name)
    for entry in entries:
        figures = ("" if entry[name] is None else f"{entry[name]:.2f}" for name in ("time", "memory", "doubling"))
        shown.add_row(entry["series"], entry["mode"], entry["arm"], *figures)
    return shown


@dataclass(frozen=True)
class Promise:
    """A target, what was measured (None: nothing was, as the peer is absent), and whether it is met."""

    target: str
    measured: float | None
    met: bool | None

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def promises(rows: Sequence[Row], measured: Measured = (), grown: Sequence[dict[str, Any]] = ()) -> list[Promise]:
    """Every target of the cases: those found in the rows, those without a row, and those of growth."""
    found, seen = [], set()
    for row in rows:
        for target, value, met in row.targets:
            found.append(Promise(_promised(target, row.case, row.mode, row.arm), value, met))
            seen.add((row.case, target))
    for part, case in measured:
        for target in part.targets:
            if not case.smoke and target.case == case.name and target.peer and (case.name, target) not in seen:
                found.append(Promise(_promised(target, case.name, target.mode or "", target.peer), None, None))
    for entry in grown:
        bound, name = entry["bound"], f"{entry['series']} {entry['mode']}, {entry['arm']}"
        if bound is None or entry["arm"] not in bound.arms:
            continue
        kinds = (
            ("time", f"exponent of time in length <= {bound.exponent:g}", bound.exponent),
            ("memory", f"exponent of memory in length <= {bound.exponent:g}", bound.exponent),
            ("doubling", f"time of twice the length <= {bound.doubling:g} times", bound.doubling),
        )
        for figure, text, limit in kinds:
            value = entry[figure]
            if value is not None and (figure != "doubling" or entry["mode"] == BACKWARD):
                found.append(Promise(f"{name}: {text}", value, value <= limit))
    return found


def promise_table(entries: Sequence[Promise]) -> Table:
    """A line for each target: what is promised, what was measured, and whether it is met."""
    shown = Table(title="targets", title_justify="left")
    for name in ("target", "measured", "met"):
        shown.add_column(name, no_wrap=name != "target")
    for entry in entries:
        value = "" if entry.measured is None else f"{entry.measured:.3f}"
        shown.add_row(Text(entry.target), value, "not measured" if entry.met is None else "yes" if entry.met else "NO")
    return shown


def verdict(entries: Sequence[Promise]) -> str:
    """One line: how many targets hold."""
    results = [entry.met for entry in entries if entry.met is not None]
    missing = len(entries) - len(results)
    told = f"{sum(results)} of {len(results)} targets met" if results else "no targets for these cases"
    return f"{told}, {missing} not measured" if missing else told


def _promised(target: Target, case: str, mode: str, arm: str) -> str:
    place = f"{case} {mode}".rstrip()
    if target.at_least:
        return f"{place}: share of the matrix product's rate >= {target.bound:g}"
    if arm == OURS:
        return f"{place}: {target.figure} <= {target.bound:g}"
    return f"{place}: {target.figure} <= {target.bound:.3g} of {arm}"


def document(
    rows: Sequence[Row],
    absent: dict[str, str],
    header: dict[str, Any],
    told: Sequence[Promise] = (),
    grown: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    """Everything as plain values: seconds, bytes and ratios (ours / theirs), each with its spread over the rounds."""
    found: dict[str, Any] = header | {"ours": OURS, "absent": absent, "verdict": verdict(told)}
    if told:
        found["targets"] = [entry.plain() for entry in told]
    if grown:
        found["growth"] = [{key: value for key, value in entry.items() if key != "bound"} for entry in grown]
    return found | {"rows": [row.plain() for row in rows]}


def _ratio(spread: Spread | None) -> str:
    return f"{spread.median:.3f} [{spread.q1:.3f} {spread.q3:.3f}]" if spread else ""


def _targets(row: Row) -> str:
    missed = [
        f"{target.figure} {value:.2f} {'<' if target.figure == 'share' else '>'} {target.bound:g}"
        for target, value, met in row.targets
        if not met
    ]
    return "missed: " + ", ".join(missed) if missed else "met" if row.targets else ""
