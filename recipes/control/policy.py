"""What chooses actions in a rollout: a model that carries a state, one that reads its past anew, or chance.

A policy answers for all rows of a rollout at once, one step after the other. `Cached` reads each token once and keeps a
State; `Recomputed` keeps the past itself and reads it all at each step, or its last steps alone, as the paper does.
Over the whole past both give the same.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

__all__ = ["Cached", "Chance", "Policy", "Recomputed"]


class Policy(Protocol):
    """Called step by step, from step 0 on; then made anew."""

    def act(self, states: Tensor, returns: Tensor, step: int, previous: Tensor | None) -> Tensor:
        """Logits, or actions in -1 .. 1, (N, A), from states (N, S), scaled returns-to-go (N,) and the actions (N,) or
        (N, A) of the step before."""
        ...

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows (M,) alone."""
        ...


class Cached:
    """A Decision Transformer with its State: each step costs as much as the state is wide."""

    def __init__(self, model: Any, rows: int, max_steps: int) -> None:
        self.model = model
        self.state = model.init_state(rows, max_steps)

    def act(self, states: Tensor, returns: Tensor, step: int, previous: Tensor | None) -> Tensor:
        wanted = returns if self.model.config.return_to_go else None
        return self.model.step(self.state, states, wanted, step, previous=previous)  # (N, A)

    def keep(self, rows: Tensor) -> None:
        self.state.reorder(rows)


class Recomputed:
    """The same without a State. `context`: so many last steps are read (the paper's window); None: the whole past."""

    def __init__(self, model: Any, context: int | None = None) -> None:
        self.model, self.context = model, context
        self.states: list[Tensor] = []
        self.returns: list[Tensor] = []
        self.actions: list[Tensor] = []

    def act(self, states: Tensor, returns: Tensor, step: int, previous: Tensor | None) -> Tensor:
        if previous is not None:
            self.actions.append(previous)
        self.states.append(states)
        self.returns.append(returns)
        config = self.model.config
        first = 0 if self.context is None else max(0, step + 1 - self.context)
        shape = (len(states),) if config.discrete else (len(states), config.action_dim)
        dtype = torch.long if config.discrete else states.dtype
        unknown = torch.zeros(shape, dtype=dtype, device=states.device)  # which no state token sees
        return self.model(
            torch.stack(self.states[first:], dim=1),  # (N, T, S)
            torch.stack([*self.actions[first:], unknown], dim=1),
            torch.stack(self.returns[first:], dim=1) if config.return_to_go else None,
            torch.arange(first, step + 1, device=states.device),
        )[:, -1]

    def keep(self, rows: Tensor) -> None:
        for past in (self.states, self.returns, self.actions):
            past[:] = [value[rows] for value in past]


class Chance:
    """Every discrete action alike, or a continuous one anywhere in -1 .. 1."""

    def __init__(self, action_dim: int, *, discrete: bool, seed: int = 0) -> None:
        self.action_dim, self.discrete = action_dim, discrete
        self.draw = torch.Generator().manual_seed(seed)

    def act(self, states: Tensor, returns: Tensor, step: int, previous: Tensor | None) -> Tensor:
        shape = (len(states), self.action_dim)
        return torch.zeros(shape) if self.discrete else 2 * torch.rand(shape, generator=self.draw) - 1

    def keep(self, rows: Tensor) -> None:
        pass
