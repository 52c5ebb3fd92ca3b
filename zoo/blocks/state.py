"""What attention keeps between calls: all keys and values, a window of them, or those of a second sequence.

Three states, one protocol (`State` in api.py). Each row counts its own real tokens, so one batch holds rows of any
length with padding anywhere: a masked token is never stored. `update` takes new keys and values, stores them, and
returns the `Keys` that the new queries may attend to.

Layout: keys (B, G, capacity, K) and values (B, G, capacity, V) in one allocation each; the G grouped heads are
stored once. Where gradients are recorded, writes copy instead of going in place: generate under torch.no_grad.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from zoo.ops.visibility import Visibility

__all__ = ["CrossState", "KVState", "Keys", "StackState", "WindowState"]


@dataclass
class Keys:
    """Keys and values to attend to, with what the rules of visibility need to know of each."""

    keys: Tensor
    """(B, G, S, K)"""
    values: Tensor
    """(B, G, S, V)"""
    index: Tensor
    """(S,) or (B, S) int: number of real tokens before the key in its row."""
    mask: Tensor | None
    """(B, S) bool, True = a stored key; None: all are."""
    query_index: Tensor
    """(T,) or (B, T) int of the new queries."""
    everything: bool
    """True where every new query may see every key (one new token over its own past)."""
    tags: dict[str, Tensor]
    """(B, S) int by name, such as positions and documents."""


class _Rows:
    """Rows with their own number of real tokens."""

    def __init__(self, batch: int, device: torch.device) -> None:
        self.counts = torch.zeros(batch, dtype=torch.long, device=device)
        self.uniform: int | None = 0  # the common count, known without asking the device; None once rows differ

    @property
    def length(self) -> Tensor:
        """(B,) real tokens seen, per row."""
        return self.counts

    @property
    def seen(self) -> Tensor | int:
        """The same as one int while all rows agree, which asks nothing of the device."""
        return self.counts if self.uniform is None else self.uniform

    def _advance(self, tokens: int, token_mask: Tensor | None) -> None:
        if token_mask is None:
            self.counts = self.counts + tokens
            self.uniform = None if self.uniform is None else self.uniform + tokens
        else:
            self.counts = self.counts + token_mask.sum(-1)
            self.uniform = None

    def _row_index(self, tokens: int, token_mask: Tensor | None) -> Tensor:
        return Visibility.row_index(tokens, token_mask, self.seen, self.counts.device)


class _Store(_Rows):
    """Keys, values and tags in slots."""

    def __init__(
        self,
        batch: int,
        groups: int,
        capacity: int,
        key_dim: int,
        value_dim: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.keys = torch.zeros(batch, groups, capacity, key_dim, device=device, dtype=dtype)
        self.values = torch.zeros(batch, groups, capacity, value_dim, device=device, dtype=dtype)
        self.tags: dict[str, Tensor] = {}
        super().__init__(batch, self.keys.device)

    @property
    def capacity(self) -> int:
        """Tokens that fit."""
        return self.keys.shape[2]

    def nbytes(self) -> int:
        """Bytes of keys and values at the present capacity: 2 B G capacity K itemsize where K = V."""
        return sum(x.numel() * x.element_size() for x in (self.keys, self.values))

    def reorder(self, rows: Tensor) -> None:
        """Row i becomes what row `rows[i]` was."""
        self.keys, self.values = self.keys.index_select(0, rows), self.values.index_select(0, rows)
        self.tags = {name: tag.index_select(0, rows) for name, tag in self.tags.items()}
        self.counts = self.counts.index_select(0, rows)

    def clone(self) -> Self:
        """An independent copy."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.keys, other.values, other.counts = self.keys.clone(), self.values.clone(), self.counts.clone()
        other.tags = {name: tag.clone() for name, tag in self.tags.items()}
        return other

    def _own(self) -> None:
        """Before a write: leave tensors that a backward pass may still read as they are."""
        if torch.is_grad_enabled():
            self.keys, self.values = self.keys.clone(), self.values.clone()

    def _write_slice(self, start: int, k: Tensor, v: Tensor, tags: dict[str, Tensor]) -> None:
        """Same slots in every row."""
        stop = start + k.shape[2]
        self._own()
        self.keys[:, :, start:stop] = k
        self.values[:, :, start:stop] = v
        for name, tag in tags.items():
            self._tag(name)[:, start:stop] = tag

    def _write_slots(self, slots: Tensor, keep: Tensor, k: Tensor, v: Tensor, tags: dict[str, Tensor]) -> None:
        """Token t of row b goes into slots[b, t] where keep[b, t]; both (B, T)."""
        rows, tokens = keep.nonzero(as_tuple=True)
        places = slots[rows, tokens]
        self._own()
        self.keys[rows, :, places] = k[rows, :, tokens].to(self.keys.dtype)
        self.values[rows, :, places] = v[rows, :, tokens].to(self.values.dtype)
        for name, tag in tags.items():
            self._tag(name)[rows, places] = tag[rows, tokens]

    def _tag(self, name: str) -> Tensor:
        if name not in self.tags:
            self.tags[name] = torch.zeros(self.keys.shape[0], self.capacity, dtype=torch.long, device=self.keys.device)
        return self.tags[name]


