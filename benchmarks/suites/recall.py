"""Recall: how much of what was said before can a mixer find again, and what does its memory cost?

    python -m benchmarks.run suite=recall size=small [task=mqar,plain,width,fuzzy,noisy] [mixer=...]

A row begins with pairs of a key and a value; later each key comes once more, and its value has to be told there. Keys
are the first half of the symbols, values the second; 0 fills the gaps. Two pairs in a row of 12:

    ids       3  9  5  7  0  5  0  0  3  0  0  0
    answers   .  .  .  .  .  7  .  .  9  .  .  .

Tasks, each with the primary metric `accuracy`, the share of answers that are right:

`mqar`    the frontier: every mixer with several sizes of state, the points of accuracy against state bytes
`plain`   the same rows without the convolution that all arms of the other tasks have before their mixer. Mixers with a
          short convolution of their own lose that too, so that what is compared is the mixing alone.
`width`   every mixer at several model widths
`fuzzy`   keys and values are motifs of 1 to 3 symbols, and a motif has to be told whole (Poli et al.)
`noisy`   one symbol in five is noise, from a vocabulary of its own, and stands anywhere (Poli et al.)

Known: attention recalls at any width and linear attention with elu features does not; accuracy rises with the state;
a few layers of attention among many others are enough. The model has two layers and no feed-forwards, as in the paper,
so arms share width and depth, and their parameters differ; state bytes are what the frontier is drawn against.

Papers: Arora et al. 2023 (Zoology), arXiv:2312.04927, whose generator and model these are; Arora et al. 2024 (Based),
arXiv:2402.18668, for the frontier; Poli et al. 2024 (MAD), arXiv:2403.17844, for fuzzy and noisy recall; Okpekpe &
Orvieto 2025, arXiv:2508.19029, for how much learning rates and the short convolution decide.
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
from zoo.registry import decode, encode, merge

__all__ = ["SUITE", "Recall", "among_noise", "fuzzy_rows", "noisy_rows", "pair_rows"]

POWER = 0.01
"""Of the law that gaps before the second call of a key are drawn from."""

STATES: dict[str, dict[str, dict[str, Any]]] = {
    "attention": {"window 8": {"window": 8}, "window 16": {"window": 16}},
    "taylor": {"K 4": {"key_dim": 4}, "K 8": {"key_dim": 8}},
    "gated_delta": {"4 heads": {"heads": 4}, "2 heads": {"heads": 2}},
    "mamba2": {"N 8": {"state_size": 8}, "N 128": {"state_size": 128}},
}
"""Other sizes of state by mixer, for the frontier; the mixer itself is a point too."""
WIDTHS = (8, 16, 32)

MODEL = {"depth": 2, "heads": 1, "ffn": 0, "conv": 3, "position": "learned", "stop": 0.995}
SETTINGS: dict[str, dict[str, Any]] = {
    "smoke": MODEL | {"dim": 16, "length": 16, "pairs": 3, "symbols": 16, "steps": 4, "batch": 4, "rows": 16}
    | {"test_every": 4},
    "small": MODEL | {"dim": 16, "length": 40, "pairs": 10, "symbols": 32, "steps": 600, "batch": 32, "rows": 200}
    | {"test_every": 50},
    "paper": MODEL | {"dim": 128, "length": 256, "pairs": 16, "symbols": 8192, "steps": 12_500, "batch": 512}
    | {"rows": 3000, "test_every": 200, "stop": 0.99},
}  # fmt: skip


def pair_rows(
    batch: int, generator: torch.Generator, *, length: int, pairs: int, symbols: int
) -> tuple[Tensor, Tensor]:
    """ids and labels (B, T): `pairs` keys, each followed by its value, then every key once more, somewhere."""
    half, start = symbols // 2, 2 * pairs
    keys = torch.rand(batch, half - 1, generator=generator).argsort(1)[:, :pairs] + 1  # (B, pairs); 0 fills the gaps
    values = torch.rand(batch, half, generator=generator).argsort(1)[:, :pairs] + half
    room = (length - start) // 2
    weights = POWER * torch.arange(1, room + 1, dtype=torch.float64) ** (POWER - 1)
    gaps = torch.multinomial(weights.expand(batch, -1), pairs, generator=generator)  # (B, pairs), each place once
    ids = torch.zeros(batch, length, dtype=torch.long)
    ids[:, 0:start:2], ids[:, 1:start:2] = keys, values
    labels = torch.full_like(ids, IGNORED)
    places = start + 2 * gaps
    ids.scatter_(1, places, keys)
    labels.scatter_(1, places, values)
    return ids, labels


def noisy_rows(
    batch: int, generator: torch.Generator, *, length: int, pairs: int, symbols: int
) -> tuple[Tensor, Tensor]:
    """`pair_rows` of four fifths of the length, with noise from `symbols` on in the other places."""
    kept = pair_rows(batch, generator, length=length - length // 5, pairs=pairs, symbols=symbols)
    return among_noise(*kept, length, symbols, symbols // 4, generator)


def among_noise(
    ids: Tensor, labels: Tensor, length: int, first: int, symbols: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Rows (B, S) spread over `length` places in their order; the others hold first .. first + symbols - 1."""
    batch, kept = ids.shape
    places = torch.rand(batch, length, generator=generator).argsort(1)[:, :kept].sort(1).values  # (B, S)
    spread = torch.randint(first, first + symbols, (batch, length), generator=generator)
    answers = torch.full_like(spread, IGNORED)
    return spread.scatter_(1, places, ids), answers.scatter_(1, places, labels)


