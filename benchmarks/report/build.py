"""From rows to the report's parts, and from those to files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from benchmarks.report import numbers, views
from benchmarks.report.claim import Claim, Finding, judge
from benchmarks.report.comparisons import Comparison, compare, leaves
from benchmarks.report.figures import Drawing, frontier, places, rates, scores
from benchmarks.report.page import Block, Page, Part
from benchmarks.report.rows import flat
from benchmarks.report.style import Look, looks
from benchmarks.report.tables import Cell, Column, Table, markdown
from benchmarks.suites.api import Row, Suite
from zoo.files import write_text, write_whole

__all__ = ["Report", "build"]

TITLE = "Shared benchmarks"
TONES = {"holds": "good", "does not hold": "bad", "not run": "quiet"}


@dataclass(frozen=True)
class Report:
    """Everything that is written."""

    frame: pd.DataFrame
    page: Page

    def write(self, folder: Path) -> list[Path]:
        """Write every file whole or not at all. Raises OSError."""
        page, texts, images = self.page, {}, {}
        texts["tables/known-shapes.md"] = markdown(page.claims, 1)
        texts["tables/runs.md"] = "\n".join(markdown(table, 2) for table in (page.troubles, page.runs) if table)
        for part in page.parts:
            tables = [*part.matrices, *(t for b in part.blocks for t in (b.measured, b.pairs, *b.more) if t)]
            head = f"# {part.title}\n\n`{part.name}`{f', {part.paper}' if part.paper else ''}\n"
            texts[f"tables/{part.name}.md"] = "\n".join([head, *(markdown(t, _level(t, part)) for t in tables)])
            for drawing in (*part.pictures, *(d for b in part.blocks for d in (*b.figures, *b.further))):
                texts[f"figures/{drawing.name}.svg"] = drawing.svg
                images[f"figures/{drawing.name}.png"] = drawing.png
        texts["index.html"] = page.html()
        for name in ("tables", "figures"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        write_whole(folder / "results.parquet", lambda file: self.frame.to_parquet(file, index=False))
        for name, text in texts.items():
            write_text(folder / name, text)
        for name, image in images.items():
            write_whole(folder / name, lambda file, image=image: file.write(image))
        return [folder / name for name in ("results.parquet", *texts, *images)]


def build(
    rows: Sequence[Row], suites: Mapping[str, Suite], claims: Sequence[Claim], problems: Sequence[str] = ()
) -> Report:
    """The report on these rows. `problems`: sentences on lines that were no rows.

    `smoke` rows only prove that everything runs: where there are others they go to the Parquet file alone.
    """
    every, rows = rows, [row for row in rows if row.job.size != "smoke"] or rows
    if len(rows) < len(every):
        count = numbers.amount(len(every) - len(rows), "row")
        problems = [*problems, f"{count} of size smoke in results.parquet alone: there are larger ones to show."]
    comparisons = compare(rows, suites)
    names = dict.fromkeys(comparison.suite for comparison in comparisons)
    parts = [_part([c for c in comparisons if c.suite == name], suites.get(name)) for name in names]
    findings = judge(claims, comparisons)
    page = Page(
        title=TITLE,
        lede="Architectures compared at matched budgets, each tuned alike, with intervals over seeds.",
        facts=_facts(rows, findings),
        problems=problems,
        claims=_claims(findings),
        parts=parts,
        troubles=views.troubles(rows),
        runs=views.runs(rows),
    )
    return Report(flat(every), page)


def _part(comparisons: Sequence[Comparison], suite: Suite | None) -> Part:
    shown = looks(entry.label for comparison in comparisons for entry in comparison.entries)
    sizes = dict.fromkeys(comparison.size for comparison in comparisons)
    alike = [[c for c in comparisons if c.size == size] for size in sizes]
    first = comparisons[0]
    return Part(
        name=first.suite,
        title=first.title,
        paper=suite.paper if suite else "",
        matrices=[table for group in alike if (table := views.matrix(group))],
        pictures=[drawing for group in alike if (drawing := scores(group))],
        blocks=[_block(comparison, shown) for comparison in comparisons],
    )


def _block(comparison: Comparison, shown: Mapping[str, Look]) -> Block:
    first, *further = places(comparison, shown) or [None]
    drawn: list[Drawing | None] = [frontier(comparison, shown), rates(comparison, shown), first]
    more = [views.metrics(comparison), views.costs(comparison)]
    return Block(
        measured=views.measured(comparison),
        pairs=views.pairs(comparison),
        more=[table for table in more if table],
        figures=[drawing for drawing in drawn if drawing],
        further=[drawing for drawing in further if drawing],
        settings=[("version", str(comparison.version)), *((n, views.plain(v)) for n, v in leaves(comparison.settings))],
    )


def _facts(rows: Sequence[Row], findings: Sequence[Finding]) -> list[tuple[str, str]]:
    suites, arms = {row.job.suite for row in rows}, {row.job.arm.name for row in rows}
    asked = [finding for finding in findings if finding.answer != "not run"]
    facts = [
        ("suites", f"{len(suites)}"),
        ("arms", f"{len(arms)}"),
        ("jobs", f"{len(rows):,}"),
        ("refused, crashed, timed out", f"{sum(row.status != 'ok' for row in rows):,}"),
        ("processes, wall time together", numbers.duration(sum(row.seconds for row in rows))),
        ("CPU time", numbers.duration(sum(row.cpu_seconds for row in rows))),
        ("known shapes that hold", f"{sum(f.answer == 'holds' for f in asked)} of {len(asked)} asked"),
    ]
    days = sorted(row.taken[:10] for row in rows)
    return [*facts, ("taken", days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}")] if days else facts


def _claims(findings: Sequence[Finding]) -> Table:
    columns = [
        Column(name="shape"),
        Column(name="answer"),
        Column(name="asked", help="of the medians over reported seeds"),
        Column(name="margin", unit="measured", numeric=True),
        Column(name="figures", help="medians"),
        Column(name="rows"),
        Column(name="known from"),
    ]
    rows = [
        [
            Cell(finding.claim.text, finding.claim.text),
            Cell(finding.answer, finding.answer, tone=TONES[finding.answer]),
            Cell(finding.claim.shape.asked, finding.claim.shape.asked),
            Cell(numbers.figure(finding.margin), finding.margin),
            Cell(finding.figures or "–", finding.figures or None),
            Cell(finding.place or f"{finding.claim.suite}: {finding.claim.task}", finding.place or None),
            Cell(finding.claim.paper, finding.claim.paper),
        ]
        for finding in findings
    ]
    return Table(title="Inequalities", columns=columns, rows=rows)


def _level(table: Table, part: Part) -> int:
    return 2 if table in part.matrices or any(table is block.measured for block in part.blocks) else 3
