"""What our Trainer adds to a plain PyTorch loop, per step of the default recipe=vit.

    python -m benchmarks.trainer_overhead [rounds=12] [block=50] [threads=1] [out=FILE]

A real training run (same settings, callbacks, logs and checkpoints as the command; validation is left out, it is work
that a plain loop would have to do as well) is halted every `block` steps. In each halt a plain loop takes as many
steps: the same model, batches, loss, clipping, optimizer and schedule, written out. So blocks alternate in one process,
and each yields a ratio Trainer / plain. The median is the figure; the ratio of the totals holds the checkpoints, which
fall into few blocks.
"""

from __future__ import annotations

import copy
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR

from benchmarks.files import console, header, results, write_json
from benchmarks.speed.measure import Clock, ClockName, Timings
from benchmarks.words import WordsError, asks_help, integer, split

__all__ = ["main", "measure"]

LIMIT = 1.10
KEYS = ("rounds", "block", "threads", "out")
TRAINER, PLAIN = "trainer", "plain"


def measure(rounds: int, block: int, words: Sequence[str] = ()) -> Timings:
    """Seconds per step of both, a value a round. `words` are further settings of the run, as on its command line."""
    import recipes.launch  # noqa: F401  registers every part
    from recipes import training_run
    from recipes.callbacks.checkpoints import StopRequest
    from recipes.journal import journal
    from recipes.lightning_import import Callback
    from recipes.run_folder import open_folder
    from zoo.run import compose

    class Alternate(Callback):
        """Stands first among the callbacks: what the others do at the end of a block belongs to the Trainer."""

        def __init__(self, plain: Callable[[], None]) -> None:
            self.plain = plain
            self.clocks = {TRAINER: Clock(), PLAIN: Clock()}
            self.halts = 0
            self.since = _now()

        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
            if trainer.global_step % block:
                return
            counted = self.halts > 1  # the first block of both is a warm-up
            if counted:
                self._read(TRAINER, self.since)
            start = _now()
            for _ in range(block):
                self.plain()
            if counted:
                self._read(PLAIN, start)
            self.halts += 1
            self.since = _now()

        def _read(self, arm: str, since: tuple[float, float]) -> None:
            cpu, wall = _now()
            self.clocks[arm].cpu.append((cpu - since[0]) / block)
            self.clocks[arm].wall.append((wall - since[1]) / block)

    with tempfile.TemporaryDirectory() as folder, StopRequest() as stop, journal() as said:
        out = Path(folder) / "run"
        steps = block * (rounds + 1) + 1
        settings = compose(
            ["recipe=vit", f"out={out}", f"trainer.max_steps={steps}", "trainer.limit_val_batches=0", *words]
        )
        run = training_run.prepare(settings, out, stop, said)
        open_folder(run.settings, out, None)
        said.open(out / "log.txt")
        alternate = Alternate(_plain_loop(run, steps))
        trainer: Any = run.trainer
        trainer.callbacks.insert(0, alternate)
        trainer.fit(run.task)
        return Timings(alternate.clocks)


def _plain_loop(run: Any, steps: int) -> Callable[[], None]:
    """One step of the loop that one would write by hand."""
    from recipes.optim import parameter_groups

    model = copy.deepcopy(run.task.model).train()
    config = run.task.optim
    optimizer = config.build(parameter_groups(model, config))
    scheduler = LambdaLR(optimizer, lambda step: config.schedule.factor(step, steps))
    smoothing = run.recipe.task.label_smoothing
    batches = _forever(run.recipe.train_batches(run.data, 1, 0, 1))

    def step() -> None:
        batch = next(batches)
        loss = F.cross_entropy(model(batch["image"]), batch["label"], label_smoothing=smoothing)
        optimizer.zero_grad()
        loss.backward()
        if config.clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip)
        optimizer.step()
        scheduler.step()

    return step


def _forever(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def _now() -> tuple[float, float]:
    return time.process_time(), time.perf_counter()


def main(words: Sequence[str]) -> int:
    """Exit code: 0 measured (whether or not the limit holds), 1 could not be measured, 2 wrong words."""
    if asks_help(words):
        print(__doc__)
        return 0
    try:
        values = split(words, KEYS)
        rounds, block = integer(values, "rounds", 12, 1, 10_000), integer(values, "block", 50, 1, 10_000)
        threads = integer(values, "threads", 1, 1, 1024)
    except WordsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    torch.set_num_threads(threads)
    clock: ClockName = "cpu" if threads == 1 else "wall"
    out = Path(values["out"]) if "out" in values else results() / "trainer_overhead.json"
    about = header(" ".join(["python -m benchmarks.trainer_overhead", *words]), threads)
    try:
        timings = measure(rounds, block)
    except (OSError, RuntimeError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    ratio = timings.ratio(TRAINER, PLAIN, clock)
    totals = {arm: sum(read.read(clock)) for arm, read in timings.clocks.items()}
    total = totals[TRAINER] / totals[PLAIN]
    seconds = {arm: timings.seconds(arm, clock).plain() for arm in timings.clocks}
    figures = {"clock": clock, "rounds": rounds, "block": block, "limit": LIMIT}
    write_json(out, about | figures | {"ratio": ratio.plain(), "ratio_of_totals": total, "seconds_a_step": seconds})
    screen = console()
    for arm in timings.clocks:
        screen.print(f"{arm:8} {timings.seconds(arm, clock).q1 * 1e3:7.2f} ms a step ({clock} time, lower quartile)")
    screen.print(f"trainer / plain {ratio.median:.3f} [{ratio.q1:.3f} {ratio.q3:.3f}], limit {LIMIT:g}")
    screen.print(f"  {ratio.low:.3f} to {ratio.high:.3f} in {rounds} blocks of {block} steps")
    screen.print(f"  ratio of the totals, checkpoints included: {total:.3f}")
    screen.print(f"written to {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
