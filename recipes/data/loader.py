"""The loader of every recipe: an order from (seed, epoch) alone, exact resume, and target counts per optimizer step.

`EpochLoader` replaces torch's DataLoader, sampler and collate function. Its whole state is (epoch, position), so a run
that was killed goes on with the very batch it would have seen, whatever the number of workers then and now.

Gradient accumulation. Frameworks average the losses of the micro-batches, which is wrong when they hold unequal numbers
of targets (Lightning-AI/pytorch-lightning#20350) or when the last window of an epoch is short (#19987). Each batch
therefore carries `window_targets`, the targets of its whole optimizer step on all ranks, and a task returns

    loss = sum of the batch's target losses / window_targets * accumulate * world_size

(the last two factors undo Lightning's division by `accumulate` and the averaging over ranks). The accumulated gradient
then equals that of one batch that holds everything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from recipes.data.keys import generator
from zoo.registry import ConfigError

__all__ = ["CountsTargets", "EpochLoader", "Examples", "OrdersEpochs"]

Batch = dict[str, Tensor]


class Examples(Protocol):
    """A set of numbered examples that builds batches of them."""

    def __len__(self) -> int: ...

    def batch(self, indices: Sequence[int], key: tuple[int, ...] | None) -> Batch:
        """The examples `indices` as tensors. `key` = (seed, epoch) asks for augmentation that depends on nothing but
        (seed, epoch, index), or on these indices as a whole; None asks for none."""
        ...

    def targets(self, batch: Batch) -> int:
        """Number of real targets in a batch: images in it, tokens that are scored, ..."""
        ...


@runtime_checkable
class CountsTargets(Protocol):
    """Examples that know the number of targets without building a batch. Spares the loader from reading ahead."""

    def count_targets(self, indices: Sequence[int], key: tuple[int, ...] | None) -> int:
        """Number of real targets in `batch(indices, key)`."""
        ...


@runtime_checkable
class OrdersEpochs(Protocol):
    """Examples that say in which order they want to be taken, such as by length (`recipes.data.text.bucketing`)."""

    @property
    def order_identity(self) -> int:
        """A number of the settings that the order depends on; a state under another number is refused."""
        ...

    def epoch_bounds(self, size: int, ranks: int) -> list[tuple[int, int]] | None:
        """Where each global batch starts and stops, the same in every epoch, each with at least one example a rank
        where there are so many; `size` is that of the loader. None: the loader's own."""
        ...

    def epoch_order(self, key: tuple[int, ...] | None, bounds: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
        """The examples of an epoch, each once, and the order in which the global batches of it come. Depends on
        nothing but `key` = (seed, epoch) and the bounds; None in evaluation."""
        ...


class EpochLoader:
    """Iterable over the batches of one epoch; each new iteration is the next epoch.

    Batches are what `examples.batch` returns, with "index" (B,) int64, the examples' numbers, and "window_targets" ()
    float64, the targets of the whole optimizer step: `accumulate` batches in a row on all ranks, fewer at the end of an
    epoch.

    Order. With `shuffle` the order of an epoch is a permutation drawn from (seed, epoch), and batches are augmented
    with the key (seed, epoch). Without, batches come in order and plain, and each iteration starts at the first.
    Examples that implement OrdersEpochs give these orders themselves, and may give the sizes of batches.

    Ranks. Rank r of n takes the r-th of n equal parts of each global batch of n * batch_size examples. The last global
    batch of an epoch may be smaller and its parts may differ by one example; where it has fewer than n examples, they
    join the global batch before. So every example comes exactly once an epoch, and all ranks have equally many batches.

    Resume. `state_dict` holds the epoch and the number of batches handed out. After `load_state_dict` the next
    iteration goes on behind them; when the epoch was complete, with the next epoch. Iterating a shuffled loader anew
    after breaking off goes on likewise, so that a trainer that stops at `len(loader)` batches, or earlier, without
    exhausting the iterator sees what it would see after a resume.

    Workers. `workers` processes build batches ahead; the stream does not depend on their number.

    Raises ConfigError when the settings leave no batch, or when a state belongs to other settings.
    """

    def __init__(
        self,
        examples: Examples,
        batch_size: int,
        *,
        shuffle: bool,
        seed: int,
        workers: int = 0,
        accumulate: int = 1,
        drop_last: bool = False,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        for field, value, least in (
            ("batch_size", batch_size, 1),
            ("accumulate", accumulate, 1),
            ("world_size", world_size, 1),
            ("workers", workers, 0),
        ):
            if value < least:
                raise ConfigError(f"{field} should be at least {least}, got {value}")
        if not 0 <= rank < world_size:
            raise ConfigError(f"rank should be below world_size = {world_size}, got {rank}")
        self.examples = examples
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        self.workers = workers
        self.accumulate = accumulate
        self.drop_last = drop_last
        self.rank = rank
        self.world_size = world_size
        self.ordered = examples if isinstance(examples, OrdersEpochs) else None
        bounds = self.ordered.epoch_bounds(batch_size * world_size, world_size) if self.ordered else None
        if bounds is None:
            bounds = _global_batches(len(examples), batch_size * world_size, world_size, drop_last)
        elif bounds and bounds[0][1] - bounds[0][0] < world_size:
            bounds = []  # fewer examples than ranks
        self.bounds = bounds
        if not self.bounds and (shuffle or len(examples)):
            raise ConfigError(
                f"{len(examples)} examples are too few for a batch: "
                f"batch_size {batch_size}, {world_size} ranks, drop_last={drop_last}"
            )
        self.epoch = 0
        self.position = 0
        self._resumed = False
        self._pool: DataLoader[Any] | None = None

    def __len__(self) -> int:
        """Batches an epoch, the same on every rank."""
        return len(self.bounds)

    def state_dict(self) -> dict[str, int]:
        """Plain integers: the place in the stream, and the settings it is a place of."""
        return {"epoch": self.epoch, "position": self.position, **self._identity()}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on from `state`. Raises ConfigError when it was saved under other settings."""
        for name, ours in self._identity().items():
            if state.get(name) != ours:
                raise ConfigError(f"cannot resume the data stream: {name} was {state.get(name)}, now {ours}")
        self.epoch, self.position = state["epoch"], state["position"]
        self._resumed = True

    def __iter__(self) -> Iterator[Batch]:
        if self.shuffle or self._resumed:
            if self.position >= len(self):
                self.epoch, self.position = self.epoch + 1, 0
        else:
            self.position = 0
        self._resumed = False
        key = (self.seed, self.epoch) if self.shuffle else None
        order, bounds = self._plan(key)
        counts = self.examples if isinstance(self.examples, CountsTargets) else None
        window = self.position // self.accumulate * self.accumulate
        # Without a count, targets are known only from built batches: of the whole window, and of every rank.
        first, ranks = (self.position, [self.rank]) if counts else (window, list(range(self.world_size)))
        jobs = [(step, rank) for step in range(first, len(self)) for rank in ranks]
        built = self._built([self._share(order, bounds[step], rank) for step, rank in jobs], key)
        for start in range(window, len(self), self.accumulate):
            stop = min(start + self.accumulate, len(self))
            ours: dict[int, Batch] = {}
            if counts:
                rows = [row for first, last in bounds[start:stop] for row in order[first:last]]
                total = counts.count_targets(rows, key)
            else:
                total = 0
                for step in range(start, stop):
                    for rank in ranks:
                        batch = next(built)
                        total += self.examples.targets(batch)
                        if rank == self.rank:
                            ours[step] = batch
            targets = torch.tensor(float(total), dtype=torch.float64)
            for step in range(max(start, self.position), stop):
                batch = ours.pop(step) if ours else next(built)
                batch["index"] = torch.from_numpy(np.array(self._share(order, bounds[step], self.rank), dtype=np.int64))
                batch["window_targets"] = targets
                # Before the yield: the caller saves the state while it holds this batch.
                self.position = step + 1
                yield batch

    def _identity(self) -> dict[str, int]:
        return {
            "examples": len(self.examples),
            "batch_size": self.batch_size,
            "accumulate": self.accumulate,
            "world_size": self.world_size,
            "seed": self.seed,
            "shuffle": int(self.shuffle),
            "drop_last": int(self.drop_last),
            **({"order": self.ordered.order_identity} if self.ordered else {}),
        }

    def _plan(self, key: tuple[int, ...] | None) -> tuple[list[int], list[tuple[int, int]]]:
        """The examples of this epoch in order, and where in that list each global batch starts and stops."""
        if self.ordered:
            order, batches = self.ordered.epoch_order(key, self.bounds)
            return order, [self.bounds[batch] for batch in batches]
        if not self.shuffle:
            return list(range(len(self.examples))), self.bounds
        order = torch.randperm(len(self.examples), generator=generator("order", self.seed, self.epoch)).tolist()
        return order, self.bounds

    def _share(self, order: list[int], bounds: tuple[int, int], rank: int) -> list[int]:
        """The part of a global batch that `rank` takes."""
        start, stop = bounds
        size = stop - start
        return order[start + size * rank // self.world_size : start + size * (rank + 1) // self.world_size]

    def _built(self, jobs: list[list[int]], key: tuple[int, ...] | None) -> Iterator[Batch]:
        """Batches of the jobs, in order."""
        if self.workers == 0:
            for indices in jobs:
                yield self.examples.batch(indices, key)
            return
        if self._pool is None:
            # The pool draws a base seed when it starts: from a generator of its own, or else the model's random
            # stream (dropout) would depend on the number of workers.
            self._pool = DataLoader(
                _Jobs(self.examples),
                sampler=_Queue(),
                batch_size=None,
                num_workers=self.workers,
                persistent_workers=True,
                generator=torch.Generator(),
            )
        queue = self._pool.sampler
        assert isinstance(queue, _Queue)
        queue.jobs = [(indices, key) for indices in jobs]
        for made in self._pool:
            if isinstance(made, ConfigError):
                raise made
            yield made


Job = tuple[list[int], tuple[int, ...] | None]


class _Queue:
    """Sampler whose items are the jobs of the coming epoch."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def __iter__(self) -> Iterator[Job]:
        return iter(self.jobs)

    def __len__(self) -> int:
        return len(self.jobs)


class _Jobs(Dataset[Any]):
    """What a worker runs: a job in, a batch out."""

    def __init__(self, examples: Examples) -> None:
        self.examples = examples

    def __getitem__(self, job: Job) -> Batch | ConfigError:
        try:
            return self.examples.batch(*job)
        except ConfigError as error:  # returned, not raised: torch would rewrite the message into a traceback
            return error


def _global_batches(examples: int, size: int, ranks: int, drop_last: bool) -> list[tuple[int, int]]:
    """Where each global batch of an epoch starts and stops. A rest below one example a rank joins the last batch."""
    bounds = [(start, start + size) for start in range(0, examples - size + 1, size)]
    rest = len(bounds) * size
    if drop_last or rest == examples:
        return bounds
    if examples - rest >= ranks:
        bounds.append((rest, examples))
    elif bounds:
        bounds[-1] = (bounds[-1][0], examples)
    return bounds
