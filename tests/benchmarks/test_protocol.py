"""Which rates are tried, which one is taken, and which jobs follow from the rows there are."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.protocol import EXTENSIONS, FIRST_TUNING_SEED, Cell, choose, next_rate
from benchmarks.suites.api import Arm, Job, Outcome, Row, Task

GRID = (1e-3, 3.16e-3, 1e-2)


def row(job: Job, value: float | None, status: Any = "ok") -> Row:
    outcome = None
    if value is not None:
        outcome = Outcome(
            metrics={"accuracy": value}, params=1, params_non_embedding=1, flops_per_token=1, state_bytes=1
        )
    return Row(
        key=job.key,
        job=job,
        status=status,
        message="",
        outcome=outcome,
        seconds=1.0,
        cpu_seconds=1.0,
        peak_bytes=1,
        command="",
        taken="",
        machine={},
    )


def cell(**changes: Any) -> Cell:
    task = changes.pop("task", Task(name="t", primary="accuracy"))
    choices: dict[str, Any] = {"rates": GRID, "seeds": 3, "settings": {}, **changes}
    return Cell(suite="s", version=1, task=task, size="small", arm=Arm(name="a", mixer="attention"), **choices)


def run(one: Cell, value: Callable[[Job], float | None]) -> dict[str, Row]:
    rows: dict[str, Row] = {}
    while jobs := one.next(rows):
        for job in jobs:
            assert job.key not in rows
            rows[job.key] = row(job, value(job))
    return rows


def test_the_best_rate_inside_the_grid_is_taken() -> None:
    found = choose({1e-3: 0.2, 3.16e-3: 0.9, 1e-2: 0.3}, True)
    assert found.rate == 3.16e-3 and found.interior
    assert choose({1e-3: 2.0, 3.16e-3: 1.0, 1e-2: math.nan}, False).rate == 3.16e-3


def test_among_equals_the_one_furthest_from_the_edges_is_taken() -> None:
    assert choose({1e-3: 1.0, 3.16e-3: 0.995, 1e-2: 1.0}, True).rate == 3.16e-3
    assert next_rate({1e-3: 1.0, 3.16e-3: 1.0, 1e-2: 1.0}, GRID, True) is None
    assert not choose({1e-3: 0.2, 3.16e-3: 0.9, 1e-2: 0.95}, True).interior


def test_a_grid_grows_by_the_root_of_ten_on_the_side_of_the_best() -> None:
    scores = {1e-3: 0.1, 3.16e-3: 0.2, 1e-2: 0.3}
    assert next_rate(scores, GRID, True) == 3.16e-2
    assert next_rate(scores, GRID, False) == 3.16e-4
    assert next_rate({**scores, 3.16e-2: 0.25}, GRID, True) is None


def test_a_grid_grows_only_so_far() -> None:
    tried = run(cell(), lambda job: math.log(job.lr or 1))
    rates = sorted({one.job.lr for one in tried.values() if one.job.role == "tuning"})
    assert len(rates) == len(GRID) + EXTENSIONS and rates[-1] == 1e-1
    assert {one.job.lr for one in tried.values() if one.job.role == "reported"} == {1e-1}


def test_rates_are_chosen_on_seeds_that_are_not_reported() -> None:
    rows = run(cell(tuning_seeds=2), lambda job: 1.0 if job.lr == 3.16e-3 else 0.5)
    tuning = {one.job.seed for one in rows.values() if one.job.role == "tuning"}
    reported = {one.job.seed for one in rows.values() if one.job.role == "reported"}
    assert tuning == {FIRST_TUNING_SEED, FIRST_TUNING_SEED + 1} and reported == {0, 1, 2}
    assert len(rows) == 3 * 2 + 3


def test_nothing_is_tuned_where_one_rate_or_none_is_given() -> None:
    for rates in ((3e-3,), ()):
        rows = run(cell(rates=rates), lambda job: 0.5)
        assert len(rows) == 3 and {one.job.role for one in rows.values()} == {"reported"}


def test_finished_rows_are_not_run_again() -> None:
    one = cell()
    rows = run(one, lambda job: 0.5)
    assert one.next(rows) == [] and one.total(rows) == len(rows)
    assert len(cell(seeds=5).next(rows)) == 2


def test_a_refusal_ends_the_arm() -> None:
    one = cell()
    first = one.next({})[0]
    rows = {first.key: row(first, None, "refused")}
    assert one.next(rows) == [] and one.total(rows) == 1


def test_a_crash_at_one_rate_counts_as_the_worst_and_at_all_ends_the_arm() -> None:
    rows = run(cell(), lambda job: None if job.lr == 1e-2 else 0.5)
    assert sum(one.job.role == "reported" for one in rows.values()) == 3
    rows = run(cell(), lambda job: None)
    assert {one.job.role for one in rows.values()} == {"tuning"} and len(rows) == 3


def test_no_scores_are_refused() -> None:
    with pytest.raises(ValueError):
        choose({}, True)
