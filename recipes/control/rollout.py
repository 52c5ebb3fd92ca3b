"""Rollouts: a policy acts in many copies of an environment at once until each has ended once.

What is drawn depends on the seed, the row and the step alone: an episode is the same whatever ran beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recipes.control.policy import Policy
from recipes.data.control.episodes import Environment, Scaling
from recipes.data.control.spaces import flat_observations
from recipes.data.control.store import environments
from recipes.data.keys import seed_of
from zoo.registry import ConfigError

__all__ = ["Outcome", "chosen", "make_environments", "rollout"]


@dataclass(frozen=True)
class Outcome:
    """What became of each row."""

    returns: Tensor
    """(N,) float64"""
    lengths: Tensor
    """(N,) int64"""


def make_environments(environment: Environment, rows: int, **choices: Any) -> Any:
    """A gymnasium vector environment; `choices`, such as render_mode, go to its environments.

    Raises ConfigError where the environment is not known or not installed.
    """
    gymnasium = environments()
    if not environment.id:
        raise ConfigError("the data set names no environment to act in", "data")
    try:
        return gymnasium.make_vec(environment.id, rows, vectorization_mode="sync", **environment.kwargs, **choices)
    except Exception as error:  # whatever an environment's constructor does
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigError(f"cannot make the environment '{environment.id}': {why}", "data") from None


@torch.no_grad()
def rollout(
    policy: Callable[[int], Policy],
    environment: Environment,
    scaling: Scaling,
    targets: Sequence[float],
    seeds: Sequence[int],
    *,
    greedy: Tensor | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    watch: Callable[[Any], None] | None = None,
    **choices: Any,
) -> Outcome:
    """One episode a row: `targets` are the returns asked for, `seeds` those of the environments.

    policy: makes one for so many rows. greedy: (N,) bool, the rows that take the likeliest action; None: none. seed: of
    the draws; continuous actions are never drawn. watch: called with the vector environment before each step. choices:
    of `make_environments`.
    """
    rows = len(targets)
    envs = make_environments(environment, rows, **choices)
    try:
        observed, _ = envs.reset(seed=list(seeds))
        acting = policy(rows)
        draw = torch.Generator().manual_seed(seed_of("rollout", seed))
        greedy = torch.zeros(rows, dtype=torch.bool) if greedy is None else greedy
        left = torch.tensor(targets, dtype=torch.float64)
        most = left.clamp(min=scaling.most_return)
        returns, lengths = torch.zeros(rows, dtype=torch.float64), torch.zeros(rows, dtype=torch.int64)
        alive = torch.arange(rows)  # those that the policy still holds, some of which may have ended
        running = torch.ones(rows, dtype=torch.bool)
        taken: Tensor | None = None  # (N,) or (N, A), as the model knows actions
        for step in range(environment.max_steps):
            if watch is not None:
                watch(envs)
            states = flat_observations(envs.single_observation_space, observed, rows)  # (N, S)
            states = scaling.states(torch.from_numpy(states))[alive]
            wanted = left.clamp(min=scaling.least_return).minimum(most)[alive] / scaling.return_scale
            before = None if taken is None else taken[alive]
            inputs = states.to(device, dtype), wanted.to(device, dtype)
            said = acting.act(*inputs, step, _moved(before, device, dtype)).cpu()  # (M, A)
            noise = torch.rand(rows, environment.action_dim, generator=draw, dtype=torch.float64)
            made = chosen(said, noise[alive], greedy[alive]) if environment.discrete else said.float()
            if taken is None:
                taken = made.new_zeros(rows, *made.shape[1:])
            taken[alive] = made
            observed, rewards, ended, cut, _ = envs.step(_their_actions(taken, environment, envs))
            gained = torch.from_numpy(np.asarray(rewards, dtype=np.float64)) * running
            returns, left, lengths = returns + gained, left - gained, lengths + running
            running = running & ~torch.from_numpy(np.logical_or(ended, cut))
            if not running.any():
                break
            if 2 * int(running[alive].sum()) <= len(alive):
                held = running[alive].nonzero()[:, 0]
                acting.keep(held.to(device))
                alive = alive[held]
        return Outcome(returns, lengths)
    finally:
        envs.close()


def chosen(logits: Tensor, noise: Tensor, greedy: Tensor) -> Tensor:
    """Discrete actions (N,): drawn from softmax(logits (N, A)) by Gumbel noise made of uniform `noise` (N, A), or the
    likeliest where `greedy` (N,)."""
    gumbel = -torch.log(-torch.log(noise.clamp(1e-12, 1 - 1e-12)))
    return (logits.double() + gumbel.masked_fill(greedy[:, None], 0.0)).argmax(-1)


def _their_actions(actions: Tensor, environment: Environment, envs: Any) -> np.ndarray:
    space = envs.single_action_space
    if environment.discrete:
        return actions.numpy() + int(getattr(space, "start", 0))
    low, high = np.asarray(environment.low), np.asarray(environment.high)
    scaled = low + (actions.double().numpy().clip(-1, 1) + 1) / 2 * (high - low)
    return scaled.reshape(len(scaled), *space.shape).astype(space.dtype)


def _moved(actions: Tensor | None, device: torch.device | str, dtype: torch.dtype) -> Tensor | None:
    if actions is None:
        return None
    return actions.to(device) if actions.dtype == torch.long else actions.to(device, dtype)
