"""Colours and marks of arms: seven colours that stay apart for colour-blind readers, each with many marks.

Hues follow Okabe and Ito (2008), darkened on white to a contrast of at least 3 to 1 and lightened on black; no
meaning rests on colour alone, since an arm has its mark too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["DARK", "GRID", "INK", "LIGHT", "MUTED", "Look", "looks"]

LIGHT = ("#0072b2", "#c44e00", "#00805d", "#a8428a", "#8f6a00", "#4b3fa0", "#3a7f93")
DARK = ("#5ab4ee", "#ff9154", "#3fd2a2", "#ee9bd2", "#e8c14a", "#aaa0ff", "#8fd0e0")
"""The same seven for a dark page, in the same order."""
INK, MUTED, GRID = "#1c2126", "#5d6670", "#d9dde2"
"""Text, axes and grid of figures; the page puts its own in their place."""
MARKS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
LINES: tuple[tuple[int, tuple[float, ...]], ...] = ((0, ()), (0, (5, 1.6)), (0, (1.5, 1.5)), (0, (6, 1.5, 1.5, 1.5)))


@dataclass(frozen=True)
class Look:
    """How an arm is drawn."""

    color: str
    mark: str
    line: tuple[int, tuple[float, ...]]


def looks(names: Iterable[str]) -> dict[str, Look]:
    """A look for each name, in the order given; 63 pairs of colour and mark come before the first repeats."""
    return {
        name: Look(LIGHT[n % len(LIGHT)], MARKS[n % len(MARKS)], LINES[n // len(LIGHT) % len(LINES)])
        for n, name in enumerate(dict.fromkeys(names))
    }
