"""Which key each query may attend to, told by indices instead of a T x S matrix.

The index of a token is the number of real tokens before it in its row, so padding anywhere never shifts a window
or a causal edge. A dense boolean mask is made only for the block of queries that asks for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

__all__ = ["Visibility", "seen_pairs"]


@dataclass(frozen=True, kw_only=True)
class Visibility:
    """Rule of a query i and a key j (indices as above); every part that is absent allows everything.

    causal:     j <= i
    window W:   causal i - j < W, else |i - j| < W; the first `sinks` tokens of the row stay visible
    chunk C:    floor(i / C) = floor(j / C)
    key_mask:   only real keys
    documents:  only keys of the query's own document
    """

    query_index: Tensor
    """(T,) or (B, T) int."""
    key_index: Tensor
    """(S,) or (B, S) int."""
    key_mask: Tensor | None = None
    """(B, S) bool, True = a real key."""
    query_documents: Tensor | None = None
    """(B, T) int."""
    key_documents: Tensor | None = None
    """(B, S) int."""
    causal: bool = False
    window: int | None = None
    sinks: int = 0
    chunk: int | None = None
    contiguous: bool = False
    """The keys are the queries themselves, unpadded and in order: T = S and both indices are 0..T-1."""
    everything: bool = False
    """Every key is visible to every query, whatever the rules above say (one new query over its whole past)."""

    @property
    def plain_causal(self) -> bool:
        """True where SDPA's own causal flag, which is anchored to the first key, says exactly this."""
        one_chunk = self.chunk is None or self.query_index.shape[-1] <= self.chunk
        return self.contiguous and self.causal and self.window is None and one_chunk and self.query_documents is None

    @property
    def reach(self) -> int | None:
        """Tokens of the window or the chunk, the smaller of both; None where nothing limits the distance."""
        return min((limit for limit in (self.window, self.chunk) if limit is not None), default=None)

    @property
    def banded(self) -> bool:
        """True where the visible keys of a block of queries are a slice (and the sinks)."""
        return self.contiguous and self.reach is not None and self.query_documents is None

    def band(self, rows: slice, keys: int) -> slice:
        """That slice, without the sinks, for a block of queries."""
        first, last = 0, keys
        if self.window is not None:
            first, last = max(0, rows.start - self.window + 1), min(keys, rows.stop + self.window - 1)
        if self.chunk is not None:
            first, last = max(first, rows.start // self.chunk * self.chunk), min(last, _up(rows.stop, self.chunk))
        return slice(first, rows.stop if self.causal else last)

    def mask(self, rows: slice = slice(None), columns: slice = slice(None)) -> Tensor | None:
        """(B or 1, 1, t, s) bool, True = may attend, for some queries and keys; None where all may.

        A mask that only hides keys comes as (B, 1, 1, s).
        """
        if self.everything:
            return None
        allowed: Tensor | None = None
        if self.causal or self.reach is not None:
            i = self.query_index[..., rows].unsqueeze(-1)  # (t, 1) or (B, t, 1)
            j = self.key_index[..., columns].unsqueeze(-2)  # (1, s) or (B, 1, s)
            if self.causal:
                allowed = j <= i
            if self.window is not None:
                near = (i - j if self.causal else (i - j).abs()) < self.window
                if self.sinks:
                    near = near | (j < self.sinks)
                allowed = near if allowed is None else allowed & near
            if self.chunk is not None:
                own = i // self.chunk == j // self.chunk
                allowed = own if allowed is None else allowed & own
        if self.query_documents is not None and self.key_documents is not None:
            same = self.query_documents[:, rows].unsqueeze(-1) == self.key_documents[:, columns].unsqueeze(-2)
            allowed = same if allowed is None else allowed & same
        if self.key_mask is not None:
            real = self.key_mask[:, None, columns]  # (B, 1, s)
            allowed = real if allowed is None else allowed & real
        if allowed is None:
            return None
        return allowed[None, None] if allowed.dim() == 2 else allowed[:, None]

    @staticmethod
    def row_index(length: int, token_mask: Tensor | None, seen: Tensor | int, device: torch.device) -> Tensor:
        """Index of `length` new tokens of rows that have `seen` (B,) real tokens already: (T,) or (B, T)."""
        if token_mask is not None:
            fresh = token_mask.cumsum(-1) - 1  # (B, T); a masked token repeats the index before it
            return fresh + seen[:, None] if isinstance(seen, Tensor) else fresh + seen
        fresh = torch.arange(length, device=device)  # (T,)
        return fresh + seen[:, None] if isinstance(seen, Tensor) else fresh + seen


@cache
def seen_pairs(
    length: int, *, causal: bool, window: int | None = None, sinks: int = 0, chunk: int | None = None
) -> int:
    """Pairs of a query and a key that it sees, in one unpadded row of `length` tokens, by the rules above."""
    i = torch.arange(length, device="cpu")
    first = i // chunk * chunk if chunk is not None else torch.zeros_like(i)
    after = (first + chunk).clamp(max=length) if chunk is not None else torch.full_like(i, length)
    after = i + 1 if causal else after
    if window is None:
        return int((after - first).sum())
    low, high = torch.maximum(first, i - window + 1), torch.minimum(after, i + window)
    before = (low.clamp(max=sinks) - first).clamp(min=0)  # sinks that the window has left behind
    beyond = (after.clamp(max=sinks) - high).clamp(min=0)  # and, on both sides, those it has not reached yet
    return int((high - low + before + beyond).sum())


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
