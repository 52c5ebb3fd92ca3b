"""One self-contained HTML page: tables, figures, styles and scripts stand in it, and nothing is fetched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from benchmarks.report.figures import Drawing
from benchmarks.report.tables import Table

__all__ = ["Block", "Page", "Part"]

FOLDER = Path(__file__).resolve().parent / "page"


@dataclass(frozen=True, kw_only=True)
class Block:
    """One comparison."""

    measured: Table
    pairs: Table | None
    more: Sequence[Table]
    """Tables that open on demand."""
    figures: Sequence[Drawing]
    further: Sequence[Drawing]
    """Figures that open on demand."""
    settings: Sequence[tuple[str, str]]


@dataclass(frozen=True, kw_only=True)
class Part:
    """One suite."""

    name: str
    title: str
    paper: str
    matrices: Sequence[Table] = field(default_factory=tuple)
    pictures: Sequence[Drawing] = field(default_factory=tuple)
    """Figures of the matrices, for files: the page shows the tables."""
    blocks: Sequence[Block] = field(default_factory=tuple)

    @property
    def id(self) -> str:
        return f"suite-{self.name}"


@dataclass(frozen=True, kw_only=True)
class Page:
    """What the page holds."""

    title: str
    lede: str
    facts: Sequence[tuple[str, str]]
    problems: Sequence[str]
    claims: Table
    parts: Sequence[Part]
    troubles: Table | None
    runs: Table

    def html(self) -> str:
        """The page's text."""
        environment = Environment(
            loader=FileSystemLoader(FOLDER),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        # ours, and quotes in them are no text to escape
        css, js = (Markup((FOLDER / name).read_text(encoding="utf-8")) for name in ("page.css", "page.js"))
        return environment.get_template("page.html.j2").render(**self.__dict__, css=css, js=js)
