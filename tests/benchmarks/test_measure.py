"""Statistics of alternating times, on times that are known."""

from __future__ import annotations

import gc
import math

import pytest

from benchmarks.speed import measure
from benchmarks.speed.measure import Clock, Spread, Timings, alternate, exponent


def test_spread_of_known_values() -> None:
    spread = Spread.of([5.0, 1.0, 3.0, 2.0, 4.0])
    assert spread == Spread(median=3.0, q1=2.0, q3=4.0, low=1.0, high=5.0, count=5)
    assert Spread.of([7.0]) == Spread(7.0, 7.0, 7.0, 7.0, 7.0, 1)
    with pytest.raises(ValueError, match="at least one round"):
        Spread.of([])


def test_a_ratio_is_taken_within_each_round() -> None:
    # The machine slows down tenfold in the third round; both arms suffer, and no round's ratio shows it.
    drift = [1.0, 1.1, 10.0, 0.9]
    timings = Timings({"zoo": Clock([0.9 * d for d in drift], drift), "peer": Clock(drift, [2 * d for d in drift])})
    ratio = timings.ratio("zoo", "peer")
    assert math.isclose(ratio.median, 0.9) and math.isclose(ratio.high - ratio.low, 0.0, abs_tol=1e-12)
    assert math.isclose(timings.ratio("zoo", "peer", "wall").median, 0.5)
    assert timings.seconds("peer").high == 10.0


def test_one_disturbed_round_leaves_the_median() -> None:
    timings = Timings({"zoo": Clock([1.0, 1.0, 9.0, 1.0, 1.0]), "peer": Clock([1.0] * 5)})
    assert timings.ratio("zoo", "peer").median == 1.0


def test_share_is_of_the_product_rate_in_the_same_round() -> None:
    timings = Timings({"zoo": Clock([2.0, 4.0]), "gemm": Clock([1.0, 2.0])})
    share = timings.share("zoo", flops=120.0, gemm="gemm", gemm_flops=100.0)
    assert math.isclose(share.low, 0.6) and math.isclose(share.high, 0.6)


def test_exponent_of_a_power_law() -> None:
    lengths = [256, 512, 1024, 2048]
    assert math.isclose(exponent(lengths, [3e-7 * n**2 for n in lengths]), 2.0)
    assert math.isclose(exponent(lengths, [1e-3 * n for n in lengths]), 1.0)


def test_rounds_alternate_and_their_order_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(measure, "_time", lambda call, repeats, wait: (call(), (1.0, 1.0))[1])
    timings = alternate({name: lambda name=name: seen.append(name) for name in "abc"}, 3, warmup=2)
    assert "".join(seen) == "aabbcc" + "abc" + "acb" + "cab"
    assert all(len(clock.cpu) == len(clock.wall) == 3 for clock in timings.clocks.values())


def test_a_short_call_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(measure, "_time", lambda call, repeats, wait: (asked.append(repeats), (0.001, 0.001))[1])
    alternate({"short": lambda: None}, 1, least=0.02)
    assert asked == [1, 20]


def test_garbage_is_not_collected_during_a_sample() -> None:
    states: list[bool] = []
    alternate({"a": lambda: states.append(gc.isenabled())}, 2, least=0.0)
    assert not any(states)
    assert gc.isenabled()


def test_the_device_is_waited_for_before_each_reading() -> None:
    order: list[str] = []
    alternate({"a": lambda: order.append("call")}, 1, least=0.0, wait=lambda: order.append("wait"))
    assert order == ["wait", "call", "wait"] * 2
