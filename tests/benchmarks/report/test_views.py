"""Tables: numbers as people read them, everything that went wrong in its place."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.report import numbers, views
from benchmarks.report.comparisons import compare
from benchmarks.report.tables import Cell, Column, Table, markdown, slug
from benchmarks.statistics import Interval
from benchmarks.suites.api import Task
from tests.benchmarks.report.made import SUITES, MadeSuite, many, row


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (0.98765, "0.988"), (-0.25, "−0.250"), (0.0, "0.000"), (-0.0, "0.000"), (12.3456, "12.346"),
        (1234.5, "1,234.5"), (45678.9, "45,679"), (1.5e7, "1.50e+07"), (2e-5, "2.00e-05"),
        (float("nan"), "not finite"), (None, "–"),
    ],
)  # fmt: skip
def test_figures(value: float | None, told: str) -> None:
    assert numbers.figure(value) == told


def test_units() -> None:
    assert [numbers.data(n) for n in (512, 1536, 3 * 2**20, None)] == ["512 B", "1.5 KiB", "3 MiB", "–"]
    assert [numbers.count(n) for n in (1234, 1.234e6, 2e9)] == ["1,234", "1.23 M", "2 G"]
    assert [numbers.duration(s) for s in (5, 600, 7200)] == ["5.0 s", "10.0 min", "2.00 h"]
    assert [numbers.rate(lr) for lr in (1e-3, 3.16e-3, 0.1, None)] == ["1e-3", "3.16e-3", "1e-1", "–"]
    assert [numbers.probability(p) for p in (0.0004, 0.04, float("nan"))] == ["< 0.001", "0.040", "–"]


def test_an_interval_has_the_digits_of_its_mean() -> None:
    assert numbers.interval(0.05, Interval(-0.00004, 0.1)) == "0.050 [0.000, 0.100]"
    assert numbers.interval(1500.0, Interval(1400.0, 1600.0)) == "1,500.0 [1,400.0, 1,600.0]"
    assert numbers.interval(0.5, Interval(float("nan"), float("nan"))) == "0.500"


def test_markdown_escapes_bars_and_stands_numbers_right() -> None:
    columns = [Column(name="arm"), Column(name="a", unit="mean [95 %]", numeric=True)]
    table = Table(title="T", columns=columns, rows=[[Cell("x|y"), Cell("1.0", 1.0)]], notes=["one", "two"])
    told = "### T\n\n| arm | a, mean [95 %] |\n|---|---:|\n| x\\|y | 1.0 |\n\none  \ntwo\n"
    assert markdown(table) == told


def test_slugs_are_names_of_files() -> None:
    assert slug("made: Associative recall (small), ×4") == "made-associative-recall-small-4"


def cells(table: Table, arm: str) -> dict[str, Cell]:
    found = next(row for row in table.rows if row[0].text == arm)
    return {column.name: cell for column, cell in zip(table.columns, found, strict=True)}


def test_the_measured_table_tells_of_every_arm_what_became_of_it() -> None:
    table = views.measured(compare(many(), SUITES)[0])
    assert {row[0].text for row in table.rows} > {"attention", "rwkv7", "my_mixer <b>"}
    assert cells(table, "rwkv7")["status"] == Cell(
        "refused", "refused", tone="bad", note="mixer: 'rwkv7' cannot be built at width 30. Fits: attention."
    )
    assert cells(table, "mamba2")["status"].text == "1 crashed"
    assert cells(table, "mamba2")["rate"].text == "1e-2 (edge)"
    assert cells(table, "attention")["rate"].text == "3.16e-3"
    assert cells(table, "retention")["status"].text == "1 timed out, 1 diverged"
    assert cells(table, "retention")["seeds"].text == "5 of 6"


def test_success_is_a_share_of_the_seeds_that_ran() -> None:
    values = (0.95, 0.9, 0.89, float("nan"))
    table = views.measured(compare([row("kda", n, metrics={"accuracy": v}) for n, v in enumerate(values)], SUITES)[0])
    success = cells(table, "kda")["success"]
    assert success.order == 0.5 and success.note == "2 of 4"
    assert success.text == "0.500 [0.150, 0.850]"  # Wilson for 2 of 4: (2 + z²/2)/(4 + z²) ∓ ..., z = 1.96


def test_pairs_are_of_equal_seeds_and_corrected_over_arms() -> None:
    base = [row("attention", n, metrics={"accuracy": 0.9 + 0.01 * n}) for n in range(4)]
    worse = [row("kda", n, metrics={"accuracy": 0.5 + 0.012 * n}) for n in range(1, 4)]
    alike = [row("gla", n, metrics={"accuracy": 0.9 + 0.01 * n + (-1) ** n * 0.02}) for n in range(4)]
    table = views.pairs(compare([*base, *worse, *alike], SUITES)[0])
    assert table is not None and [row[0].text for row in table.rows] == ["gla", "kda"]
    assert cells(table, "kda")["pairs"].text == "3" and cells(table, "kda")["at 0.05"].text == "worse"
    assert cells(table, "gla")["at 0.05"].text == "no difference shown"
    for arm in ("kda", "gla"):
        assert cells(table, arm)["p, Holm"].order >= cells(table, arm)["p"].order  # type: ignore[operator]


def test_scores_are_normalised_between_the_trivial_answer_and_the_reference() -> None:
    vit, gpt = {"suite": "made_families", "task": "vit"}, {"suite": "made_families", "task": "gpt"}
    rows = [row("attention", metrics={"test/accuracy": 0.9}, **vit), row("kda", metrics={"test/accuracy": 0.5}, **vit)]
    rows += [row("attention", metrics={"test/bits_per_character": 2.4}, **gpt)]
    rows += [
        row("kda", status="refused", message="cannot", **gpt),
        row("gla", status="timed out", message="600 s", **gpt),
    ]
    table = views.matrix(compare(rows, SUITES))
    assert table is not None
    assert cells(table, "kda")["vit"].order == pytest.approx((0.5 - 0.1) / (0.9 - 0.1))
    assert cells(table, "attention")["gpt"].text == "1.00"
    assert cells(table, "kda")["gpt"].text == "(1)" and cells(table, "gla")["gpt"].text == "(2)"
    assert cells(table, "gla")["vit"].text == "not run"
    assert table.notes[1:] == ["(1) cannot", "(2) timed out: 600 s"]


def test_a_task_that_can_be_solved_is_normalised_to_that() -> None:
    tasks = [Task(name=name, primary="accuracy", trivial=0.5, solved=0.9) for name in ("parity", "s3", "alone")]
    suites: dict[str, Any] = {"made": MadeSuite("made", tasks)}
    rows = [
        row(arm, task=task, metrics={"accuracy": a}) for task in ("parity", "s3") for arm, a in (("x", 0.7), ("y", 0.9))
    ]
    table = views.matrix(compare([*rows, row("z", task="alone")], suites))
    assert table is not None and [column.name for column in table.columns] == ["arm", "parity", "s3"]
    assert [cell.text for cell in table.rows[0]] == ["x", "0.50", "0.50"] and table.rows[1][1].order == 1.0
    assert "1 is accuracy 0.900" in table.notes[0]


def test_no_job_that_failed_is_missing() -> None:
    rows = many()
    table = views.troubles(rows)
    assert table is not None and len(table.rows) == sum(one.status != "ok" for one in rows)
    assert views.troubles([row("kda")]) is None


def test_runs_add_up() -> None:
    table = views.runs(many())
    assert sum(int(cells.text) for cells in (row[2] for row in table.rows)) == len(many())
    assert "python 3.11" in cells(table, "made")["versions"].text
    assert cells(table, "made")["tuning seeds"].text == "1000, 1001, 1002"
