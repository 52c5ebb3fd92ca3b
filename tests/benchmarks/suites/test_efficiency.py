"""Efficiency: what a row holds, at matched parameters. No test depends on how long anything takes."""

from __future__ import annotations

import pytest

from benchmarks.suites.api import Job
from benchmarks.suites.efficiency import SUITE


def job(task: str, mixer: str) -> Job:
    (arm,) = SUITE.arms(task, [mixer])
    settings = {**SUITE.settings(task, "smoke"), "lengths": [8, 16], "rounds": 1}
    return Job(
        suite="efficiency",
        version=SUITE.version,
        task=task,
        size="smoke",
        arm=arm,
        seed=0,
        lr=None,
        role="reported",
        settings=settings,
    )


@pytest.mark.parametrize("task", ["training", "prefill", "decoding"])
def test_a_row_tells_time_and_state_at_every_length(task: str) -> None:
    outcome = SUITE.run(job(task, "gla"))
    metrics, matched = outcome.metrics, outcome.matched["params"]
    assert outcome.params == matched["arm"] == pytest.approx(matched["reference"], rel=0.01)
    for length in (8, 16):
        assert metrics[f"time_ratio@{length}"] > 0 and metrics[f"tokens_per_second@{length}"] > 0
    assert metrics["state_bytes@8"] == metrics["state_bytes@16"] == outcome.state_bytes
    assert metrics["state_ratio@8"] == pytest.approx(2 * metrics["state_ratio@16"])


def test_the_primary_metric_is_that_of_the_longest_rows() -> None:
    for size in ("smoke", "small", "paper"):
        longest = SUITE.settings("training", size)["lengths"][-1]
        assert {task.primary for task in SUITE.tasks(size)} == {f"time_ratio@{longest}"}
