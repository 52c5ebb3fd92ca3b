"""What the synthetic suites share: a small causal model, its training on fresh rows, and its scores.

A task is a function that draws rows: ids (B, T) and labels (B, T), which say the right answer at the position that has
to give it and are -100 elsewhere. Every step draws new rows from a generator of the job's seed, so all arms of a seed
see the same rows in the same order; the rows to test are the same for all arms and seeds.

The model is the zoo's `gpt` with the arm's mixer: `depth` layers of width `dim`, with or without feed-forwards, tied
head, initial weights 1 / sqrt(inputs). `conv` puts one more causal depthwise convolution of that width before every
mixer, the same for every arm (Arora et al. 2023). Training is AdamW with betas (0.9, 0.95) and a decay of 0.1 on
matrices and a gradient norm of at most 1. The rate rises in the first 5 percent of the steps, stays, and falls to a
tenth in the last 20; a plateau that ends late, as recall's does, ends at the full rate. Training stops early at the
accuracy `stop`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.suites.api import Job, Outcome
from benchmarks.suites.costs import costs
from benchmarks.suites.matching import params_of
from benchmarks.suites.training import adamw, rate_of
from zoo.blocks.api import Capability, Context, MixerConfig, Slot, Sublayer, check
from zoo.blocks.fixed_state import FixedState
from zoo.blocks.recurrent_mixer import Tokens
from zoo.blocks.short_conv import ShortConv
from zoo.inspection.match import solve
from zoo.models.gpt import GPTConfig
from zoo.registry import decode, part

__all__ = [
    "IGNORED",
    "PRESETS",
    "ConvFirst",
    "Draw",
    "Score",
    "Training",
    "model_of",
    "named",
    "outcome",
    "scored",
    "train",
]

IGNORED = -100

Draw = Callable[[int, torch.Generator], tuple[Tensor, Tensor]]
"""(rows, generator) to ids and labels, (B, T) each."""


PRESETS: dict[str, Any] = {
    "taylor": {"name": "linear_attention", "feature_map": "taylor"},
    # decay rates up to 16, its default, forget within some ten tokens
    "gated_delta": {"name": "gated_delta", "expand_v": 1.0, "decay_rates": (0.0, 0.1)},
    "mamba2": {"name": "mamba2", "state_size": 32, "head_dim": 16},
    "mamba_fixed": {"name": "mamba", "selective": False},
    "delta_negative": {"name": "delta", "negative_eigenvalues": True},
    "gated_delta_negative": {
        "name": "gated_delta",
        "expand_v": 1.0,
        "decay_rates": (0.0, 0.1),
        "negative_eigenvalues": True,
    },
}
"""Mixers by the name of the arm, where these suites have choices of their own; any registered mixer is an arm too."""


def named(mixer: Any) -> tuple[str, Any]:
    """The arm's name and value of a mixer: the choices above for a bare name that they know."""
    if isinstance(mixer, str):
        return mixer, PRESETS.get(mixer, {"name": mixer})
    return ", ".join([mixer["name"], *(f"{key} {value}" for key, value in mixer.items() if key != "name")]), mixer


class ConvFirst(MixerConfig):
    """A mixer behind a causal depthwise convolution without activation. Not registered: a setting of these suites."""

    mixer: Annotated[MixerConfig, part("mixer")]
    width: int = 3

    @property
    def capabilities(self) -> Capability:  # type: ignore[override]
        return self.mixer.capabilities & ~Capability.CROSS

    def at(self, layer: int, depth: int) -> ConvFirst:  # type: ignore[override]
        return self.model_copy(update={"mixer": self.mixer.at(layer, depth)})

    def build(self, slot: Slot) -> Sublayer:
        check(self.mixer, slot)
        return _ConvFirst(self, slot)


