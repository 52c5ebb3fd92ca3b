"""A model as the loops see it: rows of new tokens in, logits of their next token out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from zoo.blocks.api import Context

__all__ = ["Decoder"]


class Decoder:
    """Holds a state, or without one all tokens so far; and for an encoder-decoder the memory.

    `memory` (B, S, D) and `memory_mask` (B, S) reach the model in the first call; a state keeps what it makes of them.
    """

    def __init__(
        self,
        model: Any,
        *,
        state: Any = None,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
    ) -> None:
        self.model, self.state = model, state
        self.memory, self.memory_mask = memory, memory_mask
        self.ids: Tensor | None = None  # (B, T) all tokens, without a state
        self.mask: Tensor | None = None
        self.head: nn.Module = model.head
        self._step: Callable[[Tensor], Tensor] | None = None
        self._asked = False

    def read(self, ids: Tensor, mask: Tensor | None = None, chunk: int | None = None) -> Tensor:
        """Features (B, D) of the last column after the tokens ids (B, T), in calls of at most `chunk` tokens."""
        size = ids.shape[1] if chunk is None or self.state is None else chunk
        x = ids
        for start in range(0, ids.shape[1], size):
            stop = start + size
            x = self._call(ids[:, start:stop], None if mask is None else mask[:, start:stop])  # (B, t, D)
        return x[:, -1]

    def logits(self, ids: Tensor, mask: Tensor | None = None, chunk: int | None = None) -> Tensor:
        """Logits (B, V) after the tokens ids (B, T), fp32 or better. The head sees the last token only."""
        logits = self.head(self.read(ids, mask, chunk))
        return logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits

    def reorder(self, rows: Tensor) -> None:
        """Row i becomes what row `rows[i]` was."""
        if self.state is not None:
            self.state.reorder(rows)
        for name in ("ids", "mask", "memory", "memory_mask"):
            value = getattr(self, name)
            if value is not None:
                setattr(self, name, value.index_select(0, rows))

    def _call(self, ids: Tensor, mask: Tensor | None) -> Tensor:
        if self.state is None:
            ids, mask = self._joined(ids, mask)
            self.ids, self.mask = ids, mask
        if mask is None and ids.shape[1] == 1 and (step := self._short_cut()) is not None:
            return step(ids[:, 0])[:, None]  # (B, 1, D)
        context = Context(token_mask=mask, memory=self.memory, memory_mask=self.memory_mask, last_only=True)
        x = self.model.features(ids, context, self.state)  # (B, 1, D)
        if self.state is not None:
            self.memory = self.memory_mask = None
        return x

    def _short_cut(self) -> Callable[[Tensor], Tensor] | None:
        """The model's own function of one new token in rows of one length, after a first call that filled the state."""
        if self.state is None or self.memory is not None or torch.is_grad_enabled():
            return None
        if not isinstance(getattr(self.state, "seen", None), int):
            return None
        if not self._asked:
            make = getattr(self.model, "step", None)
            self._step, self._asked = make(self.state) if make is not None else None, True
        return self._step

    def _joined(self, ids: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """All tokens so far and their mask."""
        if self.ids is None:
            return ids, mask
        if mask is not None or self.mask is not None:
            before = self.mask if self.mask is not None else torch.ones_like(self.ids, dtype=torch.bool)
            mask = torch.cat((before, mask if mask is not None else torch.ones_like(ids, dtype=torch.bool)), dim=1)
        return torch.cat((self.ids, ids), dim=1), mask
