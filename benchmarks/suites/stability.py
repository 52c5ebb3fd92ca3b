"""Stability: which models can be trained at which learning rates, and why.

    python -m benchmarks.run suite=stability size=small

Tasks, each with one primary metric:

`norms`     A deep, narrow byte model of Corpus-S (language.py) with pre-, post- and sandwich norm, each with and
    without a warm-up of a fifth of the steps, trained anew at every rate of the grid. Primary: loss@highest, nats per
    byte at the highest rate, a training that breaks down counting ln 256. Known: post-norm without warm-up is the one
    that fails, and at low rates it is none the worse (Xiong et al.).

`logits`    A shallow model with plain attention, a norm on queries and keys, and a soft cap of its logits. Primary:
    sensitivity = mean over the rates of min(loss(rate), ln 256) - loss(best rate) (Wortsman et al.). Known: the norm
    on queries and keys lowers it.

`growth`    Nothing is trained: the variance of the residual stream after the last block over that after the first, at
    4, 16, 64 blocks. Primary: growth@deepest. Known: branches started at 1 / sqrt(branches) keep it about constant,
    others let it grow with depth (Radford et al. 2019, section 2.3). Post-norm keeps it at 1 by construction.

`gradient`  Nothing is trained: the gradient norm of the last feed-forward matrix at the start, at 4, 8, 16, 32 blocks.
    Primary: exponent, the slope of log(norm) against log(blocks). Known: -1/2 for pre-norm, 0 for post-norm
    (Xiong et al., theorem 1).

A row of `norms` and `logits` holds the whole curve of losses against rates: `loss@<rate>`, and `lr` and `loss` among
the curves. No rate is chosen, as the curve is what is asked for; where the best rate is at an end of the grid, the
sensitivity is a lower bound.

Papers: Xiong et al. 2020, arXiv:2002.04745; Ding et al. 2021, arXiv:2105.13290; Henry et al. 2020, arXiv:2010.04245;
Gemma Team 2024, arXiv:2408.00118; Wortsman et al. 2023, arXiv:2309.14322.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.statistics import sensitivity
from benchmarks.suites.api import Arm, Job, Outcome, Size, Task
from benchmarks.suites.costs import costs
from benchmarks.suites.language import CHANCE, corpus, next_byte_loss, train, windows
from benchmarks.suites.synthetic import named
from zoo.blocks.api import MixerConfig
from zoo.models.gpt import GPTConfig
from zoo.registry import decode, encode

__all__ = ["SUITE", "Stability"]

NORMS: dict[str, dict[str, Any]] = {
    f"{norm}, {'warm-up' if warmup else 'no warm-up'}": {"residual": norm, "warmup": warmup}
    for norm in ("pre", "post", "sandwich")
    for warmup in (0.2, 0.0)
}
"""warmup: share of the steps."""
LOGITS: dict[str, dict[str, Any]] = {
    "plain": {},
    "QK norm": {"qk_norm": "layernorm"},
    "soft cap": {"softcap": 30.0},
}
GROWTH: dict[str, dict[str, Any]] = {
    "pre, scaled": {"residual": "pre", "scale_branches": True},
    "pre, unscaled": {"residual": "pre", "scale_branches": False},
    "sandwich": {"residual": "sandwich", "scale_branches": False},
    "post": {"residual": "post", "scale_branches": False},
}
GRADIENT: dict[str, dict[str, Any]] = {
    norm: {"residual": norm, "scale_branches": False} for norm in ("pre", "sandwich", "post")
}

DEEP: dict[str, Any] = {"dim": 64, "heads": 2, "length": 64, "batch": 8}
SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "norms": {
        "smoke": {**DEEP, "dim": 32, "depth": 2, "length": 16, "steps": 5, "rates": [1e-3, 1e-2]},
        "small": {**DEEP, "depth": 8, "length": 32, "steps": 140, "rates": [3.16e-3, 1e-2]},
        "paper": {
            **DEEP,
            "dim": 512,
            "depth": 12,
            "heads": 8,
            "length": 512,
            "batch": 32,
            "steps": 10_000,
            "rates": [1e-4, 3.16e-4, 1e-3, 3.16e-3, 1e-2],
        },
    },
    "logits": {
        "smoke": {**DEEP, "dim": 32, "depth": 1, "length": 16, "steps": 5, "rates": [1e-2, 1e-1]},
        "small": {**DEEP, "depth": 2, "batch": 16, "steps": 120, "rates": [3.16e-3, 1e-2, 3.16e-2, 1e-1]},
        "paper": {
            **DEEP,
            "dim": 512,
            "depth": 8,
            "heads": 8,
            "length": 512,
            "batch": 256,
            "steps": 100_000,
            "rates": [3.16e-4, 1e-3, 3.16e-3, 1e-2, 3.16e-2, 1e-1, 3.16e-1],
        },
    },
    "growth": {
        "smoke": {**DEEP, "dim": 32, "length": 16, "depths": [2, 4]},
        "small": {**DEEP, "depths": [4, 16, 64]},
        "paper": {**DEEP, "dim": 512, "heads": 8, "depths": [4, 16, 64, 256]},
    },
    "gradient": {
        "smoke": {**DEEP, "dim": 32, "length": 16, "depths": [2, 4]},
        "small": {**DEEP, "depths": [4, 8, 16, 32]},
        "paper": {**DEEP, "dim": 512, "heads": 8, "depths": [4, 8, 16, 32, 64]},
    },
}
LAST = 20
"""Steps at the end whose mean loss counts."""


class Stability:
    name = "stability"
    title = "Stability against the learning rate and depth"
    paper = "Xiong et al. 2020, arXiv:2002.04745"
    version = 1
    seeds = 3

    def tasks(self, size: Size) -> Sequence[Task]:
        deepest = SETTINGS["growth"][size]["depths"][-1]
        return [
            Task(
                name="norms", primary="loss@highest", higher_is_better=False, trivial=CHANCE, title="Norm and warm-up"
            ),
            Task(name="logits", primary="sensitivity", higher_is_better=False, title="Attention's logits"),
            Task(
                name="growth",
                primary=f"growth@{deepest}",
                higher_is_better=False,
                title=f"Growth of the residual stream over {deepest} blocks",
            ),
            Task(name="gradient", primary="exponent", title="Gradient of the last feed-forward against depth"),
        ]

    def arms(self, task: str, mixers: Sequence[Any]) -> Sequence[Arm]:
        """Choices times mixers; those about attention's logits only for mixers that have them."""
        choices = {"norms": NORMS, "logits": LOGITS, "growth": GROWTH, "gradient": GRADIENT}[task]
        made: list[Arm] = []
        for mixer in mixers:
            config: MixerConfig = decode("mixer", mixer)
            of, _ = named(mixer)
            prefix = "" if of == "attention" else f"{of}, "
            for name, options in choices.items():
                if task != "logits" or set(options) <= type(config).model_fields.keys():
                    made.append(Arm(name=prefix + name, mixer=mixer, options=options))
        return made

    def rates(self, task: str, size: Size) -> Sequence[float]:
        """None is chosen: a job goes through all rates of its settings."""
        return []

    def settings(self, task: str, size: Size) -> Mapping[str, Any]:
        return SETTINGS[task][size]

    def run(self, job: Job) -> Outcome:
        """Raises ConfigError where the mixer cannot serve."""
        measure = {"norms": _curve, "logits": _curve, "growth": _growth, "gradient": _gradient}[job.task]
        return measure(job)


