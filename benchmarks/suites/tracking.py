"""Tracking: a state that every symbol changes has to be told after every symbol, in rows as long as trained and longer.

    python -m benchmarks.run suite=tracking size=small [task=parity,s3,modular,s5,dyck,count] [mixer=...]

The answer at t is the state after the symbols 0 .. t:

`parity`    of the ones so far                                 ids  1  0  1  1      answers  1  1  0  1
`modular`   a sum modulo 5 with signs: + (0), - (1) or * (2) stand at even places, digits between them, from left to
            right, the first operator acting on 0             ids  +  3  -  4       answers  0  3  3  4
`s3`, `s5`  words over the permutations of 3 or 5 things: the product so far (6 and 120 elements)
`s5_swaps`  the same for 5 things where every symbol swaps two of them or none (11 symbols)
`dyck`      brackets of one kind: 0 if every one so far is closed, 1 if not, 2 once one closed too many (for good)
                                                               ids  (  )  (  (      answers  0 after ), 1 after (
`count`     whether a's so far are more (2), fewer (0) or as many (1) as b's

Primary metric: `accuracy` on rows of the trained length; `exact` is the share of them without a mistake, `accuracy@2x`
that over the second half of rows twice as long. Rows of training have the full length; a label at every
place takes the part of a curriculum.

Arms: the mixers, and with eigenvalues that may be negative (`delta_negative`, `gated_delta_negative`), and an LSTM.
Known: parity needs a negative eigenvalue (or a state that is not linear, as an LSTM's); positive ones and attention
fail beyond what they memorise (Grazzi et al.); products of one Householder matrix a step swap two things, so swaps of
five are within one layer's reach and all of S5 is not; counters need an LSTM's unbounded cell (Deletang et al.).

Papers: Grazzi et al. 2024, arXiv:2411.12537; Merrill et al. 2024, arXiv:2404.08819; Deletang et al. 2022,
arXiv:2207.02098; Hahn 2020, arXiv:1906.06755.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from itertools import combinations, permutations
from typing import Any

import torch
from torch import Tensor

from benchmarks.suites.api import Arm, Job, Outcome, Size, Task
from benchmarks.suites.synthetic import IGNORED, PRESETS, model_of, named, outcome, scored, train
from benchmarks.suites.training import TEST_SEED

__all__ = ["SUITE", "TASKS", "Tracking", "product_table", "swaps"]

MODULUS = 5


def parity(ids: Tensor) -> Tensor:
    """ids (B, T) of 0 and 1 -> (B, T)."""
    return ids.cumsum(1) % 2


def dyck(ids: Tensor) -> Tensor:
    """ids (B, T), 0 opens and 1 closes -> 0 balanced, 1 open, 2 closed too many at some time."""
    depth = (1 - 2 * ids).cumsum(1)  # (B, T)
    broken = depth.cummin(1).values < 0
    return torch.where(broken, 2, (depth > 0).long())


def count(ids: Tensor) -> Tensor:
    """ids (B, T), 0 for a and 1 for b -> 1 + the sign of how many more a's."""
    return 1 + (1 - 2 * ids).cumsum(1).sign()


def modular(ids: Tensor) -> Tensor:
    """ids (B, T): operators 0 .. 2 at even places, digits 3 .. 3 + MODULUS - 1 at odd ones -> the value so far."""
    value = torch.zeros_like(ids[:, 0])
    told = []
    for t in range(ids.shape[1]):
        if t % 2:
            digit, operator = ids[:, t] - 3, ids[:, t - 1]
            made = torch.stack((value + digit, value - digit, value * digit), dim=1)  # (B, 3)
            value = made.gather(1, operator[:, None])[:, 0] % MODULUS
        told.append(value)
    return torch.stack(told, dim=1)


@cache
def product_table(things: int) -> Tensor:
    """(N!, N!): the index of `first b, then a` at [a, b]; permutations in lexicographic order, so 0 changes nothing."""
    every = list(permutations(range(things)))
    place = {p: n for n, p in enumerate(every)}
    return torch.tensor([[place[tuple(a[x] for x in b)] for b in every] for a in every])


@cache
def swaps(things: int) -> Tensor:
    """Indices of the permutations that swap two things or none."""
    every = list(permutations(range(things)))
    found = [0]
    for a, b in combinations(range(things), 2):
        one = list(range(things))
        one[a], one[b] = b, a
        found.append(every.index(tuple(one)))
    return torch.tensor(found)


def word(ids: Tensor, things: int, symbols: Tensor | None = None) -> Tensor:
    """ids (B, T) of permutations, or of places in `symbols` -> their product so far."""
    table = product_table(things)
    elements = ids if symbols is None else symbols[ids]
    value = elements[:, 0]
    told = [value]
    for t in range(1, ids.shape[1]):
        value = table[elements[:, t], value]
        told.append(value)
    return torch.stack(told, dim=1)


def _random(symbols: int, batch: int, length: int, generator: torch.Generator) -> Tensor:
    return torch.randint(symbols, (batch, length), generator=generator)


