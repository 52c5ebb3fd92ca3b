"""`python -m benchmarks.report`: from rows to files, and mistakes in one line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.report.__main__ import main
from benchmarks.report.build import build
from tests.benchmarks.report.made import row, write


def test_rows_become_a_folder_that_needs_no_network(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        row(arm, seed, suite="unknown_suite", state=s)
        for arm, s in (("attention", 99), ("my_own", 9))
        for seed in (0, 1)
    ]
    folder, out = write(rows, tmp_path / "rows"), tmp_path / "new" / "report"
    assert main([f"rows={folder}", f"out={out}"]) == 0
    assert "4 rows" in capsys.readouterr().out
    names = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    figure = "figures/unknown-suite-recall-small-frontier"
    tables = {"tables/known-shapes.md", "tables/runs.md", "tables/unknown_suite.md"}
    assert names == {"results.parquet", "index.html", *tables, f"{figure}.png", f"{figure}.svg"}
    page = (out / "index.html").read_text()
    assert not re.findall(r'(?:src|href)="(?!#|data:)', page) and "@import" not in page and "url(http" not in page
    assert "my_own" in page and "my_own" in (out / "tables" / "unknown_suite.md").read_text()


def test_smoke_rows_are_shown_where_they_are_alone() -> None:
    smoke, small = row("attention", size="smoke", suite="unknown"), row("kda", suite="unknown")
    alone, both = build([smoke], {}, []), build([smoke, small], {}, [])
    assert "attention" in alone.page.html() and not alone.page.problems
    assert [part.blocks[0].measured.title for part in both.page.parts] == ["recall (small)"]
    assert both.page.problems == ["1 row of size smoke in results.parquet alone: there are larger ones to show."]
    assert len(both.frame) == 2


def test_mistakes_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, told in (
        ([f"rows={tmp_path / 'nowhere'}"], "nowhere"),
        ([f"rows={tmp_path}"], "no row in"),
        (["row=x"], "did you mean 'rows'"),
    ):
        assert main(words) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ") and told in error and error.count("\n") == 1


def test_a_broken_line_is_a_warning_and_is_on_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write([row("attention", suite="unknown_suite")], tmp_path)
    with (folder / "small" / "unknown_suite.jsonl").open("a") as file:
        file.write('{"key"')
    assert main([f"rows={folder}", f"out={tmp_path / 'out'}"]) == 0
    assert "line 2, is no row" in capsys.readouterr().err
    assert "line 2, is no row" in (tmp_path / "out" / "index.html").read_text()
