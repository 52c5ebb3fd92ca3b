"""From logits to the next token. Pure functions on logits (N, V), in the order of `processed`.

The order is that of transformers: repetition penalty, temperature, top-k, top-p, min-p. Each sees what the one before
it left; a token that is excluded has the logit -inf. At least one token always stays.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from zoo.generation.config import GenerationConfig

__all__ = ["Rule", "draw", "min_p", "penalised", "processed", "temperature", "top_k", "top_p"]

Rule = Callable[[Tensor, Tensor], Tensor]
"""New tokens (N, n) so far and logits (N, V) -> logits (N, V), -inf for a token that must not come."""


def penalised(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Logits of tokens seen (N, V) bool: divided by the penalty where positive, else multiplied."""
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def temperature(logits: Tensor, value: float) -> Tensor:
    """Logits divided by the temperature."""
    return logits / value


def top_k(logits: Tensor, k: int) -> Tensor:
    """The k largest logits of each row, and all that equal the last of them."""
    if k >= logits.shape[-1]:
        return logits
    least = logits.topk(k, dim=-1).values[:, -1:]  # (N, 1)
    return logits.masked_fill(logits < least, -math.inf)


def top_p(logits: Tensor, p: float) -> Tensor:
    """The fewest likeliest tokens of each row whose probabilities reach p. Of equal logits the higher ids stay."""
    if p >= 1.0:
        return logits
    ascending, order = logits.sort(dim=-1, stable=True)  # (N, V)
    excluded = ascending.softmax(-1).cumsum(-1) <= 1.0 - p
    excluded[:, -1] = False
    return logits.masked_fill(torch.zeros_like(excluded).scatter_(-1, order, excluded), -math.inf)


def min_p(logits: Tensor, share: float) -> Tensor:
    """Tokens with at least this share of the likeliest one's probability."""
    probabilities = logits.softmax(-1)  # (N, V)
    return logits.masked_fill(probabilities < share * probabilities.amax(-1, keepdim=True), -math.inf)


def processed(logits: Tensor, config: GenerationConfig, seen: Tensor | None) -> Tensor:
    """Logits (N, V) as the next token is chosen from; `seen` (N, V) bool for the repetition penalty."""
    if seen is not None:
        logits = penalised(logits, seen, config.repetition_penalty)
    if config.temperature is not None:
        logits = temperature(logits, config.temperature)
    if config.top_k is not None:
        logits = top_k(logits, config.top_k)
    if config.top_p is not None:
        logits = top_p(logits, config.top_p)
    if config.min_p is not None:
        logits = min_p(logits, config.min_p)
    return logits  # (N, V)


def draw(logits: Tensor, generator: torch.Generator | None) -> Tensor:
    """(N,) one token of each row, with the probabilities softmax(logits).

    The largest of p / e with exponential noise e has the distribution p; nothing is asked of the device.
    """
    probabilities = logits.softmax(-1)  # (N, V)
    noise = torch.empty_like(probabilities).exponential_(generator=generator)
    return (probabilities / noise).argmax(-1)