def fuzzy_rows(
    batch: int, generator: torch.Generator, *, length: int, pairs: int, symbols: int, longest: int = 3
) -> tuple[Tensor, Tensor]:
    """Keys and values of 1 to `longest` symbols. A second call repeats the key's motif and then the value's, whose
    symbols are the answers, each told before it is given."""
    ids = torch.zeros(batch, length, dtype=torch.long)
    labels = torch.full_like(ids, IGNORED)
    half = symbols // 2
    for row in range(batch):
        sizes = torch.randint(1, longest + 1, (2, pairs), generator=generator).tolist()
        # keys draw from one permutation, so that no key begins another one's motif
        keys = (torch.randperm(half - 1, generator=generator) + 1).tolist()
        entries, used = [], 0
        for k, v in zip(*sizes, strict=True):
            value = (torch.randint(half, (v,), generator=generator) + half).tolist()
            entries.append(((keys[used : used + k]), value))
            used += k
        at = 0
        order = torch.randperm(pairs, generator=generator).tolist()
        for call, (key, value) in enumerate([*entries, *(entries[n] for n in order)]):
            told = [*key, *value]
            if at + len(told) > length:
                break
            ids[row, at : at + len(told)] = torch.tensor(told)
            if call >= pairs:  # the symbol at t has to tell the one at t + 1
                begin = at + len(key) - 1
                labels[row, begin : begin + len(value)] = torch.tensor(value)
            at += len(told)
    return ids, labels


ROWS = {"fuzzy": fuzzy_rows, "noisy": noisy_rows}


class Recall:
    name = "recall"
    title = "Recall of what was said before"
    paper = "Arora et al. 2023, arXiv:2312.04927"
    version = 1
    seeds = 5
    mixers: Sequence[Any] = (
        "attention", "linear_attention", "taylor", "retention", "gla", "mamba", "mamba2", "delta", "gated_delta",
        "kda", "rwkv7", "lstm", "hybrid_3to1",
    )  # fmt: skip
    presets = PRESETS
    default_tasks = ("mqar", "plain")

    def tasks(self, size: Size) -> Sequence[Task]:
        share: dict[str, Any] = {"primary": "accuracy", "solved": 0.95, "trivial": 2 / SETTINGS[size]["symbols"]}
        return [
            Task(name="mqar", title="Recall against state bytes", **share),
            Task(name="plain", title="Recall without short convolutions", **share),
            Task(name="width", title="Recall against width", **share),
            Task(name="fuzzy", title="Fuzzy recall", **share),
            Task(name="noisy", title="Noisy recall", **share),
        ]

    def arms(self, task: str, mixers: Sequence[Any]) -> Sequence[Arm]:
        made: list[Arm] = []
        for mixer in mixers:
            name, value = named(mixer)
            if task == "plain":
                value = _without_convolution(value)
            if task == "width":
                made += [Arm(name=f"{name}, width {dim}", mixer=value, options={"dim": dim}) for dim in WIDTHS]
                continue
            made.append(Arm(name=name, mixer=value))
            if task == "mqar" and isinstance(mixer, str):
                made += [
                    Arm(name=f"{name}, {told}", mixer=merge(value, changes))
                    for told, changes in STATES.get(name, {}).items()
                ]
        return made

    def rates(self, task: str, size: Size) -> Sequence[float]:
        return [1e-3, 3.16e-3, 1e-2] if size == "paper" else [3.16e-3, 1e-2, 3.16e-2]

    def settings(self, task: str, size: Size) -> Mapping[str, Any]:
        found = SETTINGS[size]
        return found | {"conv": 0} if task == "plain" else found

    def run(self, job: Job) -> Outcome:
        """Raises ConfigError where the mixer cannot serve."""
        torch.manual_seed(job.seed)
        settings, length = job.settings, job.settings["length"]
        sizes = {name: settings[name] for name in ("length", "pairs", "symbols")}
        draw: Draw = partial(ROWS.get(job.task, pair_rows), **sizes)
        vocabulary = settings["symbols"] + (settings["symbols"] // 4 if job.task == "noisy" else 0)
        config, matched = model_of(job, vocabulary, length)
        model = config.build()
        test = draw(settings["rows"], torch.Generator().manual_seed(TEST_SEED))
        went = train(model, draw, test, job)
        score = scored(model, *test)
        metrics = {"accuracy": score.accuracy, "rows": score.rows}
        return outcome(model, went, matched, metrics, length=length)


def _without_convolution(mixer: Any) -> Any:
    """The mixer with `conv: 0`, in a hybrid every member."""
    value = encode(decode("mixer", mixer))
    return _convs_off(value)


def _convs_off(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {key: _convs_off(item) for key, item in value.items()}
        return kept | {"conv": 0} if "conv" in kept and "name" in kept else kept
    return [_convs_off(item) for item in value] if isinstance(value, list) else value


SUITE = Recall()
