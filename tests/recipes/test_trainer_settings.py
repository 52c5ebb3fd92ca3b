"""Settings under `trainer`: what Lightning takes is reachable, everything else ends in one line."""

from __future__ import annotations

from typing import Any

import pytest

from recipes.trainer import DECIDED, RunOptions, build_trainer, decode_trainer, trainer_parameters
from zoo.registry import ConfigError


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({"max_steps": "abc"}, "trainer.max_steps: should be a whole number, got 'abc'"),
        ({"max_steps": 100.0}, "trainer.max_steps: should be a whole number, got 100.0"),
        ({"max_steps": True}, "trainer.max_steps: should be a whole number, got True"),
        ({"max_steps": None}, "trainer.max_steps: should be a whole number, got None"),
        ({"max_epochs": "3"}, "trainer.max_epochs: should be a whole number or null, got '3'"),
        ({"max_step": 3}, "trainer.max_step: unknown key, did you mean 'max_steps'?; choices: "),
        ({"precision": "bf16-mixd"}, "did you mean 'bf16-mixed'?"),
        ({"accelerator": 3}, "trainer.accelerator: should be a text, got 3"),
        ({"devices": [1, "a"]}, "trainer.devices: should be "),
        ({"logger": True}, "trainer.logger: is decided by the run; use logger=csv"),
        ({"save_every": 0}, "trainer.save_every: should be greater than or equal to 1, got 0"),
        ({"keep": "2"}, "trainer.keep: should be a valid integer, got '2'"),
        ({"accumulate_grad_batches": 0}, "trainer.accumulate_grad_batches: should be greater than 0, got 0"),
        ({"limit_train_batches": 0}, "trainer.limit_train_batches: should be greater than 0, got 0"),
        ({"limit_train_batches": 0.0}, "trainer.limit_train_batches: should be greater than 0, got 0.0"),
        ({}, "trainer: set max_steps or max_epochs"),
        ([], "trainer: should be a dict, got []"),
    ],
)
def test_wrong_settings_are_told_in_one_line(value: Any, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        decode_trainer(value)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "value",
    [
        {"max_steps": 3, "precision": "bf16-mixed", "devices": "auto", "accelerator": "cpu"},
        {"max_epochs": 2, "limit_train_batches": 0.5, "gradient_clip_val": 1, "deterministic": "warn"},
        {"max_time": {"hours": 1}, "devices": [0], "strategy": "ddp"},
        {"max_steps": 3, "max_time": "00:01:00:00", "accumulate_grad_batches": 4, "detect_anomaly": True},
    ],
)
def test_lightnings_arguments_pass_as_they_are(value: dict[str, Any]) -> None:
    _, arguments = decode_trainer(value)
    assert {key: arguments[key] for key in value} == value


def test_every_argument_of_lightning_is_either_reachable_or_says_what_to_use() -> None:
    for name in set(trainer_parameters()) - set(DECIDED) - set(RunOptions.model_fields):
        with pytest.raises(ConfigError, match=f"trainer.{name}: should be "):
            decode_trainer({"max_steps": 1, name: object()})
    assert set(DECIDED) <= set(trainer_parameters())


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"max_steps": -3}, "trainer: .*non-negative integer"),
        ({"max_steps": 1, "accelerator": "quantum"}, "trainer: .*quantum"),
        ({"max_steps": 1, "devices": 0, "accelerator": "cpu"}, "trainer: "),
    ],
)
def test_what_lightning_refuses_is_told_in_one_line(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        build_trainer(arguments)
    assert "\n" not in str(caught.value)


def test_validation_comes_every_so_many_steps_or_shares_of_an_epoch() -> None:
    assert RunOptions(val_check_interval=7).validate_every(1000, 50) == 7
    assert RunOptions(val_check_interval=0.5).validate_every(1000, 50) == 25
    assert RunOptions().validate_every(1000, 50) == 50
    assert RunOptions().validate_every(5, 50) == 1
    assert RunOptions(limit_val_batches=0.5).validation_batches(10) == 5
    assert RunOptions(limit_val_batches=3).validation_batches(10) == 3
    assert RunOptions().validation_batches(10) == 10
