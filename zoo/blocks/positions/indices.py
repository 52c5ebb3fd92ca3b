"""Which position each token has: given, or counted from the real tokens before it.

Padding never counts, so a left-padded row gets the positions it has alone; packed documents start at 0 each.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.blocks.api import Context

__all__ = ["document_index", "naive_token_positions", "token_positions"]


def token_positions(
    length: int,
    context: Context,
    *,
    offset: Tensor | int | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """Positions (T,) or (B, T), int64, of the `length` tokens of this call.

    `context.positions` where it is set, as it is. Else the number of real tokens before each token, plus `offset`
    (B,) or int: the real tokens that a state holds already. A masked token has the position of the last real token
    before it (0 where there is none), which lies in every table that holds the real ones. With `context.documents`
    the count restarts at the first real token of each document; the first document of the row is taken to continue
    what the state holds, so a state of several documents needs `context.positions`.

    `device` matters only where the context holds no tensor. Layers of one pass share the result, unless `offset` is
    a tensor: states change in place.
    """
    if context.positions is not None:
        return context.positions
    if isinstance(offset, Tensor) or not isinstance(length, int):  # a symbolic length (torch.export) has no hash
        return _count(length, context.token_mask, context.documents, offset, device)
    # Tensors in the key stand for themselves (hash by identity) and stay alive with it, so no key can go stale.
    key = ("token_positions", length, context.token_mask, context.documents, offset, str(device))
    return context.once(key, lambda: _count(length, context.token_mask, context.documents, offset, device))


def document_index(documents: Tensor, token_mask: Tensor | None = None) -> Tensor:
    """(B, T) int: 0 for the first document of the row, 1 for the second ... from ids (B, T).

    A document is a run of real tokens with one id. Masked tokens never start one, whatever their id.
    """
    if documents.numel() == 0:  # no row or no token
        return documents.long()
    tokens = torch.arange(documents.shape[-1], device=documents.device).expand_as(documents)  # (B, T)
    last = tokens if token_mask is None else torch.where(token_mask, tokens, -1).cummax(-1).values
    before = F.pad(last[:, :-1], (1, 0), value=-1)  # (B, T) index of the last real token before t, -1 where none
    starts = (before >= 0) & (documents != documents.gather(-1, before.clamp(min=0)))
    if token_mask is not None:
        starts = starts & token_mask
    return starts.cumsum(-1)


def _count(
    length: int,
    mask: Tensor | None,
    documents: Tensor | None,
    offset: Tensor | int | None,
    device: torch.device | str | None,
) -> Tensor:
    past = offset[:, None] if isinstance(offset, Tensor) else offset or 0  # (B, 1)
    if mask is None and documents is None:
        place = offset.device if isinstance(offset, Tensor) and device is None else device
        return torch.arange(length, device=place) + past  # (T,) or (B, T)
    if mask is None:
        assert documents is not None
        mask = torch.ones_like(documents, dtype=torch.bool)
    count = mask.cumsum(-1) - 1  # (B, T)
    if documents is None:
        return count.clamp(min=0) + past
    index = document_index(documents, mask)
    starts = F.pad(index.diff(dim=-1), (1, 0)) > 0
    before = torch.where(starts, count, 0).cummax(-1).values  # (B, T) real tokens of earlier documents
    return (count - before).clamp(min=0) + torch.where(index == 0, past, 0)


def naive_token_positions(context: Context, batch: int, length: int, offset: list[int] | None = None) -> Tensor:
    """`token_positions` as a loop over rows and tokens; (B, T)."""
    positions = torch.zeros(batch, length, dtype=torch.long)
    for b in range(batch):
        seen, first, document = 0, True, None
        for t in range(length):
            real = context.token_mask is None or bool(context.token_mask[b, t])
            if real and context.documents is not None:
                if document is not None and int(context.documents[b, t]) != document:
                    seen, first = 0, False
                document = int(context.documents[b, t])
            seen += real
            positions[b, t] = max(seen - 1, 0) + (offset[b] if offset is not None and first else 0)
    return positions
