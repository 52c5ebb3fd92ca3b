"""Episodes in memory, the windows of them that a model is trained on, and what every set of them offers.

A batch is {"states": float32 (B, K, S) standardised, "actions": int64 (B, K) or float32 (B, K, A) in -1 .. 1,
"returns": float32 (B, K) scaled, "timesteps": int64 (B, K), "step_mask": bool (B, K)}; rows shorter than K steps are
padded on the right with zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from recipes.data.images import digest
from recipes.data.keys import generator
from zoo.registry import Config, ConfigError

__all__ = ["ControlData", "ControlDataConfig", "Environment", "Episodes", "Scaling", "WindowExamples", "control_data"]

Count = Annotated[int, Field(ge=1)]


@dataclass(frozen=True)
class Episodes:
    """Episodes end to end: row n of each tensor is one step."""

    states: Tensor
    """(N, S) float32, what was seen before each action."""
    actions: Tensor
    """(N,) int64, or (N, A) float32 in -1 .. 1."""
    rewards: Tensor
    """(N,) float32"""
    lengths: Tensor
    """(E,) int64, steps of each episode."""

    def __len__(self) -> int:
        return len(self.lengths)

    @cached_property
    def starts(self) -> Tensor:
        """(E,) first row of each episode."""
        return self.lengths.cumsum(0) - self.lengths

    @cached_property
    def numbers(self) -> Tensor:
        """(N,) the episode of each row."""
        return torch.repeat_interleave(torch.arange(len(self)), self.lengths)

    @cached_property
    def returns(self) -> Tensor:
        """(E,) float64, sum of the rewards of each episode."""
        return torch.zeros(len(self), dtype=torch.float64).index_add_(0, self.numbers, self.rewards.double())

    @cached_property
    def returns_to_go(self) -> Tensor:
        """(N,) float32, rewards of each step and those after it in its episode."""
        before = self.rewards.double().cumsum(0) - self.rewards.double()  # (N,) of all rows before
        return (self.returns[self.numbers] - (before - before[self.starts][self.numbers])).float()

    def take(self, chosen: Tensor) -> Episodes:
        """The episodes of these numbers (M,), in this order."""
        rows = [torch.arange(start, start + length) for start, length in self._bounds(chosen)]
        index = torch.cat(rows) if rows else torch.zeros(0, dtype=torch.long)
        return Episodes(self.states[index], self.actions[index], self.rewards[index], self.lengths[chosen])

    def best(self, share: float) -> Episodes:
        """Those of the highest returns that hold `share` of the steps, at least one (Chen et al. 2021, section 5.1)."""
        order = self.returns.argsort(descending=True, stable=True)
        before = self.lengths[order].cumsum(0) - self.lengths[order]
        return self.take(order[before < max(1.0, share * int(self.lengths.sum()))])

    def _bounds(self, chosen: Tensor) -> list[tuple[int, int]]:
        return list(zip(self.starts[chosen].tolist(), self.lengths[chosen].tolist(), strict=True))


@dataclass(frozen=True)
class Scaling:
    """How what an environment says becomes what the model reads."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    """Of the training states, feature by feature."""
    return_scale: float
    """Returns-to-go are divided by it."""
    least_return: float
    most_return: float
    """Of the training data's returns-to-go: at a rollout what is left stays between them, or up to what was asked."""

    def states(self, states: Tensor) -> Tensor:
        """(..., S) standardised, float32."""
        mean, std = (torch.tensor(values, dtype=torch.float32) for values in (self.mean, self.std))
        return (states.float() - mean) / std


@dataclass(frozen=True)
class Environment:
    """Where a model of the data acts."""

    id: str
    """Registered with gymnasium; "" where a data set names none."""
    kwargs: dict[str, Any]
    state_dim: int
    action_dim: int
    discrete: bool
    max_steps: int
    """Longest episode."""
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    """Bounds of continuous actions, which the model knows as -1 .. 1."""


