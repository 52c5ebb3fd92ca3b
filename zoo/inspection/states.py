"""Bytes of the state that a model carries from token to token, as a function of the row's length."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from zoo.blocks.state import StackState, WindowState
from zoo.inspection.examples import Example

__all__ = ["state_bytes", "state_lines"]

LENGTHS = (1, 1_024, 8_192, 131_072, 1_048_576)
"""Lengths that a table shows."""


def state_bytes(model: Any, shapes: Example, batch: int, tokens: int) -> int:
    """Bytes of the features that `model`, on the meta device, keeps of `batch` rows of `tokens` tokens.

    With what it keeps of a second sequence, and of a window no more than there are tokens. Counters and masks are not
    features. States of recurrences are fp32 or better, all else is in the weights' dtype.
    """
    assert isinstance(model, nn.Module) and shapes.step is not None
    with torch.no_grad():
        state = model.init_state(batch, -(-tokens // shapes.per_unit), device="meta")  # type: ignore[operator]
        if shapes.memory:
            shapes.step(model, state)
    if not isinstance(state, StackState):
        return state.nbytes()
    return sum(_filled(one, tokens) for layer in state.layers for one in layer.values() if one is not None)


def _filled(state: Any, tokens: int) -> int:
    """Bytes of one state after so many tokens: a window is allocated whole, however short the row."""
    if not isinstance(state, WindowState):
        return state.nbytes()
    return state.nbytes() * min(tokens, state.capacity) // state.capacity


def state_lines(model: Any, config: Any, batch: int, shapes: Example) -> list[str]:
    """The state as a function of the length, as text: bytes at some lengths, and what a further token adds."""
    units = sorted({shapes.tokens // shapes.per_unit, *LENGTHS})
    longest = getattr(config, "max_len", 0) if getattr(config, "position", None) is not None else 0
    lines = [f"  state bytes by length{f', with a source of {shapes.memory:,}' if shapes.memory else ''}"]
    for unit in units:
        tokens = unit * shapes.per_unit
        held, more = (state_bytes(model, shapes, batch, n) for n in (tokens, tokens + shapes.per_unit))
        note = "beyond max_len" if longest and unit > longest else ""
        lines.append(f"    {unit:>11,} {shapes.unit} {held:>22,}  + {more - held:,} each  {note}".rstrip())
    return lines
