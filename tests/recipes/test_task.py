"""The loss of an optimizer step, the log of it, the weights that count, and what a checkpoint holds."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

from recipes.callbacks.log import Log
from recipes.callbacks.stopwatch import Stopwatch
from recipes.ema import MovingAverage
from recipes.lightning_import import Callback
from recipes.optim import SGD, AdamW
from recipes.schedule import Constant
from recipes.task import Task
from tests.recipes.tiny import RowsRecipe, quiet_trainer, rows_task
from zoo.registry import decode

PLAIN = {"lr": 0.1, "momentum": 0.0, "weight_decay": 0.0, "clip": None, "schedule": Constant()}


class Gradients(Callback):
    """Keeps the gradient of every optimizer step."""

    def __init__(self) -> None:
        self.seen: list[list[torch.Tensor]] = []

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        self.seen.append([p.grad.clone() for p in pl_module.model.parameters() if p.grad is not None])


def fit(lengths: Sequence[int], batch: int, accumulate: int, steps: int) -> tuple[list[list[torch.Tensor]], Task]:
    """Gradients of the steps that one epoch of the rows makes, and the task."""
    torch.manual_seed(0)
    model = nn.Linear(3, 1, dtype=torch.float64)
    task = rows_task(RowsRecipe(lengths, batch), model, SGD(**PLAIN), accumulate=accumulate)
    kept = Gradients()
    trainer = quiet_trainer(max_steps=steps, max_epochs=1, accumulate_grad_batches=accumulate, callbacks=[kept])
    trainer.fit(task)
    return kept.seen, task


@pytest.mark.parametrize(
    ("lengths", "batch", "accumulate", "windows"),
    [
        ([3, 9], 1, 2, [[0, 1]]),  # Lightning-AI/pytorch-lightning#20350
        ([3, 9, 1, 12, 5, 7], 1, 4, [[0, 1, 2, 3], [4, 5]]),  # #19987: the last window of the epoch is short
        ([2, 11, 4, 6, 8], 2, 2, [[0, 1, 2, 3], [4]]),  # the last batch is short too
        ([0, 7, 3], 1, 3, [[0, 1, 2]]),  # a micro-batch of padding only
    ],
)
def test_the_gradient_of_a_step_is_that_of_one_big_batch(
    lengths: list[int], batch: int, accumulate: int, windows: list[list[int]]
) -> None:
    steps, _ = fit(lengths, batch, accumulate, len(windows))
    torch.manual_seed(0)
    model = nn.Linear(3, 1, dtype=torch.float64)
    recipe = RowsRecipe(lengths, batch)
    assert len(steps) == len(windows)
    for window, ours in zip(windows, steps, strict=True):
        model.zero_grad()
        big = recipe.rows.batch(window, None)
        loss, _ = recipe.loss(model, big)
        (loss / recipe.rows.targets(big)).backward()
        for mine, parameter in zip(ours, model.parameters(), strict=True):
            torch.testing.assert_close(mine, parameter.grad, rtol=1e-10, atol=1e-10)
            parameter.data -= 0.1 * parameter.grad


def test_two_ranks_average_to_the_gradient_of_one_big_batch() -> None:
    lengths, ours = [3, 9, 1, 12, 5], []
    torch.manual_seed(0)
    model = nn.Linear(3, 1, dtype=torch.float64)
    for rank in range(2):
        twin = copy.deepcopy(model)
        task = rows_task(RowsRecipe(lengths, 2), twin, SGD(**PLAIN), accumulate=2)
        assert task.loader is not None
        task.scale = (2, 2)
        for index, batch in enumerate(task.loader(rank, 2)):
            (task.training_step(batch, index) / 2).backward()  # Lightning's division by `accumulate`
        ours.append([p.grad for p in twin.parameters()])
    recipe = RowsRecipe(lengths, 2)
    big = recipe.rows.batch(range(5), None)
    (recipe.loss(model, big)[0] / recipe.rows.targets(big)).backward()
    for first, second, parameter in zip(*ours, model.parameters(), strict=True):
        assert first is not None
        assert second is not None
        torch.testing.assert_close((first + second) / 2, parameter.grad, rtol=1e-10, atol=1e-10)


class Fixed(RowsRecipe):
    """Row i has a loss of i + 1 for each of its tokens."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        each = batch["index"][:, None].double() + 1
        return (each * batch["mask"]).sum() + 0 * model(batch["x"]).sum(), {}


class Rows(list[tuple[int, dict[str, float]]]):
    def append(self, step: int, values: dict[str, float]) -> None:  # type: ignore[override]
        super().append((step, values))


def test_the_logged_loss_is_the_mean_over_targets_not_over_batches() -> None:
    task = rows_task(Fixed([3, 9], 1), nn.Linear(3, 1, dtype=torch.float64), SGD(**PLAIN), accumulate=2)
    rows = Rows()
    trainer = quiet_trainer(max_steps=1, accumulate_grad_batches=2, callbacks=[Log([rows], 1, Stopwatch())])
    trainer.fit(task)
    assert rows[0][1]["train/loss"] == pytest.approx(1.75, abs=1e-12)  # (3 * 1 + 9 * 2) / 12, where 1.5 is wrong


