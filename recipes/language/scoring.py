"""Negative log likelihood of a text by a causal model: in all, and by a token's place in the context."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recipes.recipe import Batch, fed, wide
from zoo.blocks.api import Context

__all__ = ["Score", "score", "token_losses"]

ENTRIES = 1 << 24
"""Most logits at once."""


@dataclass(frozen=True)
class Score:
    """Sums over scored tokens by place in the context: nats (T,), tokens (T,), characters (T,), all float64."""

    nats: Tensor
    tokens: Tensor
    characters: Tensor

    @property
    def loss(self) -> float:
        """Nats per token."""
        return float(self.nats.sum() / self.tokens.sum().clamp(min=1))

    @property
    def bits_per_character(self) -> float:
        """Bits of all scored tokens, end-of-text tokens included, over the characters of the text."""
        return float(self.nats.sum() / math.log(2) / self.characters.sum().clamp(min=1))

    def by_place(self) -> dict[str, float]:
        """Bits per character of the places 1, 2, 3-4, 5-8 ... (the n-th token predicted in a window)."""
        found: dict[str, float] = {}
        start, size = 0, 1
        while start < len(self.nats):
            stop = min(start + size, len(self.nats))
            characters = self.characters[start:stop].sum()
            if characters > 0:
                name = f"{start + 1}-{stop}" if stop > start + 1 else str(stop)
                found[name] = float(self.nats[start:stop].sum() / math.log(2) / characters)
            start, size = stop, max(size, stop)
        return found


@torch.no_grad()
def score(model: nn.Module, batches: Iterable[Batch], characters: Tensor) -> Score:
    """Score batches {"ids" (B, T), "labels" (B, T) with -100 where not scored}. characters: (V,) of each token."""
    nats, tokens, letters = (torch.zeros(0, dtype=torch.float64) for _ in range(3))
    for batch in batches:
        labels = batch["labels"]
        losses = token_losses(model, batch).double().cpu()  # (B, T)
        real = labels != -100
        sums = (losses.sum(0), real.double().sum(0), (characters[labels.clamp(min=0)] * real).double().sum(0))
        longer = labels.shape[1] - len(nats)
        if longer > 0:
            nats, tokens, letters = (F.pad(total, (0, longer)) for total in (nats, tokens, letters))
        for total, part in zip((nats, tokens, letters), sums, strict=True):
            total[: len(part)] += part
    return Score(nats, tokens, letters)


def token_losses(model: Any, batch: Batch) -> Tensor:
    """Nats of each label (B, T), 0 where there is none; never more than `ENTRIES` logits at once."""
    ids, labels = fed(model, batch["ids"]), fed(model, batch["labels"])
    # Padding stands on the right, where no real token sees it: a causal model needs no mask, and is quicker without.
    x = model.features(ids, Context()).flatten(0, 1)  # (B T, D)
    losses = []
    size = max(1, ENTRIES // model.head.table.shape[0])
    for part, wanted in zip(x.split(size), labels.flatten().split(size), strict=True):
        losses.append(F.cross_entropy(wide(model.head(part)), wanted, reduction="none"))  # ignores -100
    return torch.cat(losses).view(labels.shape)
