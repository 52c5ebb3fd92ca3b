"""LSTM layers over padded rows, and the state of an LSTM decoder that reads a memory.

Hochreiter & Schmidhuber 1997, doi:10.1162/neco.1997.9.8.1735; both directions: Schuster & Paliwal 1997,
doi:10.1109/78.650093.
"""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

__all__ = ["RecurrentState", "masked_lstm"]


def masked_lstm(lstm: nn.LSTM, x: Tensor, mask: Tensor | None) -> Tensor:
    """x (B, S, D) -> the outputs (B, S, D') of a batch-first LSTM that steps over masked tokens wherever they stand.

    mask: (B, S) bool, True = a real token. A masked token changes nothing, and its own output is zero.
    """
    if mask is None or bool(mask.all()):
        return lstm(x)[0]
    width = x.shape[1]
    order = (~mask).to(torch.uint8).argsort(dim=1, stable=True)  # (B, S) real tokens first, in their order
    packed_left = x.gather(1, order[..., None].expand_as(x))  # (B, S, D)
    lengths = mask.sum(1).clamp(min=1).cpu()  # an empty row runs over one token, whose output is put to zero below
    packed = pack_padded_sequence(packed_left, lengths, batch_first=True, enforce_sorted=False)
    y = pad_packed_sequence(lstm(packed)[0], batch_first=True, total_length=width)[0]  # (B, S, D')
    y = y.gather(1, order.argsort(1)[..., None].expand(-1, -1, y.shape[-1]))
    return y.masked_fill(~mask[..., None], 0.0)


class RecurrentState:
    """What an LSTM decoder keeps: hidden and cell states of its layers, and the memory it reads with the keys of it."""

    def __init__(self, hidden: Tensor, cell: Tensor) -> None:
        self.hidden, self.cell = hidden, cell  # (L, B, D) each
        self.keys: Tensor | None = None  # (B, S, hidden)
        self.memory: Tensor | None = None  # (B, S, D)
        self.mask: Tensor | None = None  # (B, S) bool
        self.count = torch.zeros(hidden.shape[1], dtype=torch.int64, device=hidden.device)

    @property
    def length(self) -> Tensor:
        """(B,) real tokens seen, per row."""
        return self.count

    def nbytes(self) -> int:
        """Bytes of hidden and cell states, and of the memory and its keys once they are known."""
        stored = (self.hidden, self.cell, self.keys, self.memory)
        return sum(value.numel() * value.element_size() for value in stored if value is not None)

    def reorder(self, rows: Tensor) -> None:
        """Row i becomes what row `rows[i]` was."""
        self.hidden, self.cell = self.hidden.index_select(1, rows), self.cell.index_select(1, rows)
        self.count = self.count.index_select(0, rows)
        for name in ("keys", "memory", "mask"):
            value = getattr(self, name)
            if value is not None:
                setattr(self, name, value.index_select(0, rows))

    def clone(self) -> Self:
        """An independent copy."""
        other = object.__new__(type(self))
        other.__dict__.update({k: v.clone() if isinstance(v, Tensor) else v for k, v in self.__dict__.items()})
        return other

    def can_truncate(self, tokens: int) -> bool:
        """Whether `truncate(tokens)` is possible: a recurrence keeps nothing of its past."""
        return bool((self.count <= tokens).all())

    def truncate(self, tokens: int) -> None:
        """Forget all but the first `tokens` of every row. Raises ValueError where the recurrence has moved on."""
        if not self.can_truncate(tokens):
            raise ValueError(f"this state cannot go back to {tokens} tokens: a recurrence has moved on")
