"""From gymnasium's spaces to vectors and numbers, the same for recorded episodes and for rollouts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from recipes.data.control.episodes import Environment, Episodes
from zoo.registry import ConfigError

__all__ = ["collected", "environment_of", "flat_observations"]


def environment_of(observations: Any, actions: Any, spec: Any, longest: int = 0) -> Environment:
    """The facts of an environment of these spaces. `spec`: gymnasium's, or None; `longest`: of the recorded episodes.

    Raises ConfigError for actions that are neither numbers 0 .. n - 1 nor bounded vectors.
    """
    from gymnasium import spaces

    discrete = isinstance(actions, spaces.Discrete)
    bounded = isinstance(actions, spaces.Box) and np.isfinite(actions.low).all() and np.isfinite(actions.high).all()
    if not discrete and not bounded:
        raise ConfigError(f"actions {actions} are not supported; choices: Discrete, a bounded Box", "data")
    limit = getattr(spec, "max_episode_steps", None) or 0
    return Environment(
        id=spec.id if spec is not None else "",
        kwargs=dict(spec.kwargs) if spec is not None else {},
        state_dim=_width(observations),
        action_dim=int(actions.n) if discrete else math.prod(actions.shape),
        discrete=discrete,
        max_steps=max(limit, longest),
        low=() if discrete else tuple(actions.low.astype(float).flatten().tolist()),
        high=() if discrete else tuple(actions.high.astype(float).flatten().tolist()),
    )


def collected(episodes: Sequence[Any], environment: Environment, dataset: Any) -> Episodes:
    """minari's episodes end to end, actions as the model knows them."""
    space, start = dataset.observation_space, getattr(dataset.action_space, "start", 0)
    lengths = [len(episode.rewards) for episode in episodes]
    states = np.concatenate(
        [
            flat_observations(space, episode.observations, length + 1)[:length]
            for episode, length in zip(episodes, lengths, strict=True)
        ]
    )
    actions = np.concatenate([np.asarray(episode.actions) for episode in episodes])
    if environment.discrete:
        known = torch.from_numpy(actions.astype(np.int64) - int(start))
    else:
        low, high = np.asarray(environment.low), np.asarray(environment.high)
        flat = actions.reshape(len(actions), -1).astype(np.float64)
        known = torch.from_numpy(2 * (flat - low) / (high - low) - 1).float()
    return Episodes(
        states=torch.from_numpy(states.astype(np.float32)),
        actions=known,
        rewards=torch.from_numpy(np.concatenate([episode.rewards for episode in episodes]).astype(np.float32)),
        lengths=torch.tensor(lengths),
    )


def flat_observations(space: Any, values: Any, count: int) -> np.ndarray:
    """(count, S) float64 of `count` observations of a space: vectors as they are, numbers as one of n, dicts and tuples
    entry by entry (dicts by the order of the space)."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        parts = [flat_observations(inner, values[key], count) for key, inner in space.spaces.items()]
        return np.concatenate(parts, axis=1)
    if isinstance(space, spaces.Tuple):
        parts = [flat_observations(inner, part, count) for inner, part in zip(space.spaces, values, strict=True)]
        return np.concatenate(parts, axis=1)
    if isinstance(space, spaces.Discrete):
        return np.eye(int(space.n))[np.asarray(values).reshape(count) - int(space.start)]
    if isinstance(space, spaces.Box | spaces.MultiBinary | spaces.MultiDiscrete):
        return np.asarray(values, dtype=np.float64).reshape(count, -1)
    raise ConfigError(f"observations {space} are not supported; choices: Box, Discrete, Dict, Tuple", "data")


def _width(space: Any) -> int:
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        return sum(map(_width, space.spaces.values()))
    if isinstance(space, spaces.Tuple):
        return sum(map(_width, space.spaces))
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    if isinstance(space, spaces.Box | spaces.MultiBinary | spaces.MultiDiscrete):
        return math.prod(space.shape)
    raise ConfigError(f"observations {space} are not supported; choices: Box, Discrete, Dict, Tuple", "data")
