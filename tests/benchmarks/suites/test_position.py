"""Positions: the rows of the symbol tasks, the arms, what changes after training, and whole runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from benchmarks.suites.api import Job
from benchmarks.suites.position import IGNORED, POSITIONS, SUITE, symbol_rows


def job(task: str, arm: str, mixer: Any = "attention", lr: float | None = 1e-2) -> Job:
    (found,) = (made for made in SUITE.arms(task, [mixer]) if made.name == arm)
    settings = {**SUITE.settings(task, "smoke"), "steps": 3}
    return Job(
        suite="position",
        version=SUITE.version,
        task=task,
        size="smoke",
        arm=found,
        seed=0,
        lr=lr,
        role="reported",
        settings=settings,
    )


@pytest.mark.parametrize("task", ["copy", "sort"])
def test_answers_are_the_row_again_or_in_order(task: str) -> None:
    ids, labels = symbol_rows(task, 20, 5, 7, torch.Generator().manual_seed(0))
    assert ids.shape == labels.shape == (20, 11)
    for row, told in zip(ids.tolist(), labels.tolist(), strict=True):
        given = row[:5]
        assert row[5] == 7 and max(given) < 7 and len(set(given)) == 5
        assert row[6:] == told[6:] == (given if task == "copy" else sorted(given))
        assert told[:6] == [IGNORED] * 6


def test_arms_are_the_positions_that_a_mixer_can_have() -> None:
    names = [arm.name for arm in SUITE.arms("language", ["attention"])]
    assert set(POSITIONS) < set(names) and {"rotary, PI", "rotary, NTK", "rotary, YaRN"} < set(names)
    assert [arm.name for arm in SUITE.arms("copy", ["attention"])] == list(POSITIONS)
    others = {arm.name for arm in SUITE.arms("language", ["mamba2"])}
    assert others == {"mamba2, sinusoidal", "mamba2, learned", "mamba2, none"}
    assert SUITE.arms("window", ["mamba2"]) == []


def test_lengths_are_compared_on_the_same_bytes_and_a_run_repeats_itself() -> None:
    first, again = (SUITE.run(job("language", "ALiBi")) for _ in range(2))
    assert first == again
    metrics = first.metrics
    assert metrics["growth"] == metrics["loss@4x"] - metrics["loss@1x"]
    assert first.curves["loss by length"] == [metrics[f"loss@{n}x"] for n in (1, 2, 4)]


def test_scaled_frequencies_change_the_evaluation_alone() -> None:
    plain, scaled = (SUITE.run(job("language", name)) for name in ("rotary", "rotary, PI"))
    assert plain.curves["train/loss"] == scaled.curves["train/loss"]
    assert plain.metrics["loss@1x"] != scaled.metrics["loss@1x"]


def test_a_window_of_the_trained_length_changes_longer_rows_alone_and_bounds_the_state() -> None:
    everything, window, sinks = (SUITE.run(job("window", name)) for name in ("all", "window", "window, 4 sinks"))
    assert everything.metrics["loss@1x"] == pytest.approx(window.metrics["loss@1x"], rel=1e-5)
    assert everything.metrics["loss@4x"] != window.metrics["loss@4x"] != sinks.metrics["loss@4x"]
    assert window.state_bytes == sinks.state_bytes == everything.state_bytes / 4


def test_symbols_are_scored_at_both_lengths() -> None:
    metrics = SUITE.run(job("copy", "T5 bias")).metrics
    assert {"accuracy@1x", "exact@1x", "accuracy@2x", "exact@2x"} < metrics.keys()
    assert 0.0 <= metrics["exact@2x"] <= metrics["accuracy@2x"] <= 1.0
