"""States of prompts already read, so that a prompt that starts like one of them is read from there on."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor

from zoo.generation.entry import generate, prefill
from zoo.generation.prompts import as_batch
from zoo.generation.result import Generated
from zoo.registry import ConfigError

__all__ = ["PromptCache"]


class PromptCache:
    """The longest shared start of a new prompt is taken from a stored state, exactly as if it were read again.

    A state that can forget (full attention) serves every start of its prompt; one that cannot (a recurrence, a window
    that has moved on) serves prompts that begin with the whole of it. `entries` states are kept, those used last.
    Decoder-only models, one prompt at a time. Weights that change make the stored states wrong: call `clear`.
    """

    def __init__(self, model: Any, entries: int = 4) -> None:
        if entries < 1:
            raise ConfigError(f"entries should be at least 1, got {entries}; give the number of prompts to keep")
        self.model, self.entries = model, entries
        self._states: OrderedDict[tuple[int, ...], Any] = OrderedDict()

    def clear(self) -> None:
        """Forget all prompts."""
        self._states.clear()

    def __len__(self) -> int:
        return len(self._states)

    def nbytes(self) -> int:
        """Bytes of all stored states."""
        return sum(state.nbytes() for state in self._states.values())

    def longest(self, ids: Tensor | list[int]) -> tuple[Any, int]:
        """A copy of the state that covers most of ids (T,), and how many of them; (None, 0) where nothing fits."""
        wanted = tuple(torch.as_tensor(ids).flatten().tolist())
        best, covered, source = None, 0, None
        for key, state in self._states.items():
            shared = next((i for i, (a, b) in enumerate(zip(key, wanted, strict=False)) if a != b), None)
            shared = min(len(key), len(wanted)) if shared is None else shared
            if shared > covered and (shared == len(key) or state.can_truncate(shared)):
                best, covered, source = state, shared, key
        if best is None or source is None:
            return None, 0
        self._states.move_to_end(source)
        copy = best.clone()
        if covered < len(source):
            copy.truncate(covered)
        return copy, covered

    def store(self, ids: Tensor | list[int], state: Any) -> None:
        """Keep the state of one row that has seen exactly ids (T,). The cache owns it from now on."""
        key = tuple(torch.as_tensor(ids).flatten().tolist())
        if key:
            self._states[key] = state
            self._states.move_to_end(key)
            while len(self._states) > self.entries:
                self._states.popitem(last=False)

    def generate(self, ids: Any, **choices: Any) -> Generated:
        """`zoo.generate` of one prompt ids (T,) or (1, T), reading only what no stored prompt covers."""
        device = next(self.model.parameters()).device
        row, _ = as_batch(ids, None, "ids", device)  # (1, T)
        if row.shape[0] != 1 or row.shape[1] == 0:
            raise ConfigError(f"a prompt cache takes one prompt of one token or more, got {tuple(row.shape)}")
        before = row[:, :-1]  # the last token is read by `generate`, for its logits
        state, covered = self.longest(before[0])
        if covered < before.shape[1]:
            state = prefill(self.model, before[:, covered:], state=state, chunk=choices.get("prefill_chunk"))
            self.store(before[0], state.clone())
        return generate(self.model, row[:, -1:], state=state, history=before if before.shape[1] else None, **choices)
