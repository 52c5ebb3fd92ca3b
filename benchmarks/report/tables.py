"""One table, written twice: as Markdown for files and as rows for the page."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["Cell", "Column", "Table", "markdown", "slug"]


@dataclass(frozen=True, kw_only=True)
class Column:
    """A heading, its unit, whether numbers stand below it, and what it means."""

    name: str
    unit: str = ""
    numeric: bool = False
    help: str = ""

    @property
    def title(self) -> str:
        return f"{self.name}, {self.unit}" if self.unit else self.name


@dataclass(frozen=True)
class Cell:
    """What is read, what it is sorted by (None: always last), a tone, and what a pointer resting on it shows."""

    text: str
    order: float | str | None = None
    tone: str = ""
    """`good`, `bad`, `quiet` or nothing."""
    note: str = ""
    shade: float | None = None
    """From 0 to 1: how far the background goes from the page's to the strongest."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table with its caption and the sentences below it."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str] = field(default_factory=tuple)
    key: str = ""
    """Its place on the page, where that of the title would not be the only one."""

    @property
    def id(self) -> str:
        return slug(self.key or self.title)


def slug(text: str) -> str:
    """Lower-case words joined by hyphens: an anchor, and a file's name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def markdown(table: Table, level: int = 3) -> str:
    """The table with its title as a heading; numbers stand right."""
    head = "| " + " | ".join(_plain(column.title) for column in table.columns) + " |"
    rule = "|" + "|".join("---:" if column.numeric else "---" for column in table.columns) + "|"
    lines = ["| " + " | ".join(_plain(cell.text) for cell in row) + " |" for row in table.rows]
    notes = [f"{note}  " for note in table.notes]
    parts = [f"{'#' * level} {table.title}", "\n".join([head, rule, *lines])]
    return "\n\n".join([*parts, *(["\n".join(notes).rstrip()] if notes else [])]) + "\n"


def _plain(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")
