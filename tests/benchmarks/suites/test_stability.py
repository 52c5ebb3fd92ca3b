"""Stability: the sensitivity, the curve over rates, and what is measured of models that are not trained."""

from __future__ import annotations

import math
from typing import Any

import pytest

from benchmarks.statistics import sensitivity
from benchmarks.suites.api import Job
from benchmarks.suites.language import CHANCE, Sums
from benchmarks.suites.stability import SUITE


def job(task: str, arm: str, **settings: Any) -> Job:
    (found,) = (made for made in SUITE.arms(task, ["attention"]) if made.name == arm)
    return Job(
        suite="stability",
        version=SUITE.version,
        task=task,
        size="smoke",
        arm=found,
        seed=0,
        lr=None,
        role="reported",
        settings={**SUITE.settings(task, "smoke"), **settings},
    )


def test_sensitivity_is_the_mean_above_the_best_rate_and_counts_no_more_than_chance() -> None:
    assert sensitivity({1e-3: 2.0, 1e-2: 3.0, 1e-1: 4.0}, CHANCE) == pytest.approx(1.0)
    assert sensitivity({1e-3: 2.0, 1e-2: 1e9}, CHANCE) == pytest.approx((CHANCE - 2.0) / 2)


def test_a_training_that_breaks_down_counts_as_chance() -> None:
    assert Sums([3.0, math.nan], finite=False).last(1) == math.log(256)
    assert Sums([3.0, 1.0, 2.0], finite=True).last(2) == 1.5


def test_every_rate_starts_from_the_same_weights_and_warm_up_matters_after_the_first_step() -> None:
    outcome = SUITE.run(job("norms", "post, no warm-up", rates=[1e-3, 1e-2], steps=4))
    low, high = (outcome.curves[f"train/loss@{rate}"] for rate in ("0.001", "0.01"))
    assert low[0] == high[0] and low[-1] != high[-1]
    assert outcome.curves["loss"] == [outcome.metrics["loss@0.001"], outcome.metrics["loss@0.01"]]
    warmed = SUITE.run(job("norms", "post, warm-up", rates=[1e-2], steps=10)).curves["train/loss@0.01"]
    cold = SUITE.run(job("norms", "post, no warm-up", rates=[1e-2], steps=10)).curves["train/loss@0.01"]
    assert warmed[0] == cold[0] and warmed[1] != cold[1]


def test_the_stream_grows_with_depth_unless_branches_are_scaled() -> None:
    depths = [4, 16]
    scaled, unscaled, post = (
        SUITE.run(job("growth", name, depths=depths)).metrics["growth@16"]
        for name in ("pre, scaled", "pre, unscaled", "post")
    )
    assert scaled < 3 < unscaled
    assert post == pytest.approx(1.0, abs=0.05)


def test_the_last_gradient_falls_with_depth_under_pre_norm_and_not_under_post_norm() -> None:
    pre, post = (SUITE.run(job("gradient", name, depths=[4, 16])).metrics["exponent"] for name in ("pre", "post"))
    assert pre < -0.2 < post - 0.2


def test_logits_are_for_mixers_that_have_them() -> None:
    assert [arm.name for arm in SUITE.arms("logits", ["attention"])] == ["plain", "QK norm", "soft cap"]
    assert [arm.name for arm in SUITE.arms("logits", ["mamba2"])] == ["mamba2, plain"]
