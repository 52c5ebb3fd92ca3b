"""The log of training: every N optimizer steps one row, read from the sums that the task keeps.

Reading a tensor waits for the device, and writing costs time, so neither is done in the steps between.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import torch

from recipes.callbacks.checkpoints import last_step
from recipes.callbacks.stopwatch import Stopwatch
from recipes.lightning_import import Callback, LightningModule, Trainer
from recipes.task import Task
from zoo.registry import ConfigError


class Sink(Protocol):
    """Takes rows: a file, a console, a tracking server."""

    def append(self, step: int, values: dict[str, float]) -> None: ...


class LoggerSink:
    """Rows to Lightning's loggers (TensorBoard, MLflow ...)."""

    def __init__(self, loggers: list[Any]) -> None:
        self.loggers = loggers

    def append(self, step: int, values: dict[str, float]) -> None:
        for logger in self.loggers:
            logger.log_metrics(values, step)


class Log(Callback):
    """Writes a row every `every` optimizer steps and after the last one; counts examples, tokens and seconds.

    A row: epoch, lr, train/<mean of every sum over the real targets since the row before>, seconds, examples/s, and
    mfu where `peak_share` is given: it takes examples a second and returns the share of the device's peak.
    What was summed but not yet written stands in the checkpoint, so the rows of a resumed run are those of the
    unbroken one (but for the times).
    """

    def __init__(
        self,
        sinks: list[Sink],
        every: int,
        clock: Stopwatch,
        peak_share: Callable[[float], float | None] | None = None,
    ) -> None:
        self.sinks, self.every, self.clock, self.peak_share = sinks, every, clock, peak_share
        self.counts = {"examples": 0, "tokens": 0, "steps": 0}
        self.seconds = 0.0
        self._loaded_sums: dict[str, torch.Tensor] = {}
        self._marked = (0.0, 0)

    def state_dict(self) -> dict[str, Any]:
        return {"counts": dict(self.counts), "seconds": self.clock.seconds, "sums": dict(self._sums)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.counts.update(state_dict["counts"])
        self.seconds = state_dict["seconds"]
        self._loaded_sums = state_dict["sums"]

    @property
    def _sums(self) -> dict[str, torch.Tensor]:
        return {} if self._task is None else self._task.sums

    _task: Task | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, Task)
        self._task = pl_module
        pl_module.sums = {name: value.to(pl_module.device) for name, value in self._loaded_sums.items()}
        self.clock.start(self.seconds)
        self._marked = (self.seconds, self.counts["examples"])

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, Task)
        self.counts["examples"] += len(batch["index"]) * trainer.world_size
        self.counts["tokens"] += pl_module.recipe.tokens(batch) * trainer.world_size
        if trainer.fit_loop._should_accumulate():
            return
        step = self.counts["steps"] = trainer.global_step
        if step % self.every == 0 or last_step(trainer):
            self._row(trainer, pl_module, step)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.clock.stop()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self.clock.stop()

    def _row(self, trainer: Trainer, task: Task, step: int) -> None:
        sums = {name: value.double() for name, value in task.sums.items()}
        task.sums = {}
        targets = float(sums.pop("targets")) or 1.0
        if trainer.world_size > 1:
            sums = {name: trainer.strategy.reduce(value, reduce_op="sum") for name, value in sums.items()}
        means = {f"train/{name}": float(value) / targets for name, value in sums.items()}
        if not math.isfinite(means["train/loss"]):
            raise ConfigError(
                f"the loss is {means['train/loss']} near step {step}; try a lower optim.lr, a longer "
                "optim.schedule.warmup or a smaller optim.clip"
            )
        seconds, examples = self.clock.seconds, self.counts["examples"]
        rate = (examples - self._marked[1]) / max(seconds - self._marked[0], 1e-9)
        row = {"epoch": trainer.current_epoch, "lr": task.rate(step - 1), **means}
        row |= {"seconds": round(seconds, 3), "examples_per_second": round(rate, 2)}
        with self.clock.paused():
            share = self.peak_share(rate) if self.peak_share is not None else None
            if share is not None:
                row["mfu"] = round(share, 4)
            if trainer.is_global_zero:
                for sink in self.sinks:
                    sink.append(step, row)
        self._marked = (seconds, examples)
