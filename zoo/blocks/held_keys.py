"""What attention of every kind does around its scores: it hands keys to a state, and says which of them may be seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from zoo.blocks.api import Context
from zoo.blocks.positions.indices import document_index
from zoo.blocks.state import Keys
from zoo.ops.visibility import Visibility

__all__ = ["held_keys", "visibility"]


def held_keys(
    k: Tensor,
    v: Tensor,
    context: Context,
    state: Any,
    *,
    index: Callable[[], Tensor],
    positions: Tensor | None,
    where: str,
) -> Keys:
    """New keys k (B, G, T, K) and values v (B, G, T, V), behind those that the state holds, which keeps them too.

    index: makes the new tokens' indices, (T,) or (B, T), for a call without a state. positions: (T,) or (B, T), kept
    with the keys for a bias; None where there is none. Raises ValueError where the state holds another number of rows,
    or packed documents of which the context tells none.
    """
    tags = {"documents": context.documents, "positions": positions}
    tags = {name: tag for name, tag in tags.items() if tag is not None}
    mask = context.token_mask
    if state is None:
        own = index()
        return Keys(k, v, own, mask, own, everything=False, tags=tags, contiguous=mask is None)
    if state.batch != k.shape[0]:
        raise ValueError(f"{where}: the state holds {state.batch} rows, and x has {k.shape[0]}")
    if context.documents is None and "documents" in state.tags:
        raise ValueError(f"{where}: the state holds packed documents; give context.documents (B, T) again")
    return state.update(k, v, mask, **{name: tag.expand(k.shape[0], -1) for name, tag in tags.items()})


def visibility(
    held: Keys,
    context: Context,
    *,
    causal: bool,
    window: int | None = None,
    sinks: int = 0,
    chunk: int | None = None,
) -> Visibility:
    """Which of the held keys each new token may see."""
    if held.everything and context.documents is None and chunk is None:
        return Visibility(query_index=held.query_index, key_index=held.index, everything=True)
    queries, keys = _runs(held, context)
    return Visibility(
        query_index=held.query_index,
        key_index=held.index,
        key_mask=held.mask,
        query_documents=queries,
        key_documents=keys,
        causal=causal and not held.past,
        window=None if held.past else window,
        sinks=sinks,
        chunk=chunk,
        contiguous=held.contiguous,
    )


def _runs(held: Keys, context: Context) -> tuple[Tensor | None, Tensor | None]:
    """Numbers of the documents of the new tokens (B, T) and of the held keys (B, S), where an id that comes back after
    another one is another document; its keys would have small indices of their own, as if they lay in the past."""
    documents, ids = context.documents, held.tags.get("documents")
    if documents is None or ids is None:
        return documents, ids
    if ids is documents:  # no state
        runs = context.once(("runs", documents, held.mask), lambda: document_index(documents, held.mask))
        return runs, runs
    index = held.index.expand_as(ids)  # (B, S)
    real = torch.ones_like(ids, dtype=torch.bool) if held.mask is None else held.mask.expand_as(ids)
    order = index.argsort(dim=-1, stable=True)  # a window's slots are not in the order of the row
    sorted_runs = document_index(ids.gather(1, order), real.gather(1, order))
    runs = torch.empty_like(sorted_runs).scatter_(1, order, sorted_runs)
    query = held.query_index.expand(ids.shape[0], -1)  # (B, T)
    own = (query[:, :, None] == index[:, None]) & real[:, None]  # (B, T, S): the key of the query's own token
    return runs.gather(1, own.int().argmax(-1)), runs
