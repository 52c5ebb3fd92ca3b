"""Every committed pair called "matched", counted again: by hand from the row's own settings, without the solver."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.rows import read_rows
from benchmarks.suites.api import Row
from benchmarks.suites.copy import FIRST
from benchmarks.suites.families import one_set_of_weights
from benchmarks.suites.tracking import TASKS
from recipes.recipe import find_recipe
from zoo.models.gpt import GPTConfig
from zoo.registry import decode, encode
from zoo.run import compose

FOLDER = Path(__file__).parents[2] / "benchmarks" / "results" / "suites" / "small"
ROWS = [row for file in sorted(FOLDER.glob("*.jsonl")) for row in read_rows(file).values() if row.outcome]
MATCHED = {(r.job.suite, r.job.task, r.job.arm.name): r for r in ROWS if r.outcome and "params" in r.outcome.matched}


def numbers_in(model: torch.nn.Module) -> int:
    """Every number of every distinct tensor that is trained."""
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("key", MATCHED, ids="-".join)
def test_a_row_called_matched_is_within_a_percent_of_its_reference(key: tuple[str, str, str]) -> None:
    outcome = MATCHED[key].outcome
    assert outcome is not None
    matched: Any = outcome.matched["params"]
    assert outcome.params == matched["arm"] == pytest.approx(matched["reference"], rel=0.01)
    base = MATCHED.get((*key[:2], matched["to"]))  # it may not have been run in this task
    assert base is None or (base.outcome is not None and base.outcome.params == matched["reference"])


@pytest.mark.parametrize("key", [key for key in MATCHED if key[0] != "families"], ids="-".join)
def test_the_parameters_of_a_synthetic_row_are_those_of_the_model_it_names(key: tuple[str, str, str]) -> None:
    row = MATCHED[key]
    assert row.outcome is not None and not row.job.settings["conv"]
    matched: Any = row.outcome.matched["params"]
    assert numbers_in(synthetic(row, row.job.arm.mixer, matched["changed"]["ffn"])) == row.outcome.params
    assert numbers_in(synthetic(row, matched["to"], row.job.settings["ffn"])) == matched["reference"]


def synthetic(row: Row, mixer: Any, hidden: int) -> torch.nn.Module:
    settings = row.job.settings
    return GPTConfig(
        vocab_size=max(TASKS[row.job.task][1:3]) if row.job.suite == "tracking" else FIRST + settings["symbols"],
        max_len=64,  # rotary positions have no parameters
        **{name: settings[name] for name in ("dim", "depth", "heads", "position")},
        mixer=decode("mixer", mixer),
        ffn={"name": "mlp", "hidden": hidden},
    ).build()


@pytest.mark.slow  # loads the data of every recipe
@pytest.mark.parametrize("key", [key for key in MATCHED if key[0] == "families"], ids="-".join)
def test_the_parameters_of_a_recipe_s_row_are_those_of_the_model_it_names(key: tuple[str, str, str]) -> None:
    row = MATCHED[key]
    assert row.outcome is not None
    settings = compose([f"recipe={row.job.task}", *row.job.settings["words"]])
    data = data_of(row.job.task, tuple(row.job.settings["words"]))
    config = find_recipe(row.job.task)(settings).model_config(data)
    hidden = row.outcome.matched["params"]["changed"].get("model.ffn.hidden")
    if hidden is not None:
        mixer = one_set_of_weights(encode(decode("mixer", row.job.arm.mixer)))
        settings["model"] = {**settings["model"], "mixer": mixer}
        plain = encode(find_recipe(row.job.task)(settings).model_config(data))
        config = decode("model", plain | {"ffn": plain["ffn"] | {"hidden": hidden}})
    assert numbers_in(config.build()) == row.outcome.params


@cache
def data_of(recipe: str, words: tuple[str, ...]) -> Any:
    return find_recipe(recipe)(compose([f"recipe={recipe}", *words])).load()