class KVState(_Store):
    """All keys and values; token number n of a row lies in slot n. Preallocated, and grown when it is full."""

    def __init__(self, batch: int, groups: int, capacity: int, key_dim: int, value_dim: int, **factory: Any) -> None:
        super().__init__(batch, groups, capacity, key_dim, value_dim, **factory)
        self.bound = 0  # no row holds more; known without asking the device

    def update(self, k: Tensor, v: Tensor, token_mask: Tensor | None = None, **tags: Tensor) -> Keys:
        """Store k (B, G, T, K), v (B, G, T, V) and tags (B, T) of the real tokens; return all stored keys."""
        tokens = k.shape[2]
        index = self._row_index(tokens, token_mask)
        self._grow(self.bound + tokens)
        if self.uniform is not None and token_mask is None:
            self._write_slice(self.uniform, k, v, tags)
        else:
            keep = token_mask if token_mask is not None else torch.ones_like(index, dtype=torch.bool)
            self._write_slots(index.expand(k.shape[0], -1), keep, k, v, tags)
        self.bound += tokens
        self._advance(tokens, token_mask)
        slots = torch.arange(self.bound, device=k.device)
        return Keys(
            keys=self.keys[:, :, : self.bound],
            values=self.values[:, :, : self.bound],
            index=slots,
            mask=None if self.uniform is not None else slots < self.counts[:, None],
            query_index=index,
            everything=tokens == 1 and self.uniform is not None,
            tags={name: tag[:, : self.bound] for name, tag in self.tags.items()},
        )

    def _grow(self, needed: int) -> None:
        if needed <= self.capacity:
            return
        extra = max(needed, 2 * self.capacity) - self.capacity
        pad = torch.nn.functional.pad
        self.keys, self.values = pad(self.keys, (0, 0, 0, extra)), pad(self.values, (0, 0, 0, extra))
        self.tags = {name: pad(tag, (0, extra)) for name, tag in self.tags.items()}


class WindowState(_Store):
    """The last `window` keys and values, and the first `sinks` of the row (Xiao et al. 2023, arXiv:2309.17453).

    Token n lies in slot n while n < sinks, else in slot sinks + (n - sinks) % window, so a new token takes the place
    of the one that leaves the window. Keys keep the absolute positions they were rotated with.
    """

    def __init__(
        self, batch: int, groups: int, window: int, key_dim: int, value_dim: int, *, sinks: int = 0, **factory: Any
    ) -> None:
        super().__init__(batch, groups, sinks + window, key_dim, value_dim, **factory)
        self.window, self.sinks = window, sinks

    def update(self, k: Tensor, v: Tensor, token_mask: Tensor | None = None, **tags: Tensor) -> Keys:
        """Store k (B, G, T, K), v (B, G, T, V) and tags (B, T); return the stored keys, then the new ones."""
        tokens = k.shape[2]
        index = self._row_index(tokens, token_mask)
        if tokens == 1 and token_mask is None and self.uniform is not None:
            slot = int(self._slot(torch.tensor(self.uniform)))
            self._write_slice(slot, k, v, tags)
            self._advance(1, None)
            filled = min(self.uniform, self.capacity)
            return Keys(
                keys=self.keys[:, :, :filled],
                values=self.values[:, :, :filled],
                index=self.slot_index(self.counts[:1])[0, :filled],
                mask=None,
                query_index=index,
                everything=True,
                tags={name: tag[:, :filled] for name, tag in self.tags.items()},
            )
        batch = k.shape[0]
        index = index.expand(batch, -1)  # (B, T)
        real = token_mask if token_mask is not None else torch.ones_like(index, dtype=torch.bool)
        held = self.slot_index(self.counts)  # (B, capacity)
        for name in tags:
            self._tag(name)
        seen = Keys(
            keys=torch.cat([self.keys, k.to(self.keys.dtype)], dim=2),
            values=torch.cat([self.values, v.to(self.values.dtype)], dim=2),
            index=torch.cat([held, index], dim=1),
            mask=torch.cat([held >= 0, real], dim=1),
            query_index=index,
            everything=False,
            tags={name: torch.cat([tag, tags[name]], dim=1) for name, tag in self.tags.items()},
        )
        last = self.counts[:, None] + real.sum(-1, keepdim=True)  # (B, 1) tokens after this call
        keep = real & ((index < self.sinks) | (index >= last - self.window))
        self._write_slots(self._slot(index), keep, k, v, tags)
        self._advance(tokens, token_mask)
        return seen

    def slot_index(self, counts: Tensor) -> Tensor:
        """(B, capacity) int: which token of its row each slot holds once `counts` (B,) are seen; -1 where none."""
        slots = torch.arange(self.capacity, device=counts.device)
        ring = slots - self.sinks
        newest = (counts[:, None] - 1 - self.sinks).clamp(min=-1)  # newest token of the ring, counted from the sinks
        lag = (newest - ring) % self.window
        held = torch.where(newest - lag >= 0, newest - lag + self.sinks, -1)
        return torch.where(slots < self.sinks, torch.where(slots < counts[:, None], slots, -1), held)

    def _slot(self, index: Tensor) -> Tensor:
        return torch.where(index < self.sinks, index, self.sinks + (index - self.sinks) % self.window)


