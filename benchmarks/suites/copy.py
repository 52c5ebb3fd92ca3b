"""Copy: what stood where, and what came after it the last time?

    python -m benchmarks.run suite=copy size=small [task=selective,induction,copying,...] [mixer=...]

Symbols are numbers from 3; 0 is a blank, 1 is the question and 2 the start. Tasks, each with the primary metric
`accuracy`, the share of answers that are right, but for `extrapolation`:

`selective`      some symbols stand anywhere among blanks; after a bar they are told in order. Where they stand decides
                 what to keep, so a mixer whose dynamics are fixed cannot (Gu & Dao, table 1).
                     ids       0  7  0  0  5  1  1
                     answers   .  .  .  .  .  7  5
`induction`      random symbols with a period that differs from row to row, so that no fixed distance helps; every
                 symbol after the first repeated one has to be told before it comes. Arms with one and with two layers:
                 a single layer cannot look up what followed an earlier symbol (Olsson et al.). Without feed-forwards.
                     ids       7  5  9  7  5  9  7
                     answers   .  .  .  5  9  7  5       (period 3; the last answer follows the row)
`copying`        a row, then the same row again, told with the right symbols so far (Jelassi et al.)
                     ids       7  5  9  1  7  5
                     answers   .  .  .  7  5  9
`palindrome`     a row, then the row backwards (Kimi Team)
                     ids       7  5  9  1  9  5
                     answers   .  .  .  9  5  7
`extrapolation`  a special symbol comes once, followed by another; when it comes again at the row's end, that one has to
                 be told (Gu & Dao, table 2). Trained on one length; rows of 1 to 16 times that length are read token
                 by token, with the state alone. Primary: accuracy@16x.
                     ids       7  2  5  9  8  2
                     answers   .  .  .  .  .  5

Known: two attention layers learn induction and one does not; a selective state space copies selectively and the same
with frozen dynamics (`mamba_fixed`) does not; a state that is too small for the row bounds copying.

Papers: Gu & Dao 2023 (Mamba), arXiv:2312.00752; Olsson et al. 2022 (In-context learning and induction heads),
arXiv:2209.11895; Jelassi et al. 2024, arXiv:2402.01032; Kimi Team 2025, arXiv:2510.26692, section 5.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.suites.api import Arm, Job, Outcome, Size, Task
from benchmarks.suites.synthetic import IGNORED, PRESETS, Draw, model_of, named, outcome, scored, train
from benchmarks.suites.training import TEST_SEED

__all__ = ["SUITE", "Copy", "copy_rows", "hidden_pair_rows", "periodic_rows", "selective_rows"]

BLANK, QUESTION, START = 0, 1, 2
FIRST = 3
"""The first symbol; ids below it are marks."""

Rows = tuple[Tensor, Tensor]


def selective_rows(batch: int, generator: torch.Generator, *, length: int, items: int, symbols: int) -> Rows:
    """ids and labels (B, length + items): `items` symbols at random places of `length`, then as many questions."""
    told = torch.randint(FIRST, FIRST + symbols, (batch, items), generator=generator)
    places = torch.rand(batch, length, generator=generator).argsort(1)[:, :items].sort(1).values  # (B, items)
    ids = torch.full((batch, length + items), BLANK)
    ids.scatter_(1, places, told)
    ids[:, length:] = QUESTION
    labels = torch.full_like(ids, IGNORED)
    labels[:, length:] = told
    return ids, labels


def periodic_rows(batch: int, generator: torch.Generator, *, length: int, periods: Sequence[int], symbols: int) -> Rows:
    """ids and labels (B, T): symbols that repeat after a period drawn for each row; no symbol twice in a period."""
    low, high = periods
    period = torch.randint(low, high + 1, (batch, 1), generator=generator)  # (B, 1)
    one = torch.rand(batch, symbols, generator=generator).argsort(1) + FIRST  # (B, symbols)
    at = torch.arange(length + 1)
    row = one.gather(1, at % period)  # (B, T + 1)
    ids, labels = row[:, :-1], row[:, 1:].clone()
    labels[at[1:] <= period] = IGNORED  # where the period ends can only be known once it has
    return ids, labels


def copy_rows(batch: int, generator: torch.Generator, *, length: int, symbols: int, backwards: bool) -> Rows:
    """ids and labels (B, 2 length): a row, the question, and the answer so far."""
    row = torch.randint(FIRST, FIRST + symbols, (batch, length), generator=generator)
    answer = row.flip(1) if backwards else row
    mark = torch.full((batch, 1), QUESTION)
    ids = torch.cat((row, mark, answer[:, :-1]), dim=1)
    labels = torch.full_like(ids, IGNORED)
    labels[:, length:] = answer
    return ids, labels


def hidden_pair_rows(batch: int, generator: torch.Generator, *, length: int, symbols: int) -> Rows:
    """ids and labels (B, T): START once before the last place, and at the end, where what followed it is asked."""
    ids = torch.randint(FIRST, FIRST + symbols, (batch, length), generator=generator)
    place = torch.randint(0, length - 2, (batch, 1), generator=generator)  # (B, 1)
    ids.scatter_(1, place, START)
    ids[:, -1] = START
    labels = torch.full_like(ids, IGNORED)
    labels[:, -1:] = ids.gather(1, place + 1)
    return ids, labels


COMMON = {"dim": 32, "depth": 2, "heads": 2, "ffn": 128, "conv": 0, "position": "rope", "stop": 0.995, "batch": 16}
COMMON |= {"steps": 600, "rows": 200, "test_every": 50, "symbols": 16}
TINY = {"batch": 4, "steps": 4, "test_every": 4, "rows": 16}
LARGE = {"dim": 64, "ffn": 256, "batch": 64, "rows": 1280, "test_every": 500}
INDUCTION = {"symbols": 32, "ffn": 0}
SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "selective": {
        "smoke": COMMON | TINY | {"length": 12, "items": 3},
        "small": COMMON | {"batch": 32, "length": 24, "items": 5, "symbols": 8},
        "paper": COMMON | LARGE | {"length": 4096, "items": 16, "steps": 400_000},
    },
    "induction": {
        "smoke": COMMON | TINY | INDUCTION | {"length": 12, "periods": [3, 5]},
        "small": COMMON | INDUCTION | {"batch": 32, "length": 48, "periods": [8, 24]},
        "paper": COMMON | LARGE | INDUCTION | {"length": 512, "periods": [24, 250], "steps": 50_000, "symbols": 256},
    },
    "copying": {
        "smoke": COMMON | TINY | {"length": 6},
        "small": COMMON | {"length": 24},
        "paper": COMMON | LARGE | {"length": 256, "steps": 20_000, "symbols": 26},
    },
    "extrapolation": {
        "smoke": COMMON | TINY | {"length": 8},
        "small": COMMON | {"length": 32},
        "paper": COMMON | LARGE | {"length": 256, "steps": 200_000},
    },
}
SETTINGS["palindrome"] = SETTINGS["copying"]
MULTIPLES = (1, 2, 4, 16)
"""Of the trained length, in `extrapolation`."""
DEPTHS = (1, 2)
"""Of the arms in `induction`."""


class Copy:
    name = "copy"
    title = "Copying and induction"
    paper = "Gu & Dao 2023, arXiv:2312.00752"
    version = 1
    seeds = 5
    presets = PRESETS
    mixers: Sequence[Any] = (
        *("attention", "linear_attention", "retention", "gla", "mamba", "mamba_fixed", "mamba2", "delta"),
        *("gated_delta", "kda", "rwkv7", "lstm", "hybrid_3to1"),
    )
    default_tasks = ("selective", "induction")

    def tasks(self, size: Size) -> Sequence[Task]:
        def share(name: str, title: str, primary: str = "accuracy") -> Task:
            trivial = 1 / SETTINGS[name][size]["symbols"]
            return Task(name=name, title=title, primary=primary, trivial=trivial, solved=0.95)

        return [
            share("selective", "Selective copying"),
            share("induction", "Induction with one and two layers"),
            share("copying", "Copying"),
            share("palindrome", "Palindromes"),
            share("extrapolation", "Induction at 16 times the trained length", "accuracy@16x"),
        ]

    def arms(self, task: str, mixers: Sequence[Any]) -> Sequence[Arm]:
        made: list[Arm] = []
        for mixer in mixers:
            name, value = named(mixer)
            if task == "induction":
                words = {1: "1 layer", 2: "2 layers"}
                made += [Arm(name=f"{name}, {words[n]}", mixer=value, options={"depth": n}) for n in DEPTHS]
            else:
                made.append(Arm(name=name, mixer=value))
        return made

    def rates(self, task: str, size: Size) -> Sequence[float]:
        return [1e-3, 3.16e-3, 1e-2] if size == "paper" else [3.16e-3, 1e-2, 3.16e-2]

    def settings(self, task: str, size: Size) -> Mapping[str, Any]:
        return SETTINGS[task][size]

    def run(self, job: Job) -> Outcome:
        """Raises ConfigError where the mixer cannot serve."""
        torch.manual_seed(job.seed)
        draw = _draw(job.task, job.settings)
        test = draw(job.settings["rows"], torch.Generator().manual_seed(TEST_SEED))
        length = test[0].shape[1]
        config, matched = model_of(job, FIRST + job.settings["symbols"], length, reference="attention")
        model = config.build()
        went = train(model, draw, test, job)
        score = scored(model, *test)
        metrics = {"accuracy": score.accuracy, "rows": score.rows}
        if job.task == "extrapolation":
            metrics |= {f"accuracy@{multiple}x": _further(model, job.settings, multiple) for multiple in MULTIPLES}
            curve = [metrics[f"accuracy@{multiple}x"] for multiple in MULTIPLES]
            return outcome(model, went, matched, metrics, length=length, curves={"accuracy by length": curve})
        return outcome(model, went, matched, metrics, length=length)


def _draw(task: str, settings: Mapping[str, Any], multiple: int = 1) -> Draw:
    length, symbols = settings["length"] * multiple, settings["symbols"]
    if task == "selective":
        return partial(selective_rows, length=length, items=settings["items"], symbols=symbols)
    if task == "induction":
        return partial(periodic_rows, length=length, periods=settings["periods"], symbols=symbols)
    if task == "extrapolation":
        return partial(hidden_pair_rows, length=length, symbols=symbols)
    return partial(copy_rows, length=length, symbols=symbols, backwards=task == "palindrome")


def _further(model: Any, settings: Mapping[str, Any], multiple: int) -> float:
    """Accuracy on rows of a multiple of the trained length, token by token."""
    draw = _draw("extrapolation", settings, multiple)
    ids, labels = draw(min(settings["rows"], 64), torch.Generator().manual_seed(TEST_SEED))
    return scored(model, ids, labels, stepwise=1).accuracy


SUITE = Copy()
