"""Validation while training: the loss and the recipe's other sums over the `val` split, on the weights that count.

Done between two optimizer steps by this callback rather than by Lightning's validation loop, so that a checkpoint of
the same step always comes after it, and a resumed run neither repeats nor misses one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from recipes.callbacks.checkpoints import last_step
from recipes.callbacks.log import Sink
from recipes.callbacks.stopwatch import Stopwatch
from recipes.data.loader import EpochLoader
from recipes.lightning_import import Callback, LightningModule, Trainer
from recipes.sharding import gathered
from recipes.task import Task
from recipes.trainer import RunOptions


class Validate(Callback):
    """Writes a row val/<name> at the steps that `options` ask for and after the last one.

    `batches` are iterated anew each time. The random states are set to a constant for the time of the validation and
    put back, so that losses with random inputs compare between steps.
    """

    def __init__(
        self,
        batches: EpochLoader,
        sinks: list[Sink],
        options: RunOptions,
        clock: Stopwatch,
    ) -> None:
        self.batches, self.sinks, self.options, self.clock = batches, sinks, options, clock
        self.limit = options.validation_batches(len(batches))
        self.every = 1

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, Task)
        an_epoch = math.ceil(trainer.num_training_batches / trainer.accumulate_grad_batches)
        self.every = self.options.validate_every(pl_module.total_steps, an_epoch)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, Task)
        if not self.limit or trainer.fit_loop._should_accumulate():
            return
        step = trainer.global_step
        if step % self.every and not last_step(trainer):
            return
        with self.clock.paused():
            row = validate(pl_module, islice(self.batches, self.limit))
            if trainer.is_global_zero:
                for sink in self.sinks:
                    sink.append(step, row)


@torch.no_grad()
def validate(task: Task, batches: Iterable[dict[str, Tensor]]) -> dict[str, float]:
    """Means over the real targets of `batches`, named val/<name>."""
    model, device = task.exported, task.device
    training = model.training
    model.eval()
    sums: dict[str, Tensor] = {}
    targets = 0.0
    devices = [device] if device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices), task.trainer.precision_plugin.val_step_context(), gathered(task):
            torch.manual_seed(0)
            for batch in batches:
                targets += float(batch["window_targets"])
                moved = {name: value.to(device) for name, value in batch.items()}
                loss_sum, logs = task.recipe.loss(model, moved)
                for name, value in (("loss", loss_sum), *logs.items()):
                    sums[name] = sums.get(name, torch.zeros((), device=device)) + value
    finally:
        model.train(training)
    return {f"val/{name}": float(value) / max(targets, 1.0) for name, value in sums.items()}