def _expression(batch: int, length: int, generator: torch.Generator) -> Tensor:
    ids = torch.randint(3, (batch, length), generator=generator)
    ids[:, 1::2] = 3 + torch.randint(MODULUS, ids[:, 1::2].shape, generator=generator)
    return ids


def _brackets(batch: int, length: int, generator: torch.Generator) -> Tensor:
    """Seven in ten close, so that rows come back to 0 often; where none is open, all but one in fifty open."""
    coins = (torch.rand(batch, length, generator=generator) < 0.7).long()
    mends = torch.rand(batch, length, generator=generator) < 0.98
    depth = torch.zeros(batch, dtype=torch.long)
    columns = []
    for t in range(length):
        closes = torch.where((depth == 0) & mends[:, t], 0, coins[:, t])
        depth = depth + 1 - 2 * closes
        columns.append(closes)
    return torch.stack(columns, dim=1)


Make = Callable[[int, int, torch.Generator], Tensor]
"""(batch, length, generator) -> ids (B, T)."""

TASKS: dict[str, tuple[str, int, int, Make, Callable[[Tensor], Tensor]]] = {
    "parity": ("Parity", 2, 2, partial(_random, 2), parity),
    "s3": ("Words over S3", 6, 6, partial(_random, 6), partial(word, things=3)),
    "modular": ("Arithmetic modulo 5", 3 + MODULUS, MODULUS, _expression, modular),
    "s5_swaps": ("Swaps of five things", 11, 120, partial(_random, 11), partial(word, things=5, symbols=swaps(5))),
    "s5": ("Words over S5", 120, 120, partial(_random, 120), partial(word, things=5)),
    "dyck": ("Brackets of one kind", 2, 3, _brackets, dyck),
    "count": ("Counting", 2, 3, partial(_random, 2), count),
}
"""Title, symbols of the input and of the answer, how rows are drawn, and what is told."""

COMMON = {"dim": 32, "depth": 1, "heads": 4, "ffn": 128, "conv": 0, "position": "rope", "stop": 0.999, "batch": 32}
SIZED: dict[str, dict[str, Any]] = {
    "smoke": COMMON | {"length": 8, "steps": 4, "batch": 4, "rows": 16, "test_every": 4},
    "small": COMMON | {"length": 24, "steps": 800, "rows": 200, "test_every": 50},
    "paper": COMMON
    | {"dim": 128, "depth": 2, "ffn": 512, "length": 40, "steps": 20_000, "batch": 256, "rows": 1024}
    | {"test_every": 500},
}


class Tracking:
    name = "tracking"
    title = "Tracking a state"
    paper = "Grazzi et al. 2024, arXiv:2411.12537"
    version = 1
    seeds = 5
    presets = PRESETS
    mixers: Sequence[Any] = (
        *("attention", "linear_attention", "retention", "gla", "mamba", "mamba2", "delta", "delta_negative"),
        *("gated_delta", "gated_delta_negative", "kda", "rwkv7", "lstm", "hybrid_3to1"),
    )
    default_tasks = ("parity", "s3")

    def tasks(self, size: Size) -> Sequence[Task]:
        return [
            Task(name=name, title=title, primary="accuracy", trivial=1 / answers, solved=0.98)
            for name, (title, _, answers, _, _) in TASKS.items()
        ]

    def arms(self, task: str, mixers: Sequence[Any]) -> Sequence[Arm]:
        return [Arm(name=name, mixer=value) for name, value in map(named, mixers)]

    def rates(self, task: str, size: Size) -> Sequence[float]:
        return [3.16e-3, 1e-2, 3.16e-2]

    def settings(self, task: str, size: Size) -> Mapping[str, Any]:
        return SIZED[size]

    def run(self, job: Job) -> Outcome:
        """Raises ConfigError where the mixer cannot serve."""
        torch.manual_seed(job.seed)
        _, symbols, answers, make, tell = TASKS[job.task]
        length, rows = job.settings["length"], job.settings["rows"]

        def draw(batch: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
            ids = make(batch, length, generator)
            return ids, tell(ids)

        test = draw(rows, torch.Generator().manual_seed(TEST_SEED))
        config, matched = model_of(job, max(symbols, answers), length, reference="attention")
        model = config.build()
        went = train(model, draw, test, job)
        near, far = scored(model, *test), _beyond(model, make, tell, rows, length)
        metrics = {"accuracy": near.accuracy, "exact": near.rows, "accuracy@2x": far}
        return outcome(model, went, matched, metrics, length=2 * length)


def _beyond(model: Any, make: Make, tell: Callable[[Tensor], Tensor], rows: int, length: int) -> float:
    """Accuracy over the second half of rows of twice the length."""
    ids = make(rows, 2 * length, torch.Generator().manual_seed(TEST_SEED))
    labels = tell(ids)
    labels[:, :length] = IGNORED
    return scored(model, ids, labels).accuracy


SUITE = Tracking()
