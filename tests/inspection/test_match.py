"""Solving one whole number for a count."""

from __future__ import annotations

from typing import Any

import pytest

import zoo
from zoo.inspection.match import match_model, solve
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


SMALL = {"family": "gpt", "dim": 32, "depth": 2, "heads": 2, "vocab_size": 40, "max_len": 64, "position": "none"}


def params(config: Any) -> int:
    return sum(parameter.numel() for parameter in zoo.create_model(config).parameters())


@pytest.mark.parametrize("knob", ["ffn", "width", "depth"])
def test_a_model_is_made_as_large_as_another(knob: Any) -> None:
    reference = {**SMALL, "depth": 9, "ffn": {"hidden": 200}}
    found = match_model({**SMALL, "mixer": "gla"}, "params", reference, knob=knob, tolerance=0.1)
    target = params(reference)
    assert found.record["target"] == target and found.record["reached"] == params(found.config)
    assert abs(params(found.config) / target - 1) <= 0.1
    field = {"ffn": "ffn.hidden", "width": "dim", "depth": "depth"}[knob]
    before, after = found.record["changed"][field]
    assert (before, list(found.record["changed"])) == ({"ffn": None, "width": 32, "depth": 2}[knob], [field])
    assert f"{field}: {before} -> {after}" in str(found) and set(found.record["not_matched"]) == {"flops", "state"}


@pytest.mark.parametrize("mixer", ["mamba2", "gla", "mla", "lstm"])
def test_states_are_made_as_large_as_one_of_attention(mixer: str) -> None:
    reference = zoo.create_model({**SMALL, "mixer": {"name": "attention"}})
    target = reference.init_state(1, 60).nbytes()  # type: ignore[operator]
    found = match_model({**SMALL, "mixer": mixer}, "state", SMALL, length=60, tolerance=0.1)
    assert found.record["target"] == target
    reached = zoo.create_model(found.config).init_state(1, 60).nbytes()  # type: ignore[operator]
    assert found.record["reached"] == reached and abs(reached / target - 1) <= 0.1


def test_flops_are_matched_at_a_length() -> None:
    found = match_model({**SMALL, "mixer": "gla"}, "flops", SMALL, knob="ffn", length=50)
    own, other = (zoo.count(config, length=50).flops_forward for config in (found.config, SMALL))
    assert abs(own / other - 1) <= 0.01


def test_what_a_model_has_no_field_for_is_refused() -> None:
    with pytest.raises(ConfigError, match="'gpt' with mixer=hybrid has no field for 'state'"):
        match_model({**SMALL, "mixer": "hybrid_3to1"}, "state", 1_000)
    with pytest.raises(ConfigError, match="'gpt' has no field for 'ffn'"):
        match_model({**SMALL, "layout": "mixer_only"}, "params", 1_000_000)
    with pytest.raises(ConfigError, match=r"state 1,000,000,000 cannot be reached within 1 percent by mixer\.window"):
        match_model(SMALL, "state", 10**9, length=40)
    with pytest.raises(ConfigError, match="unknown count 'param', did you mean 'params'"):
        match_model(SMALL, "param", 10**9)  # type: ignore[arg-type]
