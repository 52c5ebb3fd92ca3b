"""MAD: six small tasks, each of one skill that a language model needs (mechanistic architecture design).

    python -m benchmarks.run suite=mad size=small [task=recall,noisy,fuzzy,copy,compression,memorisation] [mixer=...]

`recall`        pairs of a key and a value, keys with replacement; the value of a key that was seen before is asked,
                where the key stands                   ids  k1 v4 k2 v7 k1 v4      answers  .  .  .  .  v4 .
`noisy`         the same with one place in five held by symbols that mean nothing
`fuzzy`         keys and values of 1 to 3 symbols; a value is told whole, with the right symbols so far
`copy`          selective copying: symbols among blanks, told in order at the end
`compression`   the whole row is told from the output at its last place alone, by a two-layer decoder that is given
                the place to tell                      ids  3 9 5 0                answers  3 9 5, all told at the 0
`memorisation`  values of keys that never stand in the row: one mapping for all rows and seeds, learned by heart
                                                       ids  k1 ? k7 ?              answers  .  v4 .  v2

Primary metric: `accuracy`, the share of answers that are right (micro). `macro` is the mean over the symbols to tell,
which the paper's code reports under the name of accuracy; both are here, since they differ where symbols are rare.

Departures from the paper: fresh rows in every step instead of 12,800 over 200 epochs; a rate that falls at the end (in
the published code the key of the cosine schedule is misspelt, so that rate is constant); loss on the answers alone, as
the metric is. Every arm has the parameters of attention, by the hidden width of its feed-forwards.

Known: attention is ahead in fuzzy recall, selective state spaces in compression; delta rules memorise less.

Paper: Poli et al. 2024, arXiv:2403.17844.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.suites.api import Arm, Job, Outcome, Size, Task
from benchmarks.suites.copy import selective_rows
from benchmarks.suites.recall import among_noise, fuzzy_rows
from benchmarks.suites.synthetic import IGNORED, PRESETS, Draw, model_of, named, outcome, scored, train
from benchmarks.suites.training import TEST_SEED
from zoo.models.gpt import GPT

__all__ = ["MAD", "SUITE", "AutoEncoder", "compression_rows", "memorisation_rows", "recall_rows"]

FACTS_SEED = 2024
"""Of the mapping to memorise."""
MARKS = 3
"""Ids below the symbols of `copy`."""

Rows = tuple[Tensor, Tensor]


def recall_rows(batch: int, generator: torch.Generator, *, length: int, symbols: int) -> Rows:
    """ids and labels (B, T): keys 0 .. symbols / 2 - 1, each with a value of the row's own mapping."""
    half, pairs = symbols // 2, length // 2
    keys = torch.randint(half, (batch, pairs), generator=generator)  # (B, pairs)
    mapping = torch.rand(batch, half, generator=generator).argsort(1) + half  # (B, half)
    values = mapping.gather(1, keys)
    ids = torch.stack((keys, values), dim=2).flatten(1)  # (B, 2 pairs)
    labels = torch.full_like(ids, IGNORED)
    seen = (keys[:, :, None] == keys[:, None, :]).tril(-1).any(2)  # (B, pairs)
    labels[:, ::2] = torch.where(seen, values, IGNORED)
    return ids, labels


