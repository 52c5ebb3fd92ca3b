"""Bytes of the state that a model carries from token to token, as a function of the row's length."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from zoo.blocks.state import StackState, WindowState
from zoo.inspection.examples import Example

__all__ = ["state_bytes"]


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
