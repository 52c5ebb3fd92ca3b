"""Baselines for masked tokens: the token that was most frequent in training between the same neighbours.

Neighbours that are masked themselves are seen as the mask token, which training rows never hold, so a context with one
is unknown and the next smaller one decides: 2 + 2 neighbours, left and right, left, right, nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from recipes.data.text.padding import IGNORE
from recipes.data.text.sequences import Sequences
from recipes.recipe import Batch

__all__ = ["hidden_only", "neighbour_accuracies"]

Ids = NDArray[np.int64]
CHAINS: dict[str, tuple[tuple[int, ...], ...]] = {
    "most frequent token": ((),),
    "left neighbour": ((), (-1,)),
    "left + right neighbour": ((), (1,), (-1,), (-1, 1)),
    "2 + 2 neighbours": ((), (1,), (-1,), (-1, 1), (-2, -1, 1, 2)),
}
"""Offsets of the neighbours that are looked at; a later context, where it is known, overrides those before it."""


def neighbour_accuracies(train: Sequences, first_text: int, batches: Iterable[Batch]) -> dict[str, float]:
    """Share of the masked places that each context tells right.

    train: rows of ids with their special tokens; ids below `first_text` are special and never told. batches: ids
    (B, T), masked; labels (B, T).
    """
    flat = train.flat.astype(np.int64)
    owner = np.repeat(np.arange(len(train)), train.lengths)
    outside = int(flat.max(initial=0)) + 1  # beyond the ends of a row
    seen: dict[int, Ids] = {}
    for offset in (-2, -1, 1, 2):
        seen[offset] = np.full(len(flat), outside)
        inside = slice(max(0, -offset), len(flat) - max(0, offset))
        other = slice(max(0, offset), len(flat) - max(0, -offset))
        seen[offset][inside] = np.where(owner[inside] == owner[other], flat[other], outside)
    text = flat >= first_text
    known = {offset: ids[text] for offset, ids in seen.items()}
    asked, truth = _asked(batches, outside)
    return _accuracies(known, flat[text], asked, truth)


def hidden_only(batches: Iterable[Batch], mask_id: int | None) -> Iterator[Batch]:
    """The batches with only those places to be told that are shown as the mask token."""
    for batch in batches:
        yield {**batch, "labels": batch["labels"].masked_fill(batch["ids"] != mask_id, IGNORE)}


def _asked(batches: Iterable[Batch], outside: int) -> tuple[dict[int, Ids], Ids]:
    """Neighbours of every masked place by offset, and the right tokens."""
    found: dict[int, list[Ids]] = {-2: [], -1: [], 1: [], 2: []}
    truth: list[Ids] = []
    for batch in batches:
        ids, labels = batch["ids"].numpy(), batch["labels"].numpy()
        if "token_mask" in batch:
            ids = np.where(batch["token_mask"].numpy(), ids, outside)
        wide = np.pad(ids, ((0, 0), (2, 2)), constant_values=outside)
        row, column = (labels != IGNORE).nonzero()
        truth.append(labels[row, column])
        for offset, parts in found.items():
            parts.append(wide[row, column + 2 + offset])
    joined = {offset: np.concatenate(parts) for offset, parts in found.items()}
    return joined, np.concatenate(truth)


def _accuracies(known: dict[int, Ids], targets: Ids, asked: dict[int, Ids], truth: Ids) -> dict[str, float]:
    says: dict[tuple[int, ...], Ids] = {}
    for offsets in dict.fromkeys(offsets for chain in CHAINS.values() for offsets in chain):
        contexts = _numbered([np.concatenate([known[offset], asked[offset]]) for offset in offsets])
        if contexts is None:
            contexts = np.zeros(len(targets) + len(truth), dtype=np.int64)
        best = _most_frequent(contexts[: len(targets)], targets, int(contexts.max(initial=0)) + 1)
        says[offsets] = best[contexts[len(targets) :]]  # (M,), -1 where the context is unknown
    found: dict[str, float] = {}
    for name, chain in CHAINS.items():
        told = np.full(len(truth), -1, dtype=np.int64)
        for offsets in chain:
            told = np.where(says[offsets] >= 0, says[offsets], told)
        found[name] = float((told == truth).mean()) if len(truth) else float("nan")
    return found


def _numbered(columns: list[Ids]) -> Ids | None:
    """One number for each distinct row of the columns."""
    if not columns:
        return None
    number = columns[0]
    for column in columns[1:]:
        number = np.unique(number * (int(column.max(initial=0)) + 1) + column, return_inverse=True)[1].reshape(-1)
    return number


def _most_frequent(contexts: Ids, targets: Ids, size: int) -> Ids:
    """(size,) for each context its most frequent target, the smaller id of two equal ones; -1 for an unseen context."""
    width = int(targets.max(initial=0)) + 1
    pairs, counts = np.unique(contexts * width + targets, return_counts=True)
    order = np.lexsort((pairs, -counts))[::-1]  # the best of a context is written last
    best = np.full(size, -1, dtype=np.int64)
    best[pairs[order] // width] = pairs[order] % width
    return best
