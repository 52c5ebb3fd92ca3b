"""`mountain_car`: reach the hill's top by swinging."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field

from recipes.data.control.scripted import ScriptedConfig, Skill
from zoo.registry import register

__all__ = ["MountainCar"]


@register("data", "mountain_car")
class MountainCar(ScriptedConfig):
    """MountainCar-v0 (gymnasium, MIT): a reward of -1 a step, at most 200. The controller pushes along the velocity
    and coasts where it is not obeyed."""

    env_id: ClassVar[str] = "MountainCar-v0"

    episodes: Annotated[int, Field(ge=3)] = 300
    skills: tuple[Skill, ...] = (0.5, 0.625, 0.75, 0.875, 1.0)
    targets: tuple[float, ...] = (-110.0, -130.0, -160.0)
    curve: tuple[float, ...] = (-200.0,)

    def act(self, observation: np.ndarray, skill: Any, env: Any, draw: np.random.Generator) -> int:
        push = 2 if observation[1] >= 0 else 0
        return push if draw.random() < skill else 1
