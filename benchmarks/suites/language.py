"""Corpus-S, and a small language model of its bytes: what the suites on positions and on stability train.

Corpus-S is the source of the Python standard library (`recipes.data.text.stdlib_code`), one byte a token: on every
machine, without a network. It differs between versions of Python, so figures on it are compared within one version.

Training is AdamW with betas (0.9, 0.95) and a decay of 0.1 (training.py), a linear warm-up and then a cosine to a tenth
of the rate, and a gradient norm of at most 1. The windows of a step depend on the seed and the step alone, so arms of
one seed see the same bytes in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.suites.training import adamw
from recipes.data.text.stdlib_code import StdlibCode

__all__ = ["CHANCE", "Sums", "corpus", "next_byte_loss", "train", "windows"]

CHANCE = math.log(256)
"""Nats per byte of a model that knows nothing; a training that leaves the finite numbers counts as this."""


@cache
def corpus(split: str) -> Tensor:
    """Bytes of a split's files, one after the other: (N,) uint8. Splits: train, val, test."""
    text = "".join(getattr(StdlibCode().load(), split))
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)


def windows(text: Tensor, batch: int, length: int, draw: torch.Generator) -> Tensor:
    """Rows of length + 1 bytes that start anywhere: (B, T + 1) int64."""
    starts = torch.randint(len(text) - length, (batch, 1), generator=draw)
    return text[starts + torch.arange(length + 1)].long()


def next_byte_loss(model: nn.Module, rows: Tensor) -> Tensor:
    """Mean nats of each byte after the first of rows (B, T + 1)."""
    return F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())


@dataclass(frozen=True)
class Sums:
    """How a training went: the loss of every step, and whether it stayed finite to the end."""

    losses: list[float]
    finite: bool

    def last(self, steps: int) -> float:
        """Mean loss of the last steps; `CHANCE` where the training broke down or ends above it."""
        tail = self.losses[-steps:]
        return min(sum(tail) / len(tail), CHANCE) if self.finite and tail else CHANCE


def train(
    model: nn.Module,
    batches: Iterator[Tensor],
    loss: Callable[[nn.Module, Tensor], Tensor],
    *,
    steps: int,
    lr: float,
    warmup: int,
) -> Sums:
    """Train in place for `steps`, or until the loss is no finite number. warmup: steps to the full rate, 0 for none."""
    optimizer = adamw(model, lr)
    losses: list[float] = []
    model.train()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = lr * _factor(step, steps, warmup)
        value = loss(model, next(batches))
        losses.append(value.item())
        if not math.isfinite(losses[-1]):
            return Sums(losses, False)
        optimizer.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return Sums(losses, True)


def _factor(step: int, steps: int, warmup: int) -> float:
    """Of the peak rate in a step, the first being 0."""
    if step < warmup:
        return (step + 1) / warmup
    done = (step - warmup) / max(steps - warmup, 1)
    return 0.1 + 0.45 * (1 + math.cos(math.pi * done))
