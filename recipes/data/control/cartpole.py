"""`cartpole`: the default of the Decision Transformer's recipe."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from recipes.data.control.scripted import ScriptedConfig
from zoo.registry import register

__all__ = ["CartPole"]


@register("data", "cartpole")
class CartPole(ScriptedConfig):
    """CartPole-v1 (gymnasium, MIT): push so that the pole stands, a reward of 1 a step, at most 500.

    The controller pushes towards the side to which angle, angular speed, place and speed lean.
    """

    env_id: ClassVar[str] = "CartPole-v1"

    targets: tuple[float, ...] = (500.0, 200.0, 50.0)
    curve: tuple[float, ...] = (25.0, 100.0, 300.0, 400.0)

    def act(self, observation: np.ndarray, skill: Any, env: Any, draw: np.random.Generator) -> int:
        place, speed, angle, turn = observation
        wanted = int(angle + 0.5 * turn + 0.05 * speed + 0.02 * place > 0)
        return wanted if draw.random() < skill else int(draw.integers(2))