def test_a_window_without_any_target_moves_nothing() -> None:
    steps, task = fit([0, 0], 1, 2, 1)
    assert all(torch.equal(grad, torch.zeros_like(grad)) for grad in steps[0])
    assert all(torch.isfinite(p).all() for p in task.model.parameters())


def test_a_loss_that_is_not_finite_ends_the_run_in_one_line() -> None:
    task = rows_task(RowsRecipe([3, 9], 1), nn.Linear(3, 1, dtype=torch.float64), SGD(**{**PLAIN, "lr": 1e200}))
    trainer = quiet_trainer(max_steps=6, callbacks=[Log([], 2, Stopwatch())])
    with pytest.raises(ValueError, match=r"the loss is (nan|inf) near step \d+; try a lower optim.lr"):
        trainer.fit(task)


def test_the_average_follows_its_formula_and_spares_whole_numbers() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    model.register_buffer("table", torch.tensor([5, 7]))
    average = MovingAverage(model, 0.5, warmup=True)
    expected = None
    for step, decay in enumerate([0.0, 2 / 11, 3 / 12, 4 / 13]):  # min(0.5, (1 + n) / (10 + n)); the first is a copy
        model(torch.randn(4, 2)).sum().backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        average.update_parameters(model)
        now = {name: value.clone() for name, value in model.state_dict().items()}
        if expected is None:
            expected = now
        for name, value in now.items():
            if value.is_floating_point():
                expected[name] = decay * expected[name] + (1 - decay) * value if step else value
            else:
                expected[name] = value
    assert expected is not None
    for name, value in average.module.state_dict().items():
        torch.testing.assert_close(value, expected[name], msg=name)
    assert not any(p.requires_grad for p in average.parameters())
    assert not average.train().module.training


def test_weights_that_count_are_the_average_and_it_reaches_its_full_decay() -> None:
    task = rows_task(RowsRecipe([3, 9], 1), nn.Linear(3, 1, dtype=torch.float64), AdamW(ema=0.5, ema_warmup=False))
    quiet_trainer(max_steps=3).fit(task)
    assert task.ema is not None
    assert task.exported is task.ema.module
    assert int(task.ema.n_averaged) == 3
    assert not torch.equal(task.ema.module.weight, task.model.weight)
    plain = rows_task(RowsRecipe([3, 9], 1), nn.Linear(3, 1, dtype=torch.float64), AdamW())
    assert plain.exported is plain.model


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(3, 3, bias=False, dtype=torch.float64)
        self.head = nn.Linear(3, 3, bias=False, dtype=torch.float64)
        self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(x))


def test_tied_weights_stay_tied_through_the_average_the_optimizer_and_a_checkpoint(tmp_path: Any) -> None:
    task = rows_task(RowsRecipe([3, 9, 4, 5], 1), Tied(), AdamW(ema=0.9, schedule=Constant()))
    trainer = quiet_trainer(max_steps=2)
    trainer.fit(task)
    assert task.ema is not None
    tied: Any = task.ema.module
    assert tied.head.weight.data_ptr() == tied.embed.weight.data_ptr()
    assert sum(len(group["params"]) for group in trainer.optimizers[0].param_groups) == 1
    trainer.save_checkpoint(tmp_path / "step.ckpt")
    batch = next(iter(task.loader(0, 1)))  # type: ignore[misc]
    before = task.recipe.loss(task.model, batch)[0]
    again = rows_task(RowsRecipe([3, 9, 4, 5], 1), Tied(), AdamW(ema=0.9, schedule=Constant()))
    quiet_trainer(max_steps=2).fit(again, ckpt_path=tmp_path / "step.ckpt")
    model: Any = again.model
    assert model.head.weight.data_ptr() == model.embed.weight.data_ptr()
    assert torch.equal(again.recipe.loss(again.model, batch)[0], before)


@pytest.mark.parametrize(
    ("own", "trainer_value", "expected"), [(0.01, None, 0.01), (None, 0.02, 0.02), (None, None, 0)]
)
def test_the_gradient_is_clipped_to_the_configured_norm(
    own: float | None, trainer_value: float | None, expected: float
) -> None:
    class Norm(Callback):
        seen = 0.0

        def on_before_zero_grad(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
            grads = [p.grad for p in pl_module.parameters() if p.grad is not None]
            if grads:
                self.seen = float(torch.cat([grad.flatten() for grad in grads]).norm())

    norm = Norm()
    optim = SGD(**{**PLAIN, "clip": own})
    task = rows_task(RowsRecipe([3, 9, 12, 5], 1), nn.Linear(3, 1, dtype=torch.float64), optim)
    quiet_trainer(max_steps=3, gradient_clip_val=trainer_value, callbacks=[norm]).fit(task)
    if expected:
        assert norm.seen == pytest.approx(expected, rel=1e-3)
    else:
        assert norm.seen > 0.05


@pytest.mark.parametrize("name", ["cosine", "linear", "onecycle", "wsd"])
def test_a_schedule_that_ends_needs_a_run_that_ends(name: str) -> None:
    optim = AdamW(schedule=decode("schedule", name))
    task = rows_task(RowsRecipe([3, 9], 1), nn.Linear(3, 1, dtype=torch.float64), optim)
    with pytest.raises(ValueError, match=f"optim.schedule: '{name}' needs trainer.max_steps"):
        quiet_trainer(max_epochs=-1, max_time="00:00:00:05").fit(task)
