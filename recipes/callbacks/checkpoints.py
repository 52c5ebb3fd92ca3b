"""Checkpoints every N steps and when a run is stopped, each whole or absent, the last few kept.

A checkpoint is only taken between optimizer steps, where weights, moving average, optimizer, schedule, loader position
and random states belong together; an interrupt in the middle of a step leaves the one before it as the last.
"""

from __future__ import annotations

import io
import re
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from recipes.callbacks.stopwatch import Stopwatch
from recipes.lightning_import import Callback, LightningModule, TorchCheckpointIO, Trainer
from zoo.files import write_whole

_NAME = re.compile(r"step=(\d+)\.ckpt")


class Stopped(SystemExit):
    """A run ended by a signal, after its checkpoint was written. The exit code is the shell's: 128 + signal."""

    def __init__(self, signum: int) -> None:
        super().__init__(128 + signum)
        self.signum = signum


class StopRequest:
    """Signals as a wish that the loop grants between two steps; a second one ends the process at once.

    Outside of `training` the first signal ends the process too, in the ordinary way.
    """

    def __init__(self) -> None:
        self.signum: int | None = None
        self.training = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        for signum in (signal.SIGTERM, signal.SIGINT):
            with suppress(ValueError):  # not in the main thread
                self._before[signum] = signal.signal(signum, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)
        self._before.clear()

    def _on_signal(self, signum: int, _: object) -> None:
        again = self.signum is not None
        self.signum = signum
        if again or not self.training:
            raise Stopped(signum)


class WholeFileIO(TorchCheckpointIO):
    """Lightning's checkpoint writer, with files that are whole or absent."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        buffer = io.BytesIO()  # torch reports a full disk as a RuntimeError, a plain write as what it is
        torch.save(checkpoint, buffer)
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_whole(Path(path), lambda file: file.write(buffer.getbuffer()))


class Checkpoints(Callback):
    """Writes `folder/step=N.ckpt`; comes last among the callbacks, so that it sees what the others did.

    every: optimizer steps between two; keep: how many stay; clock: stands still meanwhile; stop: the wish to end.
    With several ranks a wish reaches rank 0 only, so the end is left to Lightning, which tells the others.
    """

    def __init__(self, folder: Path, every: int, keep: int, clock: Stopwatch, stop: StopRequest | None = None) -> None:
        self.folder, self.every, self.keep, self.clock, self.stop = folder, every, keep, clock, stop
        self.saved = -1
        self.between_steps = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.saved = trainer.global_step  # a resumed run has this one already; a fresh one needs none

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self.between_steps = False

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.fit_loop._should_accumulate():
            if self._asked_to_stop(trainer):  # Lightning would leave here, in the middle of the optimizer step
                trainer._signal_connector.received_sigterm = False
            trainer.should_stop = False  # likewise when the time is up; its watch asks again after the next batch
            return
        self.between_steps = True
        step = trainer.global_step
        if step % self.every == 0 or last_step(trainer):
            self.save(trainer)
        if signum := self._asked_to_stop(trainer):
            self.save(trainer)
            raise Stopped(signum)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if self.between_steps and not isinstance(exception, (OSError, Stopped)):
            self.save(trainer)

    def _asked_to_stop(self, trainer: Trainer) -> int | None:
        return self.stop.signum if self.stop is not None and trainer.world_size == 1 else None

    def save(self, trainer: Trainer) -> None:
        """Write the present state, once, and remove the oldest checkpoints beyond `keep`."""
        step = trainer.global_step
        if step == self.saved:
            return
        with self.clock.paused():
            trainer.save_checkpoint(self.folder / f"step={step:08d}.ckpt")
        self.saved = step
        if trainer.is_global_zero:
            for old in checkpoints(self.folder)[: -self.keep]:
                with suppress(OSError):
                    old.unlink()


def last_step(trainer: Trainer) -> bool:
    """Whether the step just made is the run's last: of max_steps, of max_epochs, or when max_time is over."""
    if trainer.should_stop and trainer.fit_loop._can_stop_early:
        return True
    epochs = trainer.max_epochs
    last_epoch = epochs is not None and epochs >= 0 and trainer.current_epoch + 1 >= epochs
    return trainer.global_step == trainer.max_steps or (last_epoch and bool(trainer.is_last_batch))


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in a folder, oldest first."""
    found = [(int(match[1]), path) for path in folder.glob("*.ckpt") if (match := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found)]