def noisy_recall_rows(batch: int, generator: torch.Generator, *, length: int, symbols: int) -> Rows:
    """`recall_rows` among noise, symbols .. 2 symbols - 1."""
    kept = recall_rows(batch, generator, length=length - length // 5, symbols=symbols)
    return among_noise(*kept, length, symbols, symbols, generator)


def compression_rows(batch: int, generator: torch.Generator, *, length: int, symbols: int) -> Rows:
    """ids (B, T): T - 1 symbols from 1 on, then 0; labels are the same symbols."""
    ids = torch.randint(1, 1 + symbols, (batch, length), generator=generator)
    ids[:, -1] = 0
    labels = ids.clone()
    labels[:, -1] = IGNORED
    return ids, labels


def memorisation_rows(batch: int, generator: torch.Generator, *, length: int, symbols: int) -> Rows:
    """ids and labels (B, T): keys 1 .. symbols / 2 at even places, 0 at odd ones, where the key's value is asked."""
    half = symbols // 2
    facts = torch.randint(half, (half,), generator=torch.Generator().manual_seed(FACTS_SEED)) + 1 + half
    keys = torch.randint(half, (batch, length // 2), generator=generator)
    blanks = torch.zeros_like(keys)
    ids = torch.stack((keys + 1, blanks), dim=2).flatten(1)
    labels = torch.stack((torch.full_like(keys, IGNORED), facts[keys]), dim=2).flatten(1)
    return ids, labels


class AutoEncoder(nn.Module):
    """ids (B, T) -> logits (B, T, V) of the same ids, all from the output at the last place."""

    def __init__(self, model: GPT, length: int) -> None:
        super().__init__()
        dim, vocabulary = model.config.dim, model.config.vocab_size
        self.model = model
        self.place = nn.Embedding(length, dim)
        self.hidden, self.out = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, vocabulary)

    def forward(self, ids: Tensor) -> Tensor:
        kept = self.model.features(ids)[:, -1:]  # (B, 1, D)
        return self.out(F.gelu(self.hidden(kept + self.place.weight)))  # (B, T, V)

    def init_state(self, batch: int, max_len: int, **where: Any) -> Any:
        return self.model.init_state(batch, max_len, **where)


ROWS: dict[str, Any] = {
    "recall": recall_rows,
    "noisy": noisy_recall_rows,
    "fuzzy": fuzzy_rows,
    "copy": selective_rows,
    "compression": compression_rows,
    "memorisation": memorisation_rows,
}
TITLES = {
    "recall": "In-context recall",
    "noisy": "Noisy recall",
    "fuzzy": "Fuzzy recall",
    "copy": "Selective copying",
    "compression": "Compression",
    "memorisation": "Memorisation",
}
COMMON = {"dim": 32, "depth": 2, "heads": 2, "ffn": 128, "conv": 0, "position": "rope", "stop": 0.995}
SIZED: dict[str, dict[str, Any]] = {
    "smoke": COMMON | {"steps": 4, "batch": 4, "rows": 16, "test_every": 4},
    "small": COMMON | {"steps": 600, "batch": 16, "rows": 200, "test_every": 100},
    "paper": COMMON
    | {"dim": 128, "ffn": 512, "heads": 8, "steps": 20_000, "batch": 128, "rows": 1280, "test_every": 500},
}
ROW_SIZES: dict[str, dict[str, dict[str, int]]] = {
    "recall": {"small": {"length": 48, "symbols": 16}, "paper": {"length": 128, "symbols": 16}},
    "noisy": {"small": {"length": 48, "symbols": 16}, "paper": {"length": 128, "symbols": 16}},
    "fuzzy": {"small": {"length": 48, "symbols": 16, "pairs": 3}, "paper": {"length": 128, "symbols": 64, "pairs": 15}},
    "copy": {"small": {"length": 32, "items": 6, "symbols": 13}, "paper": {"length": 240, "items": 16, "symbols": 13}},
    "compression": {"small": {"length": 16, "symbols": 15}, "paper": {"length": 32, "symbols": 15}},
    "memorisation": {"small": {"length": 32, "symbols": 128}, "paper": {"length": 32, "symbols": 254}},
}
VOCABULARY = {"noisy": lambda symbols: 2 * symbols, "copy": lambda symbols: MARKS + symbols}
"""Ids in use where they are not `symbols` and one mark."""


class MAD:
    name = "mad"
    title = "Six tasks of mechanistic architecture design"
    paper = "Poli et al. 2024, arXiv:2403.17844"
    version = 1
    seeds = 5
    presets = PRESETS
    mixers: Sequence[Any] = ("attention", "linear_attention", "gla", "mamba", "mamba2", "delta", "gated_delta", "rwkv7")

    def tasks(self, size: Size) -> Sequence[Task]:
        return [
            Task(name=name, title=title, primary="accuracy", trivial=1 / self.settings(name, size)["symbols"])
            for name, title in TITLES.items()
        ]

    def arms(self, task: str, mixers: Sequence[Any]) -> Sequence[Arm]:
        return [Arm(name=name, mixer=value) for name, value in map(named, mixers)]

    def rates(self, task: str, size: Size) -> Sequence[float]:
        return [1e-3, 3.16e-3, 1e-2]

    def settings(self, task: str, size: Size) -> Mapping[str, Any]:
        return SIZED[size] | ROW_SIZES[task]["paper" if size == "paper" else "small"]

    def run(self, job: Job) -> Outcome:
        """Raises ConfigError where the mixer cannot serve."""
        torch.manual_seed(job.seed)
        settings = job.settings
        sizes = {name: settings[name] for name in ("length", "symbols", "pairs", "items") if name in settings}
        draw: Draw = partial(ROWS[job.task], **sizes)
        test = draw(settings["rows"], torch.Generator().manual_seed(TEST_SEED))
        length = test[0].shape[1]
        vocabulary = VOCABULARY.get(job.task, lambda symbols: 1 + symbols)(settings["symbols"])
        config, matched = model_of(job, vocabulary, length, reference="attention")
        model: nn.Module = config.build()
        if job.task == "compression":
            model = AutoEncoder(model, length)  # type: ignore[arg-type]
        went = train(model, draw, test, job)
        score = scored(model, *test)
        metrics = {"accuracy": score.accuracy, "macro": score.macro, "rows": score.rows}
        return outcome(model, went, matched, metrics, length=length)


SUITE = MAD()
