"""Solving one whole number for a count."""

from __future__ import annotations

import pytest

from zoo.inspection.match import solve
from zoo.registry import ConfigError


@pytest.mark.parametrize("target", [1, 7, 999, 1_000, 123_456])
def test_the_closest_value_is_found_as_by_trying_all(target: int) -> None:
    def count(value: int) -> int:
        return value * value + 3 * value

    found = solve(count, target, low=1, high=400, tolerance=3.0)
    assert abs(count(found.value) - target) == min(abs(count(value) - target) for value in range(1, 401))
    assert found.reached == count(found.value) and found.error == pytest.approx(found.reached / target - 1)


def test_counts_that_stand_still_for_a_while_and_steps_are_handled() -> None:
    def rounded(value: int) -> int:
        return 100 * -(-value // 8) * 8

    found = solve(rounded, 4_000, low=4, high=100, step=4)
    assert found.reached == 4_000 and found.value % 4 == 0


def test_few_values_are_counted() -> None:
    asked: list[int] = []
    solve(lambda value: asked.append(value) or value, 777_777, low=1, high=1_000_000)  # type: ignore[func-returns-value]
    assert len(asked) == len(set(asked)) <= 25


def test_what_cannot_be_reached_is_refused_with_what_is_near() -> None:
    told = r"parameters 150 cannot be reached within 1 percent by dim from 1 to 9; closest: 100 at dim=1, 200 at dim=2$"
    with pytest.raises(ConfigError, match=told):
        solve(lambda value: 100 * value, 150, low=1, high=9, what="parameters", knob="dim")
    with pytest.raises(ConfigError, match=r"closest: 800 at dim=8, 900 at dim=9"):
        solve(lambda value: 100 * value, 5_000, low=1, high=9, knob="dim")
    with pytest.raises(ConfigError, match="falls as dim grows"):
        solve(lambda value: -value, 5, low=1, high=9, knob="dim")
    with pytest.raises(ConfigError, match="above 0, got 0"):
        solve(lambda value: value, 0, low=1, high=9)


def test_one_value_alone_is_taken_where_it_fits() -> None:
    assert solve(lambda value: 10, 10, low=3, high=3).value == 3
