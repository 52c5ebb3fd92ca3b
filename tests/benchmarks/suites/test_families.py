"""Families: a recipe's own task with another mixer at the same parameters, and the trivial answers."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.suites.api import Job
from benchmarks.suites.families import FAMILIES, SUITE
from benchmarks.suites.matching import match_params, params_of
from benchmarks.suites.trivial import TRIVIAL, trivial
from recipes.recipe import recipe_names
from zoo.registry import ConfigError, decode


def job(task: str, mixer: Any) -> Job:
    (arm,) = SUITE.arms(task, [mixer])
    settings = SUITE.settings(task, "smoke")
    return Job(
        suite="families",
        version=SUITE.version,
        task=task,
        size="smoke",
        arm=arm,
        seed=0,
        lr=1e-3,
        role="reported",
        settings=settings,
    )


def test_every_recipe_is_a_task_with_a_trivial_answer() -> None:
    assert sorted(FAMILIES) == recipe_names() == sorted(TRIVIAL)
    assert [task.name for task in SUITE.tasks("small")] == list(FAMILIES)


@pytest.mark.parametrize("task", ["vit", pytest.param("decision", marks=pytest.mark.slow)])
def test_a_mixer_is_trained_at_the_parameters_of_attention(task: str) -> None:
    outcome = SUITE.run(job(task, "gla"))
    matched = outcome.matched["params"]
    assert matched["arm"] == outcome.params == pytest.approx(matched["reference"], rel=0.01)
    assert matched["changed"] and SUITE.run(job(task, "attention")).params == matched["reference"]
    assert FAMILIES[task].primary in outcome.metrics and len(outcome.curves["train/loss"]) == 3


def test_a_run_repeats_itself() -> None:
    assert SUITE.run(job("vit", "gla")) == SUITE.run(job("vit", "gla"))


def test_what_cannot_be_matched_is_refused_in_one_line() -> None:
    small = {"family": "gpt", "vocab_size": 8, "max_len": 8, "dim": 16, "depth": 1, "heads": 2}
    config = decode("model", small | {"mixer": "mamba2"})
    with pytest.raises(ConfigError) as refusal:
        match_params(config, params_of(decode("model", small)), 0.01)
    assert "model.ffn.hidden" in str(refusal.value) and "\n" not in str(refusal.value)


@pytest.mark.parametrize("task", ["vit", pytest.param("dit", marks=pytest.mark.slow)])
def test_trivial_answers_are_those_of_the_data(task: str) -> None:
    assert FAMILIES[task].trivial == pytest.approx(trivial(task), rel=0.01)