class CrossState:
    """Keys and values of a second sequence, projected at the first call and stored once for all later ones."""

    def __init__(self, batch: int, device: torch.device | str | None = None) -> None:
        self.counts = torch.zeros(batch, dtype=torch.long, device=device)
        self.keys: Tensor | None = None  # (B, G, S, K)
        self.values: Tensor | None = None  # (B, G, S, V)
        self.mask: Tensor | None = None  # (B, S) bool

    @property
    def length(self) -> Tensor:
        """(B,) tokens of the reading sequence seen, per row."""
        return self.counts

    def fill(self, keys: Tensor, values: Tensor, mask: Tensor | None) -> None:
        """Store keys (B, G, S, K), values (B, G, S, V) and their mask (B, S)."""
        self.keys, self.values, self.mask = keys, values, mask

    def advance(self, tokens: int, token_mask: Tensor | None) -> None:
        """Count the real tokens of one call."""
        self.counts = self.counts + (tokens if token_mask is None else token_mask.sum(-1))

    def nbytes(self) -> int:
        """Bytes of keys and values; 0 before the first call."""
        return sum(x.numel() * x.element_size() for x in (self.keys, self.values) if x is not None)

    def reorder(self, rows: Tensor) -> None:
        """Row i becomes what row `rows[i]` was."""
        self.counts = self.counts.index_select(0, rows)
        for name in ("keys", "values", "mask"):
            value = getattr(self, name)
            if value is not None:
                setattr(self, name, value.index_select(0, rows))

    def clone(self) -> CrossState:
        """An independent copy. Keys and values are never written again, so they are shared."""
        other = CrossState(self.counts.shape[0], self.counts.device)
        other.counts = self.counts.clone()
        other.keys, other.values, other.mask = self.keys, self.values, self.mask
        return other


class StackState:
    """States of all sublayers of a stack, by layer and sublayer; None where a sublayer keeps nothing."""

    def __init__(self, layers: list[dict[str, Any]]) -> None:
        self.layers = layers

    def _each(self) -> list[Any]:
        return [state for layer in self.layers for state in layer.values() if state is not None]

    @property
    def _first(self) -> Any:
        states = self._each()
        if not states:
            raise ValueError("this stack keeps no state: its mixers see the whole row, so call it without one")
        return states[0]

    @property
    def length(self) -> Tensor:
        """(B,) real tokens seen, per row."""
        return self._first.length

    @property
    def seen(self) -> Tensor | int:
        """The same as one int while all rows agree."""
        return getattr(self._first, "seen", self.length)

    def nbytes(self) -> int:
        """Bytes of the features that all layers store."""
        return sum(state.nbytes() for state in self._each())

    def reorder(self, rows: Tensor) -> None:
        """Row i becomes what row `rows[i]` was."""
        for state in self._each():
            state.reorder(rows)

    def clone(self) -> StackState:
        """An independent copy."""
        copied = [{name: state and state.clone() for name, state in layer.items()} for layer in self.layers]
        return StackState(copied)