class _ConvFirst(Sublayer):
    """(B, T, D) -> (B, T, D)."""

    def __init__(self, config: ConvFirst, slot: Slot) -> None:
        super().__init__()
        self.where = slot.where
        self.conv = ShortConv(slot.dim, config.width, bias=True, activation=False)
        self.mixer = config.mixer.build(slot)

    def forward(self, x: Tensor, context: Context, state: Any = None) -> Tensor:
        tail, inner = (None, None) if state is None else (state.tail, state.inner)
        return self.mixer(self.conv(x, Tokens(), tail), context, inner)  # (B, T, D)

    def init_state(
        self, batch: int, max_len: int, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> _ConvFirstState | None:
        inner = self.mixer.init_state(batch, max_len, device=device, dtype=dtype)
        if inner is None:  # a mixer that goes through whole rows alone
            return None
        weight = self.conv.weight
        tail = self.conv.empty(batch, torch.device(device or weight.device), dtype or weight.dtype)
        return _ConvFirstState(FixedState(tail=tail), inner)

    def core_flops(self, batch: int, length: int, memory_length: int = 0) -> int:
        taps = self.conv.weight.numel()
        return self.mixer.core_flops(batch, length, memory_length) + 2 * batch * length * taps


@dataclass
class _ConvFirstState:
    """The convolution's tail and the mixer's own state."""

    tail: FixedState
    inner: Any

    @property
    def length(self) -> Tensor:
        return self.inner.length

    def nbytes(self) -> int:
        return self.tail.nbytes() + self.inner.nbytes()

    def reorder(self, rows: Tensor) -> None:
        self.tail.reorder(rows)
        self.inner.reorder(rows)

    def clone(self) -> _ConvFirstState:
        return _ConvFirstState(self.tail.clone(), self.inner.clone())


def model_of(
    job: Job, vocabulary: int, longest: int, *, reference: Any = None, **changes: Any
) -> tuple[GPTConfig, dict[str, Any]]:
    """The arm's model in the job's settings, and what is matched in it, as `Outcome.matched` has it.

    settings: dim, depth, heads, position, ffn (hidden width; 0: none), conv (width; 0: none). `changes` go over them,
    and the arm's options over both. With feed-forwards, their hidden width makes the parameters those of the mixer
    `reference` at the settings' own width, within 1 percent. Raises ConfigError where that cannot be.
    """
    settings = {**job.settings, **changes, **job.arm.options}
    own = _config(job.arm.mixer, settings, vocabulary, longest)
    if not settings["ffn"] or reference is None:
        told = "width and depth are the same; parameters and FLOPs are what the mixer has"
        return own, {"same": ["dim", "depth"], "not matched": ["params", "flops", "state bytes"], "told": told}
    target = params_of(_config(reference, settings, vocabulary, longest))

    def with_hidden(hidden: int) -> GPTConfig:
        return _config(job.arm.mixer, {**settings, "ffn": hidden}, vocabulary, longest)

    found = solve(
        lambda hidden: params_of(with_hidden(hidden)),
        target,
        low=1,
        high=16 * settings["dim"],
        what="parameters",
        knob="the feed-forward's hidden width",
    )
    matched = {
        "params": {"to": reference, "reference": target, "arm": int(found.reached), "changed": {"ffn": found.value}},
        "not matched": ["flops", "state bytes"],
    }
    return with_hidden(found.value), matched


def _config(mixer: Any, settings: Mapping[str, Any], vocabulary: int, longest: int) -> GPTConfig:
    inner = decode("mixer", mixer, "mixer")
    conv = settings.get("conv", 0)
    ffn: dict[str, Any] = {"layout": "mixer_only"}
    if settings["ffn"]:
        ffn = {"ffn": {"name": "mlp", "hidden": settings["ffn"]}}
    return GPTConfig(
        vocab_size=vocabulary,
        max_len=longest,
        dim=settings["dim"],
        depth=settings["depth"],
        heads=settings["heads"],
        mixer=ConvFirst(mixer=inner, width=conv) if conv else inner,
        position=settings["position"],
        init_std="fan_in",
        **ffn,
    )


@dataclass(frozen=True)
class Score:
    """Answers on the rows to test."""

    accuracy: float
    """Share of all answers that are right (micro)."""
    macro: float
    """Mean over the symbols of the share of their answers that are right."""
    rows: float
    """Share of the rows without a wrong answer."""


@torch.no_grad()
def scored(model: nn.Module, ids: Tensor, labels: Tensor, *, batch: int = 128, stepwise: int | None = None) -> Score:
    """Score ids and labels (B, T). stepwise: tokens that are given at a time, carrying the state; None: all at once."""
    model.eval()
    told = torch.cat([_answers(model, part, stepwise) for part in ids.split(batch)])  # (B, T)
    asked = labels != IGNORED
    right = (told == labels) & asked
    symbols = labels[asked]
    each = torch.bincount(symbols).float()
    hits = torch.bincount(symbols, weights=right[asked].float(), minlength=len(each))
    return Score(
        accuracy=(right.sum() / asked.sum()).item(),
        macro=(hits[each > 0] / each[each > 0]).mean().item(),
        rows=((right | ~asked).all(1)).float().mean().item(),
    )


def _answers(model: Any, ids: Tensor, stepwise: int | None) -> Tensor:
    if stepwise is None:
        return model(ids).argmax(-1)
    state = model.init_state(ids.shape[0], ids.shape[1])
    return torch.cat([model(part, state=state).argmax(-1) for part in ids.split(stepwise, dim=1)], dim=1)


@dataclass(frozen=True)
class Training:
    """How a training went."""

    steps: int
    losses: list[float]
    """Mean of the loss between two tests."""
    accuracies: list[float]
    """Of each test."""


def train(model: nn.Module, draw: Draw, test: tuple[Tensor, Tensor], job: Job) -> Training:
    """Train in place. settings: steps, batch, test_every, stop (an accuracy), device."""
    settings, lr = job.settings, rate_of(job)
    device = torch.device(settings.get("environment", {}).get("device", "cpu"))
    model.to(device)
    test = (test[0].to(device), test[1].to(device))
    generator = torch.Generator().manual_seed(job.seed)
    optimizer = adamw(model, lr)
    steps, every = settings["steps"], settings["test_every"]
    losses: list[float] = []
    accuracies: list[float] = []
    total = 0.0
    for step in range(1, steps + 1):
        model.train()
        for group in optimizer.param_groups:
            group["lr"] = lr * _factor(step, steps)
        ids, labels = draw(settings["batch"], generator)
        logits = model(ids.to(device))
        loss = F.cross_entropy(logits.flatten(0, 1), labels.to(device).flatten(), ignore_index=IGNORED)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        total += loss.item()
        if not math.isfinite(total):
            return Training(step, [*losses, math.nan], [*accuracies, math.nan])
        if step % every == 0 or step == steps:
            losses.append(total / (step - (len(losses)) * every))
            total = 0.0
            accuracies.append(scored(model, *test).accuracy)
            if accuracies[-1] >= settings["stop"]:
                break
    return Training(step, losses, accuracies)


def _factor(step: int, steps: int) -> float:
    """Of the peak rate in a step, the first being 1: up in 5 percent of the steps, level, down to a tenth in 20."""
    warmup, falling = max(steps // 20, 1), max(steps // 5, 1)
    if step <= warmup:
        return step / warmup
    return 1.0 - 0.9 * max(step - (steps - falling), 0) / falling


def outcome(
    model: nn.Module,
    went: Training,
    matched: Mapping[str, Any],
    metrics: Mapping[str, float],
    *,
    length: int,
    curves: Mapping[str, Sequence[float]] | None = None,
) -> Outcome:
    """What the suites report of a trained model; length: tokens of the task's longest row."""
    model.to("cpu")
    inputs = (torch.zeros(1, length, dtype=torch.long),)
    return Outcome(
        metrics={**metrics, "steps": float(went.steps)},
        matched=matched,
        curves={"train/loss": went.losses, "accuracy by test": went.accuracies, **(curves or {})},
        **costs(model, inputs, length, length),
    )