def _config(job: Job, depth: int) -> GPTConfig:
    settings, options = job.settings, dict(job.arm.options)
    options.pop("warmup", None)
    mixer: Any = job.arm.mixer
    if job.task == "logits":
        mixer = encode(decode("mixer", mixer)) | options
        options = {}
    value = {
        "family": "gpt",
        "vocab_size": 256,
        "max_len": settings["length"],
        "dim": settings["dim"],
        "depth": depth,
        "heads": settings["heads"],
        "position": "rope",
        "init_std": "fan_in",
        "scale_embeddings": True,
        "mixer": mixer,
    }
    return decode("model", value | options, "model")


def _curve(job: Job) -> Outcome:
    """The model trained anew, from the same weights on the same bytes, at every rate."""
    settings, steps = job.settings, job.settings["steps"]
    config, text = _config(job, settings["depth"]), corpus("train")
    metrics: dict[str, float] = {}
    losses: list[float] = []
    curves: dict[str, list[float]] = {}
    for rate in settings["rates"]:
        torch.manual_seed(job.seed)
        model, draw = config.build(), torch.Generator().manual_seed(job.seed)
        batches = (windows(text, settings["batch"], settings["length"], draw) for _ in count())
        warmup = round(steps * job.arm.options.get("warmup", 0.05))
        went = train(model, batches, next_byte_loss, steps=steps, lr=rate, warmup=warmup)
        losses.append(went.last(min(LAST, steps)))
        metrics[f"loss@{rate:g}"] = losses[-1]
        metrics[f"finite@{rate:g}"] = float(went.finite)
        curves[f"train/loss@{rate:g}"] = [loss for loss in went.losses if math.isfinite(loss)]
    metrics |= {
        "loss@highest": losses[-1],
        "best": min(losses),
        "sensitivity": sensitivity(dict(zip(settings["rates"], losses, strict=True)), CHANCE),
    }
    curves |= {"lr": list(settings["rates"]), "loss": losses}
    return Outcome(metrics=metrics, curves=curves, **_costs(config, settings["length"]))


