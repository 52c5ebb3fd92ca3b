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

from zoo.blocks.rows import Rows
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
    contiguous: bool = False
    """True where the keys are the new tokens themselves, unpadded and in order: the first call of a state."""
    past: bool = False
    """True where `mask` alone says what may be seen: one new token a row, over nothing but its own past."""


class _Store(Rows):
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
        self.bound = 0  # no row has seen more; known without asking the device
        self._slots = torch.arange(capacity, device=self.keys.device)
        super().__init__(batch, self.keys.device)

    @property
    def capacity(self) -> int:
        """Tokens that fit."""
        return self.keys.shape[2]

    def truncate(self, tokens: int) -> None:
        super().truncate(tokens)
        self.bound = min(self.bound, tokens)

    def nbytes(self) -> int:
        """Bytes of keys and values at the present capacity: 2 B G capacity K itemsize where K = V."""
        return sum(x.numel() * x.element_size() for x in (self.keys, self.values))

    def reorder(self, rows: Tensor) -> None:
        """Row i becomes what row `rows[i]` was."""
        if self.same_rows(rows):
            return
        self.tags = {name: tag.index_select(0, rows) for name, tag in self.tags.items()}
        if rows.shape[0] == self.batch and not torch.is_grad_enabled():  # beams: move the filled slots only
            self._own()
            used = min(self.bound, self.capacity)
            for store in (self.keys, self.values):
                store[:, :, :used] = store[:, :, :used].index_select(0, rows)
        else:
            self.keys, self.values = self.keys.index_select(0, rows), self.values.index_select(0, rows)
        self.reorder_counts(rows)

    def clone(self) -> Self:
        """An independent copy."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.keys, other.values = self.keys.clone(), self.values.clone()
        other.tags = {name: tag.clone() for name, tag in self.tags.items()}
        return other

    def _own(self) -> None:
        """Before a write: leave tensors that a backward pass may still read as they are.

        Tensors made in inference mode may be written only there, so outside of it they are copied once.
        """
        if torch.is_grad_enabled() or (self.keys.is_inference() and not torch.is_inference_mode_enabled()):
            self.keys, self.values = self.keys.clone(), self.values.clone()

    def _write_slice(self, start: int, k: Tensor, v: Tensor, tags: dict[str, Tensor]) -> None:
        """Same slots in every row."""
        tokens = k.shape[2]
        self._own()
        self.keys.narrow(2, start, tokens).copy_(k)
        self.values.narrow(2, start, tokens).copy_(v)
        for name, tag in tags.items():
            self._tag(name)[:, start : start + tokens] = tag

    def _write_one(self, slots: Tensor, k: Tensor, v: Tensor, tags: dict[str, Tensor], mask: Tensor | None) -> None:
        """The one new token of row b into slots[b]; where the mask (B, 1) is False the slot keeps what it holds."""
        written = []
        for store, new in ((self.keys, k), (self.values, v)):
            place = slots.view(-1, 1, 1, 1).expand(-1, store.shape[1], 1, store.shape[3])  # (B, G, 1, K)
            new = new.to(store.dtype)
            if mask is not None:  # read before the copy that is written: its gradient needs the tensor as it was
                new = torch.where(mask[:, None, None], new, store.gather(2, place))
            written.append((place, new))
        self._own()
        for store, (place, new) in zip((self.keys, self.values), written, strict=True):
            store.scatter_(2, place, new)
        for name, tag in tags.items():
            held, place = self._tag(name), slots[:, None]
            held.scatter_(1, place, tag if mask is None else torch.where(mask, tag, held.gather(1, place)))

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
        """Tag (B, capacity) that may be written."""
        if name not in self.tags:
            self.tags[name] = torch.zeros(self.batch, self.capacity, dtype=torch.long, device=self.device)
        elif self.tags[name].is_inference() and not torch.is_inference_mode_enabled():
            self.tags[name] = self.tags[name].clone()
        return self.tags[name]


class KVState(_Store):
    """All keys and values; token number n of a row lies in slot n. Preallocated, and grown when it is full."""

    def update(self, k: Tensor, v: Tensor, token_mask: Tensor | None = None, **tags: Tensor) -> Keys:
        """Store k (B, G, T, K), v (B, G, T, V) and tags (B, T) of the real tokens; return all stored keys."""
        tokens, start = k.shape[2], self.uniform
        self._grow(self.bound + tokens)
        if start is not None and token_mask is None:
            self._write_slice(start, k, v, tags)
            index = self._slots[start : start + tokens]  # (T,)
        else:
            index = Visibility.row_index(tokens, token_mask, self.seen, self.device)  # (B, T), or (T,) at first
            if tokens == 1:
                self._write_one(self.counts, k, v, tags, None)  # a masked token lies behind the row's end: never seen
            else:
                keep = token_mask if token_mask is not None else torch.ones_like(index, dtype=torch.bool)
                self._write_slots(index.expand(self.batch, -1), keep, k, v, tags)
        self.bound += tokens
        self.advance_rows(tokens, token_mask)
        slots = self._slots[: self.bound]
        return Keys(
            keys=self.keys[:, :, : self.bound],
            values=self.values[:, :, : self.bound],
            index=slots,
            mask=None if self.uniform is not None else slots < self.counts[:, None],
            query_index=index,
            everything=tokens == 1 and self.uniform is not None,
            tags={name: tag[:, : self.bound] for name, tag in self.tags.items()},
            contiguous=start == 0 and token_mask is None,
            past=tokens == 1,
        )

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """`update` for one token k (B, G, 1, K), v (B, G, 1, V) in rows that all agree: all keys and values."""
        assert self.uniform is not None
        self._grow(self.bound + 1)
        self._write_slice(self.uniform, k, v, {})
        self.bound += 1
        self.uniform += 1
        return self.keys.narrow(2, 0, self.bound), self.values.narrow(2, 0, self.bound)

    def _grow(self, needed: int) -> None:
        if needed <= self.capacity:
            return
        extra = max(needed, 2 * self.capacity) - self.capacity
        pad = torch.nn.functional.pad
        self.keys, self.values = pad(self.keys, (0, 0, 0, extra)), pad(self.values, (0, 0, 0, extra))
        self.tags = {name: pad(tag, (0, extra)) for name, tag in self.tags.items()}
        self._slots = torch.arange(self.capacity, device=self.device)


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
        if k.shape[2] == 1:
            return self._step(k, v, token_mask, tags)
        tokens, batch = k.shape[2], self.batch
        first = self.uniform == 0
        index = Visibility.row_index(tokens, token_mask, self.seen, self.device).expand(batch, -1)  # (B, T)
        real = token_mask if token_mask is not None else torch.ones_like(index, dtype=torch.bool)
        held = self.slot_index(self.counts)  # (B, capacity)
        for name in tags:
            self._tag(name)
        if first:  # nothing stored: the new tokens are all there is
            seen = Keys(k, v, index, token_mask, index, everything=False, tags=tags, contiguous=token_mask is None)
        else:
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
        self.bound += tokens
        self.advance_rows(tokens, token_mask)
        return seen

    def append(self, k: Tensor, v: Tensor, **tags: Tensor) -> tuple[Tensor, Tensor]:
        """`update` for one token k (B, G, 1, K), v (B, G, 1, V) in rows that all agree: all that is left in view."""
        assert self.uniform is not None
        n = self.uniform
        self._write_slice(n if n < self.sinks else self.sinks + (n - self.sinks) % self.window, k, v, tags)
        self.bound += 1
        self.uniform += 1
        filled = min(n + 1, self.capacity)
        return self.keys.narrow(2, 0, filled), self.values.narrow(2, 0, filled)

    def _step(self, k: Tensor, v: Tensor, token_mask: Tensor | None, tags: dict[str, Tensor]) -> Keys:
        """One new token a row: it takes its slot first, so that the slots are all there is to see."""
        if self.uniform is not None and token_mask is None:
            n = self.uniform
            self.append(k, v, **tags)
            filled = min(n + 1, self.capacity)
            query, index, mask = self._slots.new_full((1,), n), self._ring_index(n)[:filled], None
        else:
            query = Visibility.row_index(1, token_mask, self.seen, self.device).expand(self.batch, -1)  # (B, 1)
            self._write_one(self._slot(self.counts), k, v, tags, token_mask)
            self.bound += 1
            self.advance_rows(1, token_mask)
            filled = min(self.bound, self.capacity)
            index = self.slot_index(self.counts)[:, :filled]  # (B, S)
            mask = index >= 0
        return Keys(
            keys=self.keys[:, :, :filled],
            values=self.values[:, :, :filled],
            index=index,
            mask=mask,
            query_index=query,
            everything=mask is None,
            tags={name: tag[:, :filled] for name, tag in self.tags.items()},
            past=True,
        )

    def can_truncate(self, tokens: int) -> bool:
        """False once a token has left the window, unless nothing is to be forgotten."""
        return self.bound <= self.capacity or (self.uniform is not None and tokens >= self.uniform)

    def slot_index(self, counts: Tensor) -> Tensor:
        """(B, capacity) int: which token of its row each slot holds once `counts` (B,) are seen; -1 where none."""
        slots = self._slots
        ring = slots - self.sinks
        newest = (counts[:, None] - 1 - self.sinks).clamp(min=-1)  # newest token of the ring, counted from the sinks
        lag = (newest - ring) % self.window
        held = torch.where(newest - lag >= 0, newest - lag + self.sinks, -1)
        return torch.where(slots < self.sinks, torch.where(slots < counts[:, None], slots, -1), held)

    def _ring_index(self, newest: int) -> Tensor:
        """`slot_index` (capacity,) of rows whose newest token is known to the host."""
        if newest < self.capacity:
            return self._slots
        place = (newest - self.sinks) % self.window
        arange, device = torch.arange, self.device
        after = arange(newest - self.window + 1, newest - place, device=device)
        return torch.cat((self._slots[: self.sinks], arange(newest - place, newest + 1, device=device), after))

    def _slot(self, index: Tensor) -> Tensor:
        return torch.where(index < self.sinks, index, self.sinks + (index - self.sinks) % self.window)


class CrossState(Rows):
    """Keys and values of a second sequence, projected at the first call and stored once for all later ones."""

    def __init__(self, batch: int, device: torch.device | str | None = None) -> None:
        super().__init__(batch, torch.device(device if device is not None else "cpu"))
        self.keys: Tensor | None = None  # (B, G, S, K)
        self.values: Tensor | None = None  # (B, G, S, V)
        self.mask: Tensor | None = None  # (B, S) bool
        self._origin: Tensor | None = None  # (B,) the row of the first call that each row reads

    def fill(self, keys: Tensor, values: Tensor, mask: Tensor | None) -> None:
        """Store keys (B, G, S, K), values (B, G, S, V) and their mask (B, S)."""
        self.keys, self.values, self.mask = keys.contiguous(), values.contiguous(), mask
        self._origin = torch.arange(keys.shape[0], device=keys.device)
        self.device = keys.device

    def advance(self, tokens: int, token_mask: Tensor | None) -> None:
        """Count the real tokens of one call."""
        self.advance_rows(tokens, token_mask)

    def nbytes(self) -> int:
        """Bytes of keys and values; 0 before the first call."""
        return sum(x.numel() * x.element_size() for x in (self.keys, self.values) if x is not None)

    def reorder(self, rows: Tensor) -> None:
        """Row i becomes what row `rows[i]` was. Beams of one source read the same keys, so little is ever moved."""
        self.reorder_counts(rows)
        if self._origin is None:
            return
        before, self._origin = self._origin, self._origin.index_select(0, rows)
        if rows.device.type == "cpu" and torch.equal(before, self._origin):
            return
        for name in ("keys", "values", "mask"):
            value = getattr(self, name)
            if value is not None:
                setattr(self, name, value.index_select(0, rows))

    def clone(self) -> CrossState:
        """An independent copy. Keys and values are never written again, so they are shared.

        Those made in inference mode are copied outside of it: no pass with gradients could use them.
        """
        other = object.__new__(CrossState)
        other.__dict__.update(self.__dict__)
        if self.keys is not None and self.values is not None and not torch.is_inference_mode_enabled():
            other.keys = self.keys.clone() if self.keys.is_inference() else self.keys
            other.values = self.values.clone() if self.values.is_inference() else self.values
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

    def can_truncate(self, tokens: int) -> bool:
        """Whether all states can forget what came after the first `tokens`: a recurrence cannot."""
        return all(hasattr(state, "truncate") and state.can_truncate(tokens) for state in self._each())

    def truncate(self, tokens: int) -> None:
        """Forget all but the first `tokens` of every row. Raises ValueError where `can_truncate` is False."""
        if not self.can_truncate(tokens):
            raise ValueError(f"this state cannot go back to {tokens} tokens: a recurrence or a window has moved on")
        for state in self._each():
            state.truncate(tokens)

    def clone(self) -> StackState:
        """An independent copy."""
        copied = [{name: state and state.clone() for name, state in layer.items()} for layer in self.layers]
        return StackState(copied)
