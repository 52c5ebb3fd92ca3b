"""The state of constant size that recurrences and convolutions keep between calls: tensors by name.

Memory is the same after one token and after a million. Each row counts its own real tokens, and remembers the document
of its last one, so that a packed row may be split anywhere.
"""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from zoo.blocks.state import Rows

__all__ = ["FixedState"]


class FixedState(Rows):
    """Tensors (B, ...) by name, such as `matrix` (B, H, K, V) or `tail` (B, W - 1, C)."""

    def __init__(self, **tensors: Tensor) -> None:
        first = next(iter(tensors.values()))
        super().__init__(first.shape[0], first.device)
        self.tensors = tensors
        self.document: Tensor | None = None
        """(B,) id of the document that each row's last real token belongs to, once documents were given."""

    def __getitem__(self, name: str) -> Tensor:
        """Tensor `name`; one made in inference mode is copied outside of it, where backward may have to keep it."""
        tensor = self.tensors[name]
        return tensor.clone() if tensor.is_inference() and not torch.is_inference_mode_enabled() else tensor

    def __setitem__(self, name: str, value: Tensor) -> None:
        held = self.tensors[name].dtype
        self.tensors[name] = value if value.dtype == held else value.to(held)

    def nbytes(self) -> int:
        """Bytes of the tensors."""
        return sum(x.numel() * x.element_size() for x in self.tensors.values())

    def reorder(self, rows: Tensor) -> None:
        """Row i becomes what row `rows[i]` was."""
        if self.same_rows(rows):
            return
        self.tensors = {name: x.index_select(0, rows) for name, x in self.tensors.items()}
        if self.document is not None:
            self.document = self.document.index_select(0, rows)
        self.reorder_counts(rows)

    def clone(self) -> Self:
        """An independent copy."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.tensors = {name: x.clone() for name, x in self.tensors.items()}
        return other

    def can_truncate(self, tokens: int) -> bool:
        """Whether `truncate(tokens)` is possible: a recurrence keeps nothing of its past."""
        return bool((self.counts <= tokens).all())

    def truncate(self, tokens: int) -> None:
        """Forget all but the first `tokens` of every row. Raises ValueError where the recurrence has moved on."""
        if not self.can_truncate(tokens):
            raise ValueError(f"this state cannot go back to {tokens} tokens: a recurrence has moved on")