def _growth(job: Job) -> Outcome:
    depths, found = job.settings["depths"], []
    for depth in depths:
        model, rows = _untrained(job, depth)
        with torch.no_grad():
            variances = _variances(model, rows[:, :-1])
        found.append(variances[-1] / variances[0])
    metrics = {f"growth@{depth}": value for depth, value in zip(depths, found, strict=True)}
    curves = {"blocks": [float(depth) for depth in depths], "growth": found}
    return Outcome(metrics=metrics, curves=curves, **_costs(_config(job, depths[-1]), job.settings["length"]))


def _gradient(job: Job) -> Outcome:
    depths, found = job.settings["depths"], []
    for depth in depths:
        model, rows = _untrained(job, depth)
        next_byte_loss(model, rows).backward()
        matrix = [m for m in model.stack.blocks[-1].ffn.modules() if isinstance(m, nn.Linear)][-1]
        assert matrix.weight.grad is not None
        found.append(matrix.weight.grad.norm().item())
    slope = statistics.linear_regression([math.log(n) for n in depths], [math.log(g) for g in found]).slope
    metrics = {f"gradient@{depth}": value for depth, value in zip(depths, found, strict=True)} | {"exponent": slope}
    curves = {"blocks": [float(depth) for depth in depths], "gradient": found}
    return Outcome(metrics=metrics, curves=curves, **_costs(_config(job, depths[-1]), job.settings["length"]))


def _untrained(job: Job, depth: int) -> tuple[Any, Tensor]:
    """A model as it starts, and rows of bytes for it."""
    torch.manual_seed(job.seed)
    draw = torch.Generator().manual_seed(job.seed)
    model = _config(job, depth).build()
    return model, windows(corpus("train"), job.settings["batch"], job.settings["length"], draw)


def _variances(model: Any, ids: Tensor) -> list[float]:
    """Variance of the residual stream after each block."""
    found: list[float] = []
    hooks = [block.register_forward_hook(lambda _, __, x: found.append(x.var().item())) for block in model.stack.blocks]
    model.eval()(ids)
    for hook in hooks:
        hook.remove()
    return found


def _costs(config: GPTConfig, length: int) -> dict[str, Any]:
    return costs(config.build(), (torch.zeros(1, length, dtype=torch.long),), length, length)


SUITE = Stability()