class WindowExamples:
    """Windows of K steps, or of whole episodes that are shorter.

    In training there is one for each step of the data, and its place is drawn anew in each epoch among those that hold
    the step and lie inside the episode; in evaluation they lie side by side, so that each step comes once.
    """

    def __init__(self, episodes: Episodes, context: int, scaling: Scaling, *, training: bool) -> None:
        self.episodes, self.context, self.training = episodes, context, training
        self.states = scaling.states(episodes.states)
        self.returns = episodes.returns_to_go / scaling.return_scale
        if training:
            self.rows = torch.arange(len(episodes.states))
        else:
            bounds = zip(episodes.starts.tolist(), episodes.lengths.tolist(), strict=True)
            places = [torch.arange(start, start + length, context) for start, length in bounds]
            self.rows = torch.cat(places) if places else torch.zeros(0, dtype=torch.long)
        self._first, self._length = episodes.starts[episodes.numbers], episodes.lengths[episodes.numbers]  # (N,) each

    def __len__(self) -> int:
        return len(self.rows)

    def count_targets(self, indices: Sequence[int], key: tuple[int, ...] | None) -> int:
        """Real steps in the windows."""
        rows = self.rows[torch.from_numpy(np.array(indices, dtype=np.int64))]
        if key is not None:
            return int(self._length[rows].clamp(max=self.context).sum())
        return int((self._first[rows] + self._length[rows] - rows).clamp(max=self.context).sum())

    def targets(self, batch: dict[str, Tensor]) -> int:
        return int(batch["step_mask"].sum())

    def batch(self, indices: Sequence[int], key: tuple[int, ...] | None) -> dict[str, Tensor]:
        """The windows `indices`; placed at random where a `key` = (seed, epoch) is given."""
        rows = self.rows[torch.from_numpy(np.array(indices, dtype=np.int64))]  # (B,)
        first, length = self._first[rows], self._length[rows]
        start = rows - first  # (B,) steps of the episode before the window
        if key is not None:
            back = torch.randint(self.context, rows.shape, generator=generator("window", *key, *indices))
            start = (start - back).clamp(min=0).minimum((length - self.context).clamp(min=0))
        timesteps = start[:, None] + torch.arange(self.context)  # (B, K)
        mask = timesteps < length[:, None]
        timesteps = timesteps * mask
        index = first[:, None] + timesteps
        actions = self.episodes.actions[index]
        return {
            "states": self.states[index] * mask[..., None],
            "actions": actions * (mask if actions.dim() == 2 else mask[..., None]),
            "returns": self.returns[index] * mask,
            "timesteps": timesteps,
            "step_mask": mask,
        }


class ControlDataConfig(Config):
    """Base of every set of episodes, kind "data"."""

    validation: Annotated[float, Field(ge=0, lt=1)] = 0.05
    """Share of the episodes that is held out for validation, and the same again for testing; by episode."""
    targets: tuple[float, ...] = ()
    """Returns that the finished model is asked for, the main one first; (): the best of the data and half of it."""
    curve: tuple[float, ...] = ()
    """Further ones, for the figure of wanted against achieved returns."""

    def load(self, seed: int = 0) -> ControlData:
        """Read or make the episodes. `seed` is the run's; neither episodes nor splits depend on it.

        Raises ConfigError where they, or a package, cannot be had.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class ControlData:
    """A set in three splits without overlap."""

    episodes: dict[str, Episodes]
    """By split: train, val, test."""
    environment: Environment
    scaling: Scaling
    targets: tuple[float, ...]
    curve: tuple[float, ...]
    source: str
    content_hash: str
    context: int = 20
    """Steps of a window."""

    def windows(self, context: int) -> ControlData:
        """The same in windows of `context` steps."""
        return replace(self, context=context)

    @cached_property
    def train(self) -> WindowExamples:
        return self.examples(self.episodes["train"])

    @cached_property
    def val(self) -> WindowExamples:
        return WindowExamples(self.episodes["val"], self.context, self.scaling, training=False)

    @cached_property
    def test(self) -> WindowExamples:
        return WindowExamples(self.episodes["test"], self.context, self.scaling, training=False)

    def examples(self, episodes: Episodes) -> WindowExamples:
        """Windows of other episodes to train on."""
        return WindowExamples(episodes, self.context, self.scaling, training=True)


def control_data(config: ControlDataConfig, episodes: Episodes, environment: Environment, source: str) -> ControlData:
    """Split by episode, in an order that depends on nothing but their number; scales are those of the training part.

    Raises ConfigError for too few episodes.
    """
    held = round(config.validation * len(episodes))
    if len(episodes) - 2 * held < 1:
        raise ConfigError(f"{len(episodes)} episodes are too few to hold out {config.validation:.0%} twice", "data")
    order = torch.randperm(len(episodes), generator=generator("episodes", len(episodes)))
    parts = dict(zip(("val", "test", "train"), order.split([held, held, len(order) - 2 * held]), strict=True))
    splits = {name: episodes.take(part.sort().values) for name, part in parts.items()}
    train = splits["train"]
    std = train.states.double().std(0, unbiased=False)
    best = float(train.returns.max())
    scaling = Scaling(
        mean=tuple(round(value, 6) for value in train.states.double().mean(0).tolist()),
        std=tuple(round(value, 6) if value > 1e-6 else 1.0 for value in std.tolist()),
        return_scale=_scale(float(train.returns_to_go.abs().max())),
        least_return=float(train.returns_to_go.min()),
        most_return=float(train.returns_to_go.max()),
    )
    targets = config.targets or (best, best / 2)
    content = digest(episodes.states, episodes.actions, episodes.rewards, episodes.lengths)
    return ControlData(splits, environment, scaling, targets, config.curve, source, content)


def _scale(largest: float) -> float:
    """A round number that brings the largest return to 1 .. 10 (the paper: 1000 for Hopper's 3600)."""
    if largest <= 0:
        return 1.0
    return float(10.0 ** np.floor(np.log10(largest)))
