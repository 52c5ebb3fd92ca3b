"""Mixtures of experts in training: their losses join the gradient, their loads move the bias once a step, logs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import zoo
from recipes.callbacks.log import Log
from recipes.callbacks.stopwatch import Stopwatch
from recipes.lightning_import import Callback
from recipes.optim import SGD
from recipes.recipe import find_recipe
from recipes.schedule import Constant
from recipes.seq2seq.base import features
from recipes.sizes import sizes
from tests.recipes.tiny import RowsRecipe, quiet_trainer, rows_task
from zoo.blocks.api import Context
from zoo.blocks.auxiliary import collect

PLAIN = {"lr": 0.1, "momentum": 0.0, "weight_decay": 0.0, "clip": None, "schedule": Constant()}
LENGTHS = [3, 9, 1, 12]


class Rated(nn.Module):
    """Experts and a number for each token."""

    def __init__(self, **choices: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        chosen = {"experts": 4, "top_k": 1, "expert": {"name": "mlp", "hidden": 5}, "balance": 0.5, **choices}
        self.ffn = zoo.create_ffn("moe", dim=3, init_std=0.5, **chosen).double()
        self.out = nn.Linear(3, 1, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.ffn(x, Context()))


class Gradients(Callback):
    def __init__(self) -> None:
        self.seen: list[dict[str, Tensor]] = []

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        self.seen.append({name: p.grad.clone() for name, p in pl_module.model.named_parameters()})


class Rows(list[tuple[int, dict[str, float]]]):
    def append(self, step: int, values: dict[str, float]) -> None:  # type: ignore[override]
        super().append((step, values))


def test_a_step_adds_the_mean_of_its_micro_batches_losses_to_the_gradient() -> None:
    model, kept, rows = Rated(), Gradients(), Rows()
    task = rows_task(RowsRecipe(LENGTHS, 2), model, SGD(**PLAIN), accumulate=2)
    logged = Log([rows], 1, Stopwatch())
    quiet_trainer(max_steps=1, accumulate_grad_batches=2, callbacks=[kept, logged]).fit(task)
    twin, recipe = Rated(), RowsRecipe(LENGTHS, 2)
    total: Any = 0.0
    balance: Any = 0.0
    for window in ([0, 1], [2, 3]):
        with collect() as said:
            total = total + recipe.loss(twin, recipe.rows.batch(window, None))[0] / sum(LENGTHS)
        balance = balance + said.loss / 2
    (total + balance).backward()
    for name, parameter in twin.named_parameters():
        torch.testing.assert_close(kept.seen[0][name], parameter.grad, rtol=0, atol=1e-10)
    assert rows[0][1]["train/loss"] == pytest.approx(float(total), abs=1e-10)
    assert rows[0][1]["train/balance_loss"] == pytest.approx(float(balance), abs=1e-10)
    assert {"train/router_entropy", "train/load_violation", "train/dead_experts"} <= rows[0][1].keys()


def test_the_bias_moves_once_a_step_by_the_loads_of_all_micro_batches() -> None:
    model = Rated(bias_rate=0.25, balance=0.0)
    task = rows_task(RowsRecipe(LENGTHS, 1), model, SGD(**{**PLAIN, "lr": 1e-9}), accumulate=4)
    load = torch.zeros(4, dtype=torch.float64)
    recipe = RowsRecipe(LENGTHS, 1)
    for row in range(4):
        with collect() as said:
            recipe.loss(model, recipe.rows.batch([row], None))
        load += said.measures["ffn moe", "load"]
    quiet_trainer(max_steps=1, accumulate_grad_batches=4).fit(task)
    bias: Any = model.ffn.router.bias  # type: ignore[union-attr]
    assert torch.equal(bias, 0.25 * (load.mean() - load).sign())
    assert task.measures == {}


def test_a_model_without_experts_logs_nothing_of_them() -> None:
    rows = Rows()
    task = rows_task(RowsRecipe(LENGTHS, 2), nn.Linear(3, 1, dtype=torch.float64), SGD(**PLAIN))
    quiet_trainer(max_steps=1, callbacks=[Log([rows], 1, Stopwatch())]).fit(task)
    assert not [name for name in rows[0][1] if "expert" in name or "balance" in name or "router" in name]


MOE = {"name": "moe", "experts": 4, "expert": {"name": "swiglu", "hidden": 8}}
SIZES: dict[str, Any] = {"vocab_size": 11, "max_len": 16, "dim": 16, "depth": 1, "heads": 2, "ffn": MOE}


class NoInputs(RowsRecipe):
    def example_inputs(self, data: Any) -> tuple[Any, ...]:
        return ()


@pytest.mark.parametrize("top_k", [1, 4])
def test_a_result_tells_the_parameters_that_a_token_passes_through(top_k: int) -> None:
    model = zoo.create_model("gpt", **{**SIZES, "ffn": {**MOE, "top_k": top_k}})
    told = sizes(NoInputs([1], 1), model, None)
    idle = (4 - top_k) * 3 * 16 * 8
    assert told["params"] == sum(p.numel() for p in model.parameters())
    assert told["params_active"] == told["params"] - idle
    assert told["params_active_non_embedding"] == told["params_non_embedding"] - idle < told["params_active"]


def test_the_padding_of_packed_rows_counts_nowhere() -> None:
    model = zoo.create_model("gpt", **SIZES)
    real = torch.tensor([[1] * 8, [1] * 3 + [0] * 5], dtype=torch.bool)
    ids = torch.arange(16).view(2, 8) % 11
    batch = {"ids": ids, "labels": ids.masked_fill(~real, -100), "token_mask": real}
    loss: Any = find_recipe("gpt").loss
    with collect() as said:
        loss(None, model, batch)
    assert float(said.measures["gpt.0.ffn", "load"].sum()) == 2 * 11


def test_the_padding_of_sources_and_targets_counts_nowhere() -> None:
    model = zoo.create_model("transformer", **SIZES)
    source, target = torch.arange(12).view(2, 6) % 11, torch.arange(8).view(2, 4)
    mask = torch.tensor([[1] * 6, [1] * 2 + [0] * 4], dtype=torch.bool)
    labels = torch.tensor([[1, 2, 3, 4], [1, -100, -100, -100]])
    with collect() as said:
        features(model, {"source": source, "source_mask": mask, "target": target, "labels": labels})
    assert float(said.measures["transformer.encoder.0.ffn", "load"].sum()) == 2 * 8
    assert float(said.measures["transformer.decoder.0.ffn", "load"].sum()) == 2 * 5
