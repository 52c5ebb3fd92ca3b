"""What a batch of rows becomes under each training objective, as pure functions over numpy arrays.

`draws` is a torch generator, or `Draws`, under which each row depends on its own number alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from recipes.data.text.draws import Draws
from recipes.data.text.padding import IGNORE
from recipes.data.text.sequences import Sequences
from recipes.data.text.tokenizers import Tokenizer
from zoo.registry import ConfigError

__all__ = [
    "causal_lm",
    "chosen_for_masking",
    "masked_lm",
    "noise_counts",
    "noise_spans",
    "prefix_lm",
    "span_corruption",
    "spans_lengths",
]

Rows = NDArray[np.int64]
Flags = NDArray[np.bool_]


def causal_lm(ids: Rows, real: Flags | None = None) -> tuple[Rows, Rows]:
    """(inputs, labels), both (B, T - 1): each label is the token after its input. -100 where that is padding."""
    labels = ids[:, 1:].copy()
    if real is not None:
        labels[~real[:, 1:]] = IGNORE
    return ids[:, :-1].copy(), labels


def chosen_for_masking(
    ids: Rows,
    eligible: Flags,
    probability: float,
    draws: torch.Generator | Draws,
    starts: Flags | None = None,
) -> Flags:
    """(B, T) positions to predict: each eligible one with `probability`; with `starts`, (B, T) where words begin, the
    words are chosen so and all eligible tokens of a chosen one are predicted."""
    chance = Draws.of(draws, len(ids)).uniform("chosen", ids.shape[1])  # (B, T)
    if starts is not None and ids.shape[1]:
        begins = starts | ~eligible  # a special token is a word of its own
        begins[:, 0] = True
        word = begins.cumsum(axis=1) - 1  # (B, T)
        chance = np.take_along_axis(chance, word, axis=1)
    return (chance < probability) & eligible


def masked_lm(
    ids: Rows,
    tokenizer: Tokenizer,
    probability: float,
    *,
    generator: torch.Generator | Draws,
    real: Flags | None = None,
    mask: float = 0.8,
    random: float = 0.1,
    whole_word: bool = False,
    starts: Flags | None = None,
) -> tuple[Rows, Rows]:
    """Devlin et al. 2018, arXiv:1810.04805: (inputs, labels), both (B, T).

    Of the tokens that are real and not special each is a target with `probability`. The input there is the mask token
    (share `mask`), a random token of text (share `random`), or the token itself; labels keep the token, and are -100
    elsewhere. whole_word: all tokens of a word are targets or none (`starts`, (B, T) where words begin; asked of the
    tokenizer where it is not given). Random tokens are never special. Raises ConfigError without a mask token.
    """
    if tokenizer.mask_id is None:
        raise ConfigError("masked language modelling needs a tokenizer with 'mask' among its special tokens")
    if mask < 0 or random < 0 or mask + random > 1 + 1e-9:
        raise ConfigError(
            f"the shares mask and random should be at least 0 and at most 1 together, got {mask}, {random}"
        )
    draws = Draws.of(generator, len(ids))
    eligible = ids >= tokenizer.first
    if real is not None:
        eligible &= real
    if whole_word and starts is None:
        starts = np.stack([tokenizer.starts_words(row) for row in ids]) if len(ids) else None
    target = chosen_for_masking(ids, eligible, probability, draws, starts if whole_word else None)
    labels = np.where(target, ids, IGNORE)
    inputs = ids.copy()
    row, column = target.nonzero()  # (M,) each
    width = ids.shape[1]
    fate = draws.uniform("fate", width)[row, column]
    inputs[row[fate < mask], column[fate < mask]] = tokenizer.mask_id
    swapped = (fate >= mask) & (fate < mask + random)
    if swapped.any():
        choice = draws.uniform("random", width)[row[swapped], column[swapped]]
        text = len(tokenizer.random_ids)
        inputs[row[swapped], column[swapped]] = tokenizer.text_first + (choice * text).astype(np.int64)
    return inputs, labels


def noise_counts(length: int, density: float, mean_span: float) -> tuple[int, int]:
    """(noise tokens, noise spans) of a row of `length` >= 2 tokens, as T5 counts them: at least one token of noise, one
    kept, and no more spans than either has tokens."""
    noise = min(max(round(length * density), 1), length - 1)
    spans = min(max(round(noise / mean_span), 1), noise, length - noise)
    return noise, spans


def spans_lengths(length: int, density: float, mean_span: float, *, eos: bool) -> tuple[int, int]:
    """(source length, target length) that `span_corruption` makes of rows of `length` tokens."""
    noise, spans = noise_counts(length, density, mean_span)
    return length - noise + spans + eos, noise + spans + eos


def noise_spans(
    lengths: Sequence[int] | NDArray[np.int64], density: float, mean_span: float, generator: torch.Generator | Draws
) -> Flags:
    """(B, T) bool, True = noise, for rows of `lengths` (B,), each at least 2. Each row starts with kept tokens and ends
    with noise; how these are divided into spans is uniform among all ways."""
    sizes, which = np.unique(np.asarray(lengths, dtype=np.int64), return_inverse=True)
    counts = np.array([noise_counts(size, density, mean_span) for size in sizes.tolist()], dtype=np.int64)
    counts = counts.reshape(-1, 2)[which.reshape(-1)]  # (B, 2)
    noise, spans = counts[:, 0], counts[:, 1]
    total = sizes[which.reshape(-1)]  # (B,)
    draws = Draws.of(generator, len(total))
    width, most = int(total.max(initial=0)), int(spans.max(initial=0))
    parts = np.zeros((len(total), 2 * most), dtype=np.int64)  # kept, noise, kept, noise ...; 0 behind the last
    parts[:, 0::2] = _divided(draws, "kept", total - noise, spans, most)
    parts[:, 1::2] = _divided(draws, "noise", noise, spans, most)
    edges = np.zeros((len(total), width + 1), dtype=np.int64)
    np.put_along_axis(edges, parts.cumsum(axis=1), 1, axis=1)
    inside = edges[:, :width].cumsum(axis=1) % 2 == 1
    return inside & (np.arange(width) < total[:, None])


def _divided(
    draws: Draws, purpose: str, total: NDArray[np.int64], parts: NDArray[np.int64], most: int
) -> NDArray[np.int64]:
    """(B, most) whole numbers of at least 1, `parts` in each row and 0 behind them, that add up to `total` (B,)."""
    places = int(total.max(initial=1)) - 1
    chance = draws.uniform(purpose, places)  # (B, places) ranks the places to cut
    chance[np.arange(places) >= total[:, None] - 1] = 2.0
    order = np.argsort(chance, axis=1)
    cuts = np.zeros((len(total), places + 1), dtype=np.int64)
    np.put_along_axis(cuts, order + 1, (np.arange(places) < parts[:, None] - 1).astype(np.int64), axis=1)
    part = cuts.cumsum(axis=1)  # (B, places + 1) which part each of the `total` is in
    row, column = (np.arange(places + 1) < total[:, None]).nonzero()
    return np.bincount(row * most + part[row, column], minlength=len(total) * most).reshape(len(total), most)


def span_corruption(
    ids: Rows, noise: Flags, sentinels: Sequence[int], *, real: Flags | None = None
) -> tuple[Sequences, Sequences]:
    """Raffel et al. 2019, arXiv:1910.10683: (sources, targets) of rows (B, T) under noise (B, T).

    In the source each span of noise is replaced by one sentinel: the first by sentinels[0], the next by sentinels[1],
    in this order in every row. The target is the same sentinels in the same order, each followed by its span; no
    further sentinel ends it, as in the released code. real: (B, T), False on padding. Raises ConfigError when there are
    more spans than sentinels.
    """
    noise = noise if real is None else noise & real
    begins = noise.copy()
    begins[:, 1:] &= ~noise[:, :-1]
    spans = begins.cumsum(axis=1)  # (B, T) the number, from 1, of the span that a noise token is in
    most = int(spans.max(initial=0))
    if most > len(sentinels):
        raise ConfigError(f"{most} spans need as many sentinels, got a tokenizer with sentinels={len(sentinels)}")
    marks = np.asarray([IGNORE, *sentinels], dtype=np.int64)[spans]  # (B, T)
    kept = ~noise | begins
    kept = kept if real is None else kept & real
    source = _rows(np.where(begins, marks, ids), kept)
    # The target takes both of a pair (sentinel, token) where a span starts, and the token alone inside it.
    doubled = np.stack([marks, ids], axis=2).reshape(len(ids), -1)  # (B, 2 T)
    return source, _rows(doubled, np.stack([begins, noise], axis=2).reshape(len(ids), -1))


def _rows(values: Rows, kept: Flags) -> Sequences:
    """The kept ones of each row."""
    offsets = np.concatenate([[0], kept.sum(axis=1).cumsum()]).astype(np.int64)
    return Sequences(values[kept].astype(np.int32), offsets)


def prefix_lm(ids: NDArray[Any], cut: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Raffel et al. 2019: a row (T,) cut in two before place `cut`, 1 .. T - 1: what the encoder reads, and what the
    decoder writes."""
    if not 0 < cut < len(ids):
        raise ValueError(f"cut should be from 1 to {len(ids) - 1}, got {cut}")
    return ids[:cut], ids[cut:]
