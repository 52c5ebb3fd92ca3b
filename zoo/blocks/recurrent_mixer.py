"""What recurrent mixers have in common: their config, and a module that hides padding, documents and counting.

A recurrent mixer is causal by nature. In a slot that is not causal its config builds two of it, one for each direction
(two_way.py). Its module is given the real tokens first in every row, so that a convolution's neighbours are the real
ones wherever padding stands, and says only how it mixes them: `mix`, and `empty` for the tensors of its state.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from zoo.blocks.api import Capability, Context, MixerConfig, Slot, Step, Sublayer, check
from zoo.blocks.checks import check_row
from zoo.blocks.fixed_state import FixedState
from zoo.blocks.two_way import TwoWay
from zoo.registry import ConfigError

__all__ = ["RecurrentConfig", "RecurrentMixer", "Tokens", "heads_of"]


@dataclass(frozen=True)
class Tokens:
    """What a recurrence must know of its tokens. In every row the real ones come first."""

    mask: Tensor | None = None
    """(B, T) bool, True = a real token; None: all are."""
    starts: Tensor | None = None
    """(B, T) bool, True = the first token of a packed document, which sees an empty state; None: none is."""
    lengths: Tensor | None = None
    """(B,) int64, real tokens of each row; None: all T."""
    positions: Tensor | None = None
    """(B, T) or (T,) int, where the caller gave them or the stack counted them."""
    memo: dict[Any, Any] = field(default_factory=dict)
    """`Context.memo`: what this pass's layers leave for each other, about tokens in this order."""


class RecurrentConfig(MixerConfig):
    """Base of mixers that are causal by nature."""

    capabilities: ClassVar[Capability] = (
        Capability.CAUSAL | Capability.BIDIRECTIONAL | Capability.STEP | Capability.PADDING | Capability.DOCUMENTS
    )

    tied: bool = False
    """In a two-sided slot: one set of weights for both directions."""
    scan: Literal["row", "column", "snake"] = "row"
    """In a two-sided slot with a grid of tokens: the order in which they are read."""

    def build(self, slot: Slot) -> Sublayer:
        if slot.memory_dim is not None:
            check(self, slot.at(needs=slot.needs | Capability.CROSS))
        if not slot.causal:
            return TwoWay(self, slot)
        if self.scan != "row":
            raise ConfigError(
                f"'{self.scan}' is an order for both directions, and this place is causal; choices: row",
                f"{slot.where}.scan",
            )
        return self.build_causal(slot)

    def build_causal(self, slot: Slot) -> RecurrentMixer:
        """The mixer in one direction."""
        raise NotImplementedError


class RecurrentMixer(Sublayer):
    """(B, T, D) -> (B, T, D), causal. A mixer defines `mix` and `empty`.

    Raises ValueError for an x that is not (B, T, D), a mask or documents that are not (B, T), a state of another number
    of rows, and a state of packed documents that goes on without `context.documents`.
    """

    def mix(self, x: Tensor, tokens: Tokens, state: FixedState | None) -> Tensor:
        """x (B, T, D), real tokens first -> (B, T, D). Reads `state` and leaves it after the last real token."""
        raise NotImplementedError

    def empty(self, batch: int, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        """The state's tensors for `batch` empty rows: tails of inputs in `dtype`, recurrences in fp32 or better."""
        raise NotImplementedError

    def forward(self, x: Tensor, context: Context, state: FixedState | None = None) -> Tensor:
        check_row(x, context, self.where)
        if state is not None and state.batch != x.shape[0]:
            raise ValueError(f"{self.where}: the state holds {state.batch} rows, and x has {x.shape[0]}")
        if x.numel() == 0:  # no row or no token
            return x
        key = ("tokens", context.token_mask, context.documents, context.positions)
        tokens, order, back = context.once(key, lambda: _sorted(context))
        if state is not None and (context.documents is not None or state.document is not None):
            tokens = _after(state, tokens, context.documents, order, self.where)
        tokens = replace(tokens, memo=context.memo)  # the memo's own has none: no circle that keeps tensors alive
        if order is None or back is None:
            y = self.mix(x, tokens, state)  # (B, T, D)
        else:
            y = _gather(self.mix(_gather(x, order), tokens, state), back)
        if state is not None:
            state.advance_rows(x.shape[1], tokens.mask)
        return y

    def step(self, state: FixedState) -> Step | None:
        if state.document is not None:
            return None

        def step(x: Tensor, context: Context) -> Tensor:
            tokens = Tokens(positions=context.positions, memo=context.memo)
            y = self.mix(x[:, None], tokens, state)[:, 0]  # (N, D)
            state.advance_rows(1, None)
            return y

        return step

    def init_state(
        self, batch: int, max_len: int, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> FixedState:
        weight = next(self.parameters())
        return FixedState(**self.empty(batch, torch.device(device or weight.device), dtype or weight.dtype))


def heads_of(slot: Slot, heads: int | None, head_dim: int | None) -> tuple[int, int]:
    """Heads and their width: given, or the family's and D / heads. Raises ConfigError where that is no whole number."""
    found = heads or slot.heads
    if head_dim is None and slot.dim % found:
        raise ConfigError(f"dim {slot.dim} is not a multiple of heads {found}; change one, or set head_dim", slot.where)
    return found, head_dim or slot.dim // found


def _sorted(context: Context) -> tuple[Tokens, Tensor | None, Tensor | None]:
    """The tokens of a call, the order (B, T) that puts the real ones first, and its inverse; None where they are."""
    mask, documents, positions = context.token_mask, context.documents, context.positions
    order = back = lengths = starts = None
    if mask is not None:
        if mask.shape[1] > 1:
            order = (~mask).to(torch.uint8).argsort(dim=1, stable=True)  # (B, T)
            back = order.argsort(1)
            documents = documents if documents is None else documents.gather(1, order)
            positions = positions if positions is None else positions.expand_as(mask).gather(1, order)
        lengths = mask.sum(1)
        mask = torch.arange(mask.shape[1], device=mask.device) < lengths[:, None]
    if documents is not None:
        starts = F.pad(documents[:, 1:] != documents[:, :-1], (1, 0))  # (B, T)
        starts = starts if mask is None else starts & mask
    return Tokens(mask, starts, lengths, positions), order, back


def _after(state: FixedState, tokens: Tokens, documents: Tensor | None, order: Tensor | None, where: str) -> Tokens:
    """`tokens` with a start at the first one where the state ends in another document. The state learns its new end."""
    if documents is None or tokens.starts is None:
        raise ValueError(f"{where}: the state holds packed documents; give context.documents (B, T) again")
    documents = documents if order is None else documents.gather(1, order)  # (B, T)
    if tokens.lengths is None:
        last, real = documents[:, -1], torch.ones_like(documents[:, 0], dtype=torch.bool)  # (B,)
    else:
        last = documents.gather(1, (tokens.lengths - 1).clamp(min=0)[:, None])[:, 0]
        real = tokens.lengths > 0
    starts = tokens.starts
    if state.document is not None:
        begins = real & (state.counts > 0) & (state.document != documents[:, 0])
        starts = torch.cat([begins[:, None], starts[:, 1:]], dim=1)
        last = torch.where(real, last, state.document)
    state.document = last
    return replace(tokens, starts=starts)


def _gather(x: Tensor, order: Tensor) -> Tensor:
    """(B, T, D) with row b in the order order[b]."""
    return x.gather(1, order[..., None].expand_as(x))
