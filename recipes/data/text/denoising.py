"""Denoising as in BART (Lewis et al. 2019, arXiv:1910.13461): the decoder writes the row from a damaged copy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from recipes.data.text.draws import Draws
from recipes.data.text.sequences import Sequences
from recipes.data.text.spans import Made, RewrittenExamples
from recipes.data.text.tokenizers import Tokenizer
from zoo.registry import Config, ConfigError

__all__ = [
    "Denoising",
    "DenoisingExamples",
    "bart_denoise",
    "delete",
    "infill",
    "mask_tokens",
    "permute_sentences",
    "rotate",
]

Ids = NDArray[np.int64]


class Denoising(Config):
    """How a row is damaged, in this order; the defaults are BART's own: infilling of 30 percent, sentences permuted.

    permute: share of sentences that change places. infill: share of tokens in spans that become one mask token each;
    mean_span: their mean length, Poisson (spans of length 0 insert a mask). mask: share of tokens masked one by one.
    delete: share of tokens left out. rotate: chance that the row starts at another token.
    """

    permute: float = Field(default=1.0, ge=0, le=1)
    infill: float = Field(default=0.3, ge=0, lt=1)
    mean_span: float = Field(default=3.0, ge=0)
    mask: float = Field(default=0.0, ge=0, le=1)
    delete: float = Field(default=0.0, ge=0, lt=1)
    rotate: float = Field(default=0.0, ge=0, le=1)


def mask_tokens(ids: Ids, share: float, mask_id: int, draw: np.random.Generator) -> Ids:
    """`round(share * T)` random tokens become the mask token."""
    made = ids.copy()
    made[_some(len(ids), share, draw)] = mask_id
    return made


def delete(ids: Ids, share: float, draw: np.random.Generator) -> Ids:
    """`round(share * T)` random tokens are left out, but never all."""
    return np.delete(ids, _some(len(ids), share, draw)[: len(ids) - 1])


def infill(ids: Ids, share: float, mean_span: float, mask_id: int, draw: np.random.Generator) -> Ids:
    """Spans of Poisson lengths, `round(share * T)` tokens together, become one mask token each; none touch. A span of
    length 0 inserts a mask token, at most as many as there are other spans."""
    budget = round(share * len(ids))
    lengths: list[int] = []
    left = budget
    while left > 0:
        length = min(int(draw.poisson(mean_span)), left)
        # A mean near 0 would insert masks without end: of these, no more than there are tokens to take out.
        if length == 0 and lengths.count(0) >= budget:
            length = 1
        lengths.append(length)
        left -= length
    # Spans stand in a random order with the kept tokens between; each gap may hold one span at most.
    kept = len(ids) - budget
    gaps = kept + 1
    while len(lengths) > gaps:  # more spans than gaps: the shortest join
        lengths.sort()
        shortest = lengths.pop(0)
        lengths[0] += shortest
    draw.shuffle(lengths)
    chosen = np.sort(draw.permutation(gaps)[: len(lengths)])
    made: list[Ids] = []
    place = before = 0
    for gap, length in zip(chosen.tolist(), lengths, strict=True):
        made += [ids[place : place + gap - before], np.array([mask_id], dtype=ids.dtype)]
        place += gap - before + length
        before = gap
    return np.concatenate([*made, ids[place:]])


def permute_sentences(ids: Ids, ends: NDArray[np.bool_], share: float, draw: np.random.Generator) -> Ids:
    """Of the sentences, which stop behind each token of `ends` (T,), `share` change places among themselves."""
    cuts = (np.flatnonzero(ends) + 1).tolist()
    sentences = [part for part in np.split(ids, cuts) if len(part)]
    moving = np.sort(_some(len(sentences), share, draw))
    order = np.arange(len(sentences))
    order[moving] = draw.permutation(moving)
    return np.concatenate([sentences[place] for place in order]) if sentences else ids


def rotate(ids: Ids, draw: np.random.Generator) -> Ids:
    """The row from a random token on, then its start."""
    return np.roll(ids, -int(draw.integers(len(ids)))) if len(ids) else ids


def bart_denoise(ids: Ids, noise: Denoising, mask_id: int, ends: NDArray[np.bool_], draw: np.random.Generator) -> Ids:
    """The row (T,) damaged as `noise` says; `ends` (T,) marks the tokens that end a sentence."""
    made = permute_sentences(ids, ends, noise.permute, draw) if noise.permute else ids
    if noise.infill:
        made = infill(made, noise.infill, noise.mean_span, mask_id, draw)
    if noise.mask:
        made = mask_tokens(made, noise.mask, mask_id, draw)
    if noise.delete:
        made = delete(made, noise.delete, draw)
    if noise.rotate and draw.random() < noise.rotate:
        made = rotate(made, draw)
    return made


def _some(count: int, share: float, draw: np.random.Generator) -> NDArray[np.int64]:
    """`round(share * count)` different numbers below `count`."""
    return draw.permutation(count)[: round(share * count)]


class DenoisingExamples(RewrittenExamples):
    """The encoder reads a row as `bart_denoise` damages it, the decoder writes the row. Batches as PairExamples.

    Sentences end with a token whose text ends in a full stop, an exclamation or question mark, or a line break.
    Raises ConfigError when the tokenizer has no mask token.
    """

    def __init__(self, rows: Sequences, tokenizer: Tokenizer, noise: Denoising, *, start: int, eos: int | None) -> None:
        super().__init__(rows, tokenizer, start=start, eos=eos)
        if tokenizer.mask_id is None:
            raise ConfigError("denoising needs a tokenizer with 'mask' among its special tokens")
        self.noise = noise
        self._mask_id = tokenizer.mask_id
        names = (tokenizer.name(i).rstrip(" ") for i in range(tokenizer.first, tokenizer.vocab_size))
        self._ends = np.array([False] * tokenizer.first + [name[-1:] in ".!?\n" and bool(name) for name in names])

    def rewrite(self, rows: Ids, draws: Draws) -> Made:
        whole: list[Ids] = []
        damaged: list[Ids] = []
        for place, row in enumerate(rows.tolist()):
            ids = self.rows[row].astype(np.int64)
            draw = draws.generator(place, "denoising")
            damaged.append(bart_denoise(ids, self.noise, self._mask_id, self._ends[ids], draw))
            whole.append(ids)
        return Sequences.of(damaged), Sequences.of(whole)

    def count_targets(self, indices: Sequence[int], key: tuple[int, ...] | None) -> int:
        rows = np.asarray(indices, dtype=np.int64)
        return int(self.rows.lengths_of(rows).sum()) + len(rows) * (self.eos is not None)
