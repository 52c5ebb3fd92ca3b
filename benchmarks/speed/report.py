"""The report: a table for people, plain values for JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from benchmarks.speed.arms import OURS, Family
from benchmarks.speed.measure import Spread, exponent
from benchmarks.speed.run import Row

__all__ = ["LONG", "document", "growth", "growth_table", "table", "verdict"]

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


def verdict(rows: Sequence[Row]) -> str:
    """One line: how many targets hold."""
    results = [met for row in rows for _, _, met in row.targets]
    return f"{sum(results)} of {len(results)} targets met" if results else "no targets for these cases"


LONG = 1024
"""Growth is read from this length on: below it fixed costs hide it."""


def growth(rows: Sequence[Row], family: Family[Any], cases: Sequence[Any]) -> list[dict[str, Any]]:
    """For each series, mode and arm with three lengths or more: exponents of CPU time and of peak memory in length."""
    if family.series is None:
        return []
    place = {case.name: family.series(case) for case in cases}
    found: dict[tuple[str, str, str], list[tuple[int, Row]]] = {}
    for row in rows:
        name, length = place[row.case]
        if length >= LONG:
            found.setdefault((name, row.mode, row.arm), []).append((length, row))
    told = []
    for (name, mode, arm), points in found.items():
        if len(points) < 3:
            continue
        lengths = [length for length, _ in points]
        entry: dict[str, Any] = {"series": name, "mode": mode, "arm": arm, "lengths": lengths}
        entry["time"] = exponent(lengths, [row.cpu.q1 for _, row in points])
        peaks = [row.peak.median for _, row in points if row.peak is not None]
        entry["memory"] = exponent(lengths, peaks) if len(peaks) == len(points) and min(peaks) > 0 else None
        told.append(entry)
    return told


def growth_table(entries: Sequence[dict[str, Any]]) -> Table:
    """A line for each entry of `growth`."""
    shown = Table(title=f"growth with length, from {LONG} on (1 = linear)", title_justify="left")
    for name in ("series", "mode", "arm", "time", "memory"):
        shown.add_column(name)
    for entry in entries:
        memory = "" if entry["memory"] is None else f"{entry['memory']:.2f}"
        shown.add_row(entry["series"], entry["mode"], entry["arm"], f"{entry['time']:.2f}", memory)
    return shown


def document(
    rows: Sequence[Row], absent: dict[str, str], header: dict[str, Any], growth: Sequence[dict[str, Any]] = ()
) -> dict[str, Any]:
    """Everything as plain values: seconds, bytes and ratios (ours / theirs), each with its spread over the rounds."""
    plain = [row.plain() for row in rows]
    grown = {"growth": list(growth)} if growth else {}
    return header | {"ours": OURS, "absent": absent, "verdict": verdict(rows), **grown, "rows": plain}


def _ratio(spread: Spread | None) -> str:
    return f"{spread.median:.3f} [{spread.q1:.3f} {spread.q3:.3f}]" if spread else ""


def _targets(row: Row) -> str:
    missed = [
        f"{target.figure} {value:.2f} {'<' if target.figure == 'share' else '>'} {target.bound:g}"
        for target, value, met in row.targets
        if not met
    ]
    return "missed: " + ", ".join(missed) if missed else "met" if row.targets else ""
