"""Progress: a bar at a terminal, a plain line every N steps elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from recipes.callbacks.stopwatch import Stopwatch
from recipes.lightning_import import Callback, LightningModule, Trainer


class Lines:
    """A sink that says a training row in a plain line, with the last validation: losses, rate, speed, time left."""

    def __init__(self, say: Callable[[str], None], clock: Stopwatch, total: Callable[[], int]) -> None:
        self.say, self.clock, self.total = say, clock, total
        self._start: tuple[int, float] | None = None
        self._validated: dict[str, float] = {}

    def append(self, step: int, values: dict[str, float]) -> None:
        if "lr" not in values:
            self._validated = values
            return
        total = self.total()
        parts = [f"step {step:>{len(str(total or step))}}" + (f"/{total}" if total else "")]
        for name, value in (values | self._validated).items():
            if name.startswith(("train/", "val/")):
                parts.append(f"{name.removeprefix('train/')} {value:.4f}")
        parts.append(f"lr {values['lr']:.2e}")
        parts.append(f"{values['examples_per_second']:,.0f} examples/s")
        parts.append(f"{left(step, total, self._seconds_a_step(step))} left")
        self.say("  ".join(parts))

    def _seconds_a_step(self, step: int) -> float:
        if self._start is None:  # a resumed run: what came before is not this process's speed
            self._start = (step, self.clock.seconds)
            return self.clock.seconds / max(step, 1)
        return (self.clock.seconds - self._start[1]) / max(step - self._start[0], 1)


class Bar(Callback):
    """A rich bar, drawn a few times a second; also a sink, for the figures beside it."""

    def __init__(self, clock: Stopwatch) -> None:
        self.clock = clock
        self._told = ""
        self._drawn = 0.0
        self._progress: Any = None

    def append(self, step: int, values: dict[str, float]) -> None:
        shown = [f"{name.removeprefix('train/')} {v:.4f}" for name, v in values.items() if name.endswith("loss")]
        self._told = "  ".join(shown) or self._told

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (MofNCompleteColumn(), BarColumn(), TimeRemainingColumn(), TextColumn("{task.fields[told]}"))
        self._progress = Progress(*columns, auto_refresh=False, transient=True)
        total = int(trainer.estimated_stepping_batches) if trainer.estimated_stepping_batches != float("inf") else None
        self._bar = self._progress.add_task("", total=total, completed=trainer.global_step, told="")
        self._progress.start()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        now = time.perf_counter()
        if now - self._drawn > 0.25:
            self._drawn = now
            self._progress.update(self._bar, completed=trainer.global_step, told=self._told, refresh=True)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._close()

    def _close(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def left(step: int, total: int, seconds_a_step: float) -> str:
    """Time that the rest of the run takes, in words; '?' where the length is unknown."""
    if not total:
        return "?"
    seconds = max(total - step, 0) * seconds_a_step
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
