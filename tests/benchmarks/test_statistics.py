"""Intervals and tests against hand-computed and published values."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from benchmarks.report.numbers import limits
from benchmarks.statistics import bootstrap, holm, interval, paired, sensitivity, summary, wilson


def test_the_mean_s_interval_is_students() -> None:
    # mean 3, deviation sqrt(2.5), t(0.975, 4) = 2.7764451
    found = interval([1.0, 2.0, 3.0, 4.0, 5.0])
    half = 2.7764451 * math.sqrt(2.5) / math.sqrt(5)
    assert found.low == pytest.approx(3 - half, rel=1e-6) and found.high == pytest.approx(3 + half, rel=1e-6)
    assert math.isnan(interval([1.0]).low)


def test_wilson_has_the_closed_form() -> None:
    z, n, k = 1.959964, 5, 4
    p = k / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    found = wilson(k, n)
    assert (found.low, found.high) == pytest.approx((centre - half, centre + half), rel=1e-5)
    assert wilson(0, 5).low == 0.0 and wilson(0, 5).high == pytest.approx(z * z / (5 + z * z), rel=1e-5)
    assert wilson(5, 5).high == 1.0
    with pytest.raises(ValueError):
        wilson(6, 5)


def test_paired_is_the_paired_t_test_of_shared_seeds() -> None:
    first = {0: 1.0, 1: 2.0, 2: 4.0, 3: 3.0, 9: 100.0}
    second = {0: 0.5, 1: 1.0, 2: 3.5, 3: 1.0, 8: -100.0}
    found = paired(first, second)
    oracle = stats.ttest_rel([1.0, 2.0, 4.0, 3.0], [0.5, 1.0, 3.5, 1.0])
    assert found.count == 4 and found.difference == 1.0
    assert found.p == pytest.approx(float(oracle.pvalue))
    ci = oracle.confidence_interval(0.95)
    assert (found.interval.low, found.interval.high) == pytest.approx((ci.low, ci.high))


def test_paired_without_spread_or_with_one_seed() -> None:
    assert paired({0: 1.0, 1: 1.0}, {0: 1.0, 1: 1.0}).p == 1.0
    assert paired({0: 1.0, 1: 1.0}, {0: 0.0, 1: 0.0}).p == 0.0
    assert math.isnan(paired({0: 1.0}, {0: 0.0}).p)
    with pytest.raises(ValueError):
        paired({0: 1.0}, {1: 0.0})


def test_holm_steps_down() -> None:
    # Holm 1979 by hand: sorted 0.01, 0.02, 0.04 times 3, 2, 1, then never falling
    assert holm([0.04, 0.01, 0.02]) == pytest.approx([0.04, 0.03, 0.04])
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    corrected = holm([0.01, math.nan, 0.03])
    assert corrected[0] == pytest.approx(0.02) and math.isnan(corrected[1]) and corrected[2] == pytest.approx(0.03)
    assert holm([]) == []


def test_bootstrap_holds_the_mean_and_is_the_same_twice() -> None:
    values = [0.1, 0.5, 0.4, 0.9, 0.3, 0.8]
    found = bootstrap(values)
    assert found == bootstrap(values)
    assert np.mean(values) in found and min(values) < found.low < found.high < max(values)
    assert bootstrap([0.7, 0.7, 0.7]).low == bootstrap([0.7, 0.7, 0.7]).high == 0.7


def test_sensitivity_counts_a_divergence_as_no_training() -> None:
    losses = {1e-3: 2.0, 3.16e-3: 1.0, 1e-2: math.nan, 3.16e-2: 9.0}
    assert sensitivity(losses, initial=4.0) == pytest.approx((2 + 1 + 4 + 4) / 4 - 1)
    assert sensitivity({1e-3: 1.5, 1e-2: 1.5}, initial=4.0) == 0.0


def test_a_summary_counts_successes_on_the_right_side() -> None:
    values = [0.2, 1.0, 0.99, 0.1, 0.98]
    found = summary(values, solved=0.95)
    assert (found.count, found.successes, found.median) == (5, 3, 0.98)
    assert (found.quartiles.low, found.quartiles.high) == (0.2, 0.99)
    assert found.success == wilson(3, 5)
    assert summary(values, solved=0.5, higher_is_better=False).successes == 2
    assert summary(values).success is None
    with pytest.raises(ValueError):
        summary([])


def test_an_interval_of_a_share_ends_where_shares_end() -> None:
    values = [0.9, 1.0, 1.0]
    assert interval(values).high > 1.0
    found = summary(values, limits=limits("accuracy@2x")).interval
    assert (found.low, found.high) == (pytest.approx(interval(values).low), 1.0)
    assert summary(values, limits=limits("loss")).interval == interval(values)
    assert math.isnan(summary([0.5], limits=limits("accuracy")).interval.low)
