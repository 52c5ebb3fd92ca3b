"""Known fault 14: what a recipe builds starts with the blocks' own initial values, and nothing touches them after."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import zoo
from recipes.optim import parameter_groups
from recipes.recipe import find_recipe
from recipes.task import Task
from zoo.blocks import Slot
from zoo.registry import decode
from zoo.run import compose


def built(**model: Any) -> Task:
    settings = compose(["recipe=vit", *(f"model.{key}={value}" for key, value in model.items())])
    recipe = find_recipe("vit")(settings)
    data = recipe.load()
    settings["model"] = recipe.model_config(data)
    torch.manual_seed(0)
    network = settings["model"].build()
    recipe.prepare(network, data)
    return Task(settings, recipe, network)


def test_recipe_and_task_leave_the_models_own_values() -> None:
    task = built()
    torch.manual_seed(0)
    alone = zoo.create_model(task.model.config).state_dict()  # type: ignore[arg-type]
    assert all(torch.equal(alone[name], tensor) for name, tensor in task.model.state_dict().items())
    parameter_groups(task.model, task.optim)
    assert all(torch.equal(alone[name], tensor) for name, tensor in task.model.state_dict().items())


def test_the_default_recipe_starts_with_the_widths_its_config_names() -> None:
    model: Any = built().model
    std = model.config.init_std
    for block in model.stack.blocks:
        for weight in (block.mixer.qkv.weight, block.ffn.up.weight, block.ffn.down.weight):
            # a normal cut at two deviations has 0.88 of its deviation; 8,192 draws or more: 5 percent is 6 sigma
            torch.testing.assert_close(weight.std().item(), 0.88 * std, rtol=0.05, atol=0)
        assert not block.mixer.qkv.bias.any()
        assert torch.equal(block.residuals["mixer"].norm.weight, torch.ones(64))
    slot = Slot(dim=64, heads=4, init_std=std)
    alone = decode("mixer", "attention").build(slot).qkv.weight.std()
    torch.testing.assert_close(model.stack.blocks[0].mixer.qkv.weight.std(), alone, rtol=0.05, atol=0)


def test_norms_biases_positions_and_declared_parameters_are_not_decayed() -> None:
    task = built(residual="layerscale")
    names = {id(parameter): name for name, parameter in task.model.named_parameters()}
    groups = parameter_groups(task.model, task.optim)
    free = {names[id(p)] for group in groups if group["weight_decay"] == 0 for p in group["params"]}
    held = {names[id(p)] for group in groups if group["weight_decay"] > 0 for p in group["params"]}
    assert free | held == set(names.values())
    assert not free & held
    assert {name.rsplit(".", 1)[1] for name in held} == {"weight"}
    assert not any("norm" in name or "position" in name or "gamma" in name for name in held)
    assert {name for name in free if "gamma" in name} == {
        f"stack.blocks.{layer}.residuals.{place}.gamma" for layer in range(4) for place in ("mixer", "ffn")
    }


@pytest.mark.parametrize("mixer", ["mamba", "mamba2"])
def test_a_recipe_leaves_a_state_space_the_values_of_its_paper(mixer: str) -> None:
    """Both directions of each layer: steps between 0.001 and 0.1, A = -1 ... -N or between -16 and -1, D = 1."""
    task = built(mixer=mixer)
    model: Any = task.model
    ways = [way for block in model.stack.blocks for way in (block.mixer.forwards, block.mixer.backwards)]
    assert len(ways) == 8
    for way in ways:
        steps, decays = torch.nn.functional.softplus(way.dt_bias), way.A_log.exp()
        assert steps.min() > 0.99e-3 and steps.max() < 1.01e-1
        if mixer == "mamba":
            torch.testing.assert_close(decays, torch.arange(1.0, 17.0).expand(128, 16))
            assert way.dt_proj.weight.abs().max() <= 4**-0.5 and way.dt_proj.weight.std() > 0.25  # uniform: 0.29
        else:
            assert decays.min() >= 1 and decays.max() <= 16.0001
        assert torch.equal(way.D, torch.ones_like(way.D))
    groups = parameter_groups(model, task.optim)
    free = {id(p) for group in groups if group["weight_decay"] == 0 for p in group["params"]}
    assert all(id(getattr(way, name)) in free for way in ways for name in ("A_log", "D", "dt_bias"))
    assert not any(id(way.in_proj.weight) in free for way in ways)
