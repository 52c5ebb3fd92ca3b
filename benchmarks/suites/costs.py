"""What a model costs, as an `Outcome` tells it."""

from __future__ import annotations

from typing import Any

from torch import nn

from zoo.inspection.count import count

__all__ = ["costs", "state_bytes"]


def costs(model: nn.Module, inputs: tuple[Any, ...], tokens: int, length: int) -> dict[str, Any]:
    """params, params_non_embedding, flops_per_token and state_bytes. inputs: of a forward pass over `tokens` tokens;
    length: tokens of the longest row, after which a state is measured."""
    found = count(model, *inputs)
    return {
        "params": found.params,
        "params_non_embedding": found.params_non_embedding,
        "flops_per_token": found.flops_forward / tokens,
        "state_bytes": state_bytes(model, length),
    }


def state_bytes(model: Any, length: int) -> int:
    """Bytes that a row of `length` tokens leaves in the states, 0 for a model that keeps none."""
    make = getattr(model, "init_state", None)
    return 0 if make is None else make(1, length).nbytes()
