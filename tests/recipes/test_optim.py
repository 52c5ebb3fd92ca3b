"""Schedules in closed form, parameter groups, and strict optimizer settings."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from recipes.optim import Adam, AdamW, parameter_groups, undecayed_names
from recipes.recipe import find_recipe
from recipes.schedule import ScheduleConfig
from zoo.library import create_model
from zoo.registry import ConfigError, decode, encode, names
from zoo.run import compose


def factors(value: object, total: int) -> list[float]:
    schedule: ScheduleConfig = decode("schedule", value)
    return [schedule.factor(step, total) for step in range(total)]


def test_warmup_rises_to_the_peak_and_never_starts_at_zero() -> None:
    for name in names("schedule"):
        if name != "onecycle":
            found = factors({"name": name, "warmup": 4}, 20)
            assert found[:4] == [0.25, 0.5, 0.75, 1.0], name
            assert max(found) == 1.0
            assert factors({"name": name, "warmup": 0.2}, 20) == found
    assert all(min(factors(name, 20)) > 0 for name in names("schedule"))


def test_cosine_linear_constant_and_inverse_sqrt_follow_their_formulas() -> None:
    cosine = factors({"name": "cosine", "warmup": 2, "min_ratio": 0.1}, 12)
    assert cosine[2:] == pytest.approx([0.1 + 0.9 * (1 + math.cos(math.pi * t / 10)) / 2 for t in range(10)])
    assert factors({"name": "linear", "warmup": 2}, 12)[2:] == pytest.approx([1 - t / 10 for t in range(10)])
    assert factors({"name": "constant", "warmup": 2}, 5) == [0.5, 1.0, 1.0, 1.0, 1.0]
    root = factors({"name": "inverse_sqrt", "warmup": 4}, 30)
    assert root[4:] == pytest.approx([math.sqrt(4 / step) for step in range(4, 30)])


@pytest.mark.parametrize("shape", ["linear", "sqrt", "cosine"])
def test_wsd_is_flat_until_the_last_part(shape: str) -> None:
    found = factors({"name": "wsd", "warmup": 2, "decay": 5, "shape": shape, "min_ratio": 0.0}, 20)
    assert found[2:16] == [1.0] * 14
    fall = {
        "linear": lambda x: 1 - x,
        "sqrt": lambda x: 1 - x**0.5,
        "cosine": lambda x: (1 + math.cos(math.pi * x)) / 2,
    }
    assert found[15:] == pytest.approx([fall[shape](step / 5) for step in range(5)])
    assert factors({"name": "wsd", "warmup": 2, "decay": 0.25, "shape": shape}, 20) == pytest.approx(found)


@pytest.mark.parametrize(("total", "warmup"), [(50, 0.3), (37, 0.1), (630, 0.25)])
def test_onecycle_equals_torch(total: int, warmup: float) -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    torchs = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=1.0, total_steps=total, pct_start=warmup, cycle_momentum=False
    )
    expected = []
    for _ in range(total):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if len(expected) < total:
            torchs.step()
    assert factors({"name": "onecycle", "warmup": warmup}, total) == pytest.approx(expected, abs=1e-9)


def test_a_warmup_longer_than_the_run_is_refused() -> None:
    for name in ("cosine", "onecycle"):
        with pytest.raises(
            ConfigError, match=r"optim.schedule.warmup: should be at most the 20 steps of the run, got 30"
        ):
            factors({"name": name, "warmup": 30}, 20)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({"name": "adamw", "lr": "fast"}, r"optim.lr: should be a valid number, got 'fast'"),
        ({"name": "adamw", "lr": 0.0}, r"optim.lr: should be greater than 0"),
        ({"name": "adamw", "ema": 1.0}, r"optim.ema"),
        ({"name": "adamw", "weigth_decay": 0.1}, r"optim.weigth_decay: unknown key, did you mean 'weight_decay'"),
        (
            {"name": "adamww"},
            r"optim: unknown optim 'adamww', did you mean 'adamw'\?; choices: adam, adamw, muon, sgd, timm",
        ),
        ({"name": "adamw", "schedule": {"name": "cosin"}}, r"optim.schedule: unknown schedule 'cosin'.*'cosine'"),
        ({"name": "adamw", "schedule": {"name": "cosine", "warmup": -1}}, r"optim.schedule.warmup"),
    ],
)
def test_wrong_settings_are_told_in_one_line(value: object, told: str) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        decode("optim", value, "optim")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["adamw", "adam", "sgd", "timm"])
def test_every_optimizer_survives_encoding_and_steps(name: str) -> None:
    config = decode("optim", {"name": name, "schedule": {"name": "wsd", "warmup": 3}})
    assert decode("optim", encode(config)) == config
    model = nn.Linear(2, 2)
    optimizer = config.build(parameter_groups(model, config))
    before = model.weight.detach().clone()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert not torch.equal(before, model.weight)


def test_an_unknown_timm_optimizer_is_told_with_the_nearest() -> None:
    config = decode("optim", {"name": "timm", "optimizer": "lamp"})
    with pytest.raises(ConfigError, match=r"optim.optimizer: unknown timm optimizer 'lamp', did you mean 'lamb'"):
        config.build(parameter_groups(nn.Linear(2, 2), config))
    config = decode("optim", {"name": "timm", "optimizer": "lamb", "options": {"betta": 1}})
    with pytest.raises(ConfigError, match=r"optim.options: timm's lamb refuses"):
        config.build(parameter_groups(nn.Linear(2, 2), config))


class Declares(nn.Module):
    undecayed = ("decay_rate", "inner.weight", "absent")

    def __init__(self) -> None:
        super().__init__()
        self.decay_rate = nn.Parameter(torch.ones(3, 4))
        self.inner = nn.Linear(2, 2)
        self.plain = nn.Linear(2, 2)


class TimmLike(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pos_embed = nn.Parameter(torch.ones(1, 3, 4))
        self.weight = nn.Parameter(torch.ones(3, 4))

    def no_weight_decay(self) -> set[str]:
        return {"pos_embed"}


class HeadNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 4))


def test_decay_spares_vectors_norms_and_what_blocks_declare() -> None:
    model = nn.ModuleDict(
        {"a": Declares(), "b": TimmLike(), "c": HeadNorm(), "d": nn.LayerNorm(3), "e": nn.Conv1d(2, 2, 3)}
    )
    decayed = {name for name, _ in model.named_parameters()} - undecayed_names(model)
    assert decayed == {"a.plain.weight", "b.weight", "e.weight"}


def test_decay_spares_positions_and_prefix_tokens_of_the_real_model() -> None:
    model = create_model(
        "vit", image_size=8, patch_size=4, channels=1, num_classes=3, dim=8, depth=2, heads=2, registers=2
    )
    kept = undecayed_names(model)
    for name, parameter in model.named_parameters():
        matrix = name.endswith(
            ("qkv.weight", "out.weight", "up.weight", "down.weight", "linear.weight", "patches.weight")
        )
        assert (name not in kept) == matrix, f"{name} {tuple(parameter.shape)}"


def test_groups_hold_each_trainable_parameter_once_with_its_rate_and_decay() -> None:
    model = nn.ModuleDict({"table": nn.Linear(2, 2), "head": nn.Linear(2, 2), "frozen": nn.Linear(2, 2)})
    model["frozen"].requires_grad_(False)
    model["head"].weight = model["table"].weight
    groups = parameter_groups(model, AdamW(lr=0.1, weight_decay=0.5, lr_scale={"table": 10.0}))
    held = [id(p) for group in groups for p in group["params"]]
    assert sorted(held) == sorted({id(model["table"].weight), id(model["table"].bias), id(model["head"].bias)})
    found = {id(p): (group["lr"], group["weight_decay"]) for group in groups for p in group["params"]}
    assert found[id(model["table"].weight)] == (1.0, 0.5)
    assert found[id(model["table"].bias)] == (1.0, 0.0)
    assert found[id(model["head"].bias)] == (0.1, 0.0)
    with pytest.raises(ConfigError, match=r"optim.lr_scale: no parameter's name contains 'tabel'"):
        parameter_groups(model, Adam(lr_scale={"tabel": 2.0}))


def test_a_factor_that_fits_nothing_is_refused_unless_the_recipe_lets_it_go() -> None:
    config = decode("optim", {"name": "adamw", "lr_scale": {"absent": 2.0}})
    with pytest.raises(ConfigError, match=r"optim.lr_scale: no parameter's name contains 'absent'"):
        parameter_groups(nn.Linear(2, 2), config)
    assert len(parameter_groups(nn.Linear(2, 2), config, ("absent",))) == 2


@pytest.mark.parametrize(
    "words",
    [
        ["recipe=t5", "mixer=gated_delta", "task.limit=64"],
        ["recipe=t5", "mixer=attention"],
        ["recipe=dit", "model.conditioning=in_context"],
        ["recipe=dit", "mixer=mamba2"],
    ],
    ids=" ".join,
)
def test_a_recipe_whose_parts_are_exchanged_still_makes_its_optimizer(words: list[str]) -> None:
    settings = compose(words)
    recipe = find_recipe(settings["name"])(settings)
    model = recipe.model_config(recipe.load()).build()
    groups = parameter_groups(model, decode("optim", settings["optim"]), recipe.optional_lr_scale)
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))
