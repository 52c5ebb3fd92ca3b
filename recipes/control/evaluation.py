"""Returns of a policy at each return that is asked for, and the figures made of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from recipes.control.policy import Cached, Chance, Policy, Recomputed
from recipes.control.rollout import rollout
from recipes.data.control.episodes import ControlData, Environment, Scaling

__all__ = ["TEST_SEED", "Mode", "achieved", "chance_returns", "figures_of", "policy_of"]

TEST_SEED = 100_000
"""Seed of the first environment of an evaluation; no recorded episode starts from one of them but by accident."""
Mode = Literal["cached", "recomputed"]


def policy_of(model: Any, environment: Environment, mode: Mode) -> Any:
    """Makes the policy of a model for so many rows."""

    def make(rows: int) -> Policy:
        if mode == "cached":
            return Cached(model, rows, environment.max_steps)
        return Recomputed(model, model.config.context)

    return make


def achieved(
    model: Any,
    environment: Environment,
    scaling: Scaling,
    targets: Sequence[float],
    *,
    episodes: int,
    greedy: Sequence[float] = (),
    mode: Mode = "cached",
    seed: int = TEST_SEED,
) -> tuple[dict[float, Tensor], dict[float, Tensor]]:
    """Returns (episodes,) by target: of drawn actions for `targets`, of the likeliest ones for `greedy`.

    The same `episodes` environments for each target, all in one rollout.
    """
    asked = [*targets, *greedy]
    rows = [target for target in asked for _ in range(episodes)]
    flags = torch.arange(len(rows)) >= len(targets) * episodes
    first = next(model.parameters())
    outcome = rollout(
        policy_of(model, environment, mode),
        environment,
        scaling,
        rows,
        [seed + number for _ in asked for number in range(episodes)],
        greedy=flags,
        device=first.device,
        dtype=first.dtype,
    )
    parts = outcome.returns.split(episodes)
    drawn, likeliest = parts[: len(targets)], parts[len(targets) :]
    return dict(zip(targets, drawn, strict=True)), dict(zip(greedy, likeliest, strict=True))


def chance_returns(data: ControlData, episodes: int) -> Tensor:
    """Returns (episodes,) of random actions."""
    world = data.environment
    return rollout(
        lambda rows: Chance(world.action_dim, discrete=world.discrete),
        world,
        data.scaling,
        [data.targets[0]] * episodes,
        [TEST_SEED + number for number in range(episodes)],
    ).returns


def figures_of(drawn: dict[float, Tensor], greedy: dict[float, Tensor], floor: float, best: float) -> dict[str, float]:
    """test/return@TARGET, its standard deviation over episodes, its score between chance (0) and the data's best
    episode (100), and the return of greedy actions."""
    found: dict[str, float] = {}
    for target, returns in drawn.items():
        found[f"test/return@{target:g}"] = float(returns.mean())
        found[f"test/spread@{target:g}"] = float(returns.std(unbiased=False))
        if best != floor:
            found[f"test/score@{target:g}"] = 100 * (float(returns.mean()) - floor) / (best - floor)
    return found | {f"test/greedy_return@{target:g}": float(returns.mean()) for target, returns in greedy.items()}
