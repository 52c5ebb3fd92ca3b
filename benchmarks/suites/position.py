"""Positions beyond the trained length: does a model that learned rows of T tokens still work at 2 T and 4 T?

    python -m benchmarks.run suite=position size=small

Tasks, each with one primary metric:

`language`  A causal byte model of Corpus-S (language.py), trained on rows of T. Then the SAME last 32 bytes are told
    with T, 2 T and 4 T bytes before them, so lengths are compared on equal targets. Primary: loss@4x, nats per byte.
    The arms are sinusoidal, learned, rotary, T5 bias, ALiBi, none, and the rotary model with its frequencies changed
    by 4 after training, without more of it: position interpolation, NTK, YaRN. Learned positions beyond T exist and
    never learned. Known: ALiBi and T5 bias stay flat or fall, rotary rises, sinusoidal rises most (Press et al.).

`copy`      a row of n symbols, each another, a bar, and the row again:    7 3 4 9 | 7 3 4 9
`sort`      a row of n symbols, each another, a bar, and them in order:    7 3 9 4 | 3 4 7 9
    Trained on n = 1 .. N, asked for n = 2 N with the right answer given so far. Primary: accuracy@2x, the share of
    answered symbols that are right; exact@2x is the share of rows without a mistake. Known: only ranks, no positions
    and T5 bias before absolute ones (Kazemnejad et al.), and these at far larger scale.

`window`    The rotary model of `language`, which at the end may see only the last T tokens, with 0, 1 or 4 first tokens
    kept beside them (sinks). Primary: loss@4x. Known: large models break down without sinks (Xiao et al.); models of
    this size put hardly any weight on the first token, so no difference is expected. Sinks keep their own positions;
    Xiao et al. move them up to the window, which this attention has no switch for.

Papers: Press et al. 2021, arXiv:2108.12409; Kazemnejad et al. 2023, arXiv:2305.19466; Chen et al. 2023,
arXiv:2306.15595; Peng et al. 2023, arXiv:2309.00071; Xiao et al. 2023, arXiv:2309.17453.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.suites.api import Arm, Job, Outcome, Size, Task
from benchmarks.suites.costs import costs
from benchmarks.suites.language import corpus, next_byte_loss, train, windows
from benchmarks.suites.synthetic import named
from benchmarks.suites.training import TEST_SEED, rate_of
from zoo.blocks.api import MixerConfig
from zoo.models.gpt import GPTConfig
from zoo.registry import decode, encode

__all__ = ["POSITIONS", "SUITE", "Position", "symbol_rows"]

IGNORED = -100
LAST = 32
"""Bytes at the end of a row whose loss is compared."""
FACTOR = 4.0
"""By which the frequencies of a rotary model are changed."""

POSITIONS: dict[str, Any] = {
    "sinusoidal": "sinusoidal",
    "learned": "learned",
    "rotary": "rope",
    "T5 bias": "t5_bias",
    "ALiBi": "alibi",
    "none": "none",
}
"""Positions by the name of the arm, as the registry knows them."""
SCALINGS = {"rotary, PI": "linear", "rotary, NTK": "ntk", "rotary, YaRN": "yarn"}
"""Arms that train as `rotary` and change its frequencies afterwards."""
SINKS = {"all": None, "window": 0, "window, 1 sink": 1, "window, 4 sinks": 4}
"""First tokens that stay visible; None: no window."""

SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "language": {
        "smoke": {"dim": 32, "depth": 1, "heads": 1, "length": 32, "steps": 8, "batch": 4, "rows": 4},
        "small": {"dim": 64, "depth": 3, "heads": 2, "length": 64, "steps": 200, "batch": 16, "rows": 64},
        "paper": {"dim": 1024, "depth": 16, "heads": 8, "length": 512, "steps": 50_000, "batch": 64, "rows": 512},
    },
    "copy": {
        "smoke": {"dim": 32, "depth": 1, "heads": 2, "longest": 4, "steps": 8, "batch": 8, "rows": 16, "symbols": 8},
        "small": {
            "dim": 64,
            "depth": 2,
            "heads": 4,
            "longest": 8,
            "steps": 600,
            "batch": 48,
            "rows": 256,
            "symbols": 48,
        },
        "paper": {
            "dim": 512,
            "depth": 8,
            "heads": 8,
            "longest": 20,
            "steps": 20_000,
            "batch": 64,
            "rows": 2000,
            "symbols": 64,
        },
    },
}
SETTINGS["sort"], SETTINGS["window"] = SETTINGS["copy"], SETTINGS["language"]


class Position:
    name = "position"
    title = "Positions beyond the trained length"
    paper = "Press et al. 2021, arXiv:2108.12409"
    version = 1
    seeds = 3

    def tasks(self, size: Size) -> Sequence[Task]:
        loss = {"primary": "loss@4x", "higher_is_better": False}
        share = {"primary": "accuracy@2x", "trivial": 1 / SETTINGS["copy"][size]["symbols"]}
        return [
            Task(name="language", title="Last 32 bytes of rows of four times the trained length", **loss),
            Task(name="copy", title="Copying rows of twice the trained length", **share),
            Task(name="sort", title="Sorting rows of twice the trained length", **share),
            Task(name="window", title="A window of the trained length, with and without sinks", **loss),
        ]

    def arms(self, task: str, mixers: Sequence[Any]) -> Sequence[Arm]:
        """Positions times mixers; a mixer that takes no positions of its own is joined with those of the input."""
        made: list[Arm] = []
        for mixer in mixers:
            config: MixerConfig = decode("mixer", mixer)
            of, _ = named(mixer)
            prefix = "" if of == "attention" else f"{of}, "
            for name, options in _choices(task, config).items():
                made.append(Arm(name=prefix + name, mixer=mixer, options=options))
        return made

    def rates(self, task: str, size: Size) -> Sequence[float]:
        return [1e-3, 3.16e-3, 1e-2]

    def settings(self, task: str, size: Size) -> Mapping[str, Any]:
        return SETTINGS[task][size]

    def run(self, job: Job) -> Outcome:
        """Raises ConfigError where the mixer cannot serve."""
        torch.manual_seed(job.seed)
        return (_symbols if job.task in ("copy", "sort") else _language)(job)


def _choices(task: str, mixer: MixerConfig) -> dict[str, dict[str, Any]]:
    """Options of the arms of one mixer, by name."""
    fields = type(mixer).model_fields
    if task == "window":
        if "sinks" not in fields:
            return {}
        return {name: {"position": "rope", "sinks": sinks} for name, sinks in SINKS.items()}
    takes = "position" in fields
    made = {
        name: {"position": position}
        for name, position in POSITIONS.items()
        if takes or decode("position", position).place in ("input", "none")
    }
    if task == "language" and takes:
        made |= {name: {"position": "rope", "scaling": scaling} for name, scaling in SCALINGS.items()}
    return made


def _config(job: Job, longest: int, vocabulary: int) -> GPTConfig:
    choices = {name: job.settings[name] for name in ("dim", "depth", "heads")}
    fixed = {"family": "gpt", "init_std": "fan_in", "scale_embeddings": True, "max_len": longest}
    value = fixed | choices | {"vocab_size": vocabulary, "mixer": job.arm.mixer}
    return decode("model", value | {"position": job.arm.options["position"]}, "model")


def _afterwards(config: GPTConfig, options: Mapping[str, Any], length: int) -> GPTConfig:
    """The model as it is evaluated: with other frequencies, or a window. Weights stay as they are."""
    if (scaling := options.get("scaling")) is not None:
        value: dict[str, Any] = {"name": scaling, "factor": FACTOR}
        if scaling == "yarn":
            value["original_max_len"] = length
        return config.model_copy(update={"position": decode("position", {"name": "rope", "scaling": value})})
    if (sinks := options.get("sinks")) is not None:
        mixer = encode(config.mixer) | {"window": length - sinks, "sinks": sinks}
        return config.model_copy(update={"mixer": decode("mixer", mixer)})
    return config


def _language(job: Job) -> Outcome:
    settings, length = job.settings, job.settings["length"]
    lr = rate_of(job)
    longest = int(FACTOR) * length
    config = _config(job, longest, 256)
    model = config.build()
    draw = torch.Generator().manual_seed(job.seed)
    text = corpus("train")
    batches = (windows(text, settings["batch"], length, draw) for _ in count())
    went = train(model, batches, next_byte_loss, steps=settings["steps"], lr=lr, warmup=settings["steps"] // 20)
    final = _afterwards(config, job.arm.options, length).build()
    final.load_state_dict(model.state_dict())
    rows = windows(corpus("val"), settings["rows"], longest, torch.Generator().manual_seed(TEST_SEED))
    losses = {multiple: _last_bytes(final, rows[:, -multiple * length - 1 :]) for multiple in (1, 2, 4)}
    return Outcome(
        metrics={f"loss@{multiple}x": value for multiple, value in losses.items()}
        | {"growth": losses[4] - losses[1], "train_loss": went.last(20)},
        curves={"train/loss": went.losses, "loss by length": list(losses.values())},
        **costs(final, (rows[:1, :-1],), longest, longest),
    )


@torch.no_grad()
def _last_bytes(model: nn.Module, rows: Tensor) -> float:
    """Nats per byte of the last bytes of rows (B, T + 1)."""
    model.eval()
    total = 0.0
    for part in rows.split(16):
        logits = model(part[:, :-1])[:, -LAST:]  # (B, 32, V)
        total += F.cross_entropy(logits.flatten(0, 1), part[:, -LAST:].flatten(), reduction="sum").item()
    return total / (len(rows) * LAST)


def symbol_rows(task: str, rows: int, size: int, symbols: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """ids and labels (B, 2 n + 1) of `rows` rows of `size` different symbols n: the row, a bar, the answer.

    Symbols are 0 .. symbols - 1, the bar is `symbols`; labels are -100 before the answer.
    """
    given = torch.rand(rows, symbols, generator=draw).argsort(1)[:, :size]
    answer = given if task == "copy" else given.sort(1).values
    ids = torch.cat((given, torch.full((rows, 1), symbols), answer), dim=1)
    labels = ids.clone()
    labels[:, : size + 1] = IGNORED
    return ids, labels


def _symbols(job: Job) -> Outcome:
    settings, longest = job.settings, job.settings["longest"]
    symbols, task = settings["symbols"], job.task
    config = _config(job, 4 * longest + 1, symbols + 1)
    model = config.build()
    went = train(
        model,
        _symbol_batches(task, settings, torch.Generator().manual_seed(job.seed)),
        _symbol_loss,
        steps=settings["steps"],
        lr=rate_of(job),
        warmup=settings["steps"] // 20,
    )
    metrics = {"train_loss": went.last(20)}
    for multiple in (1, 2):
        draw = torch.Generator().manual_seed(TEST_SEED)
        ids, labels = symbol_rows(task, settings["rows"], multiple * longest, symbols, draw)
        right, asked = _hits(model, ids, labels)
        metrics[f"accuracy@{multiple}x"] = float(right.sum() / asked.sum())
        metrics[f"exact@{multiple}x"] = float((right == asked).double().mean())
    inputs = (torch.zeros(1, 4 * longest, dtype=torch.long),)
    return Outcome(
        metrics=metrics, curves={"train/loss": went.losses}, **costs(model, inputs, 4 * longest, 4 * longest)
    )


def _symbol_batches(task: str, settings: Mapping[str, Any], draw: torch.Generator) -> Iterator[Tensor]:
    """ids and labels, (2, B, T) together; the rows of a step have one length."""
    while True:
        size = int(torch.randint(1, settings["longest"] + 1, (), generator=draw))
        yield torch.stack(symbol_rows(task, settings["batch"], size, settings["symbols"], draw))


def _symbol_loss(model: nn.Module, batch: Tensor) -> Tensor:
    ids, labels = batch
    return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED)


@torch.no_grad()
def _hits(model: nn.Module, ids: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Answers that are right, and answers that are asked for, of each row: (B,) each."""
    told = model.eval()(ids[:, :-1]).argmax(-1)
    asked = labels[:, 1:] != IGNORED
    return ((told == labels[:, 1:]) & asked).sum(1), asked.sum(1)


SUITE = Position()
