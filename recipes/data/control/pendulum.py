"""`pendulum`: continuous actions."""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field

from recipes.data.control.scripted import ScriptedConfig, Skill
from zoo.registry import register

__all__ = ["Pendulum"]


@register("data", "pendulum")
class Pendulum(ScriptedConfig):
    """Pendulum-v1 (gymnasium, MIT): swing up and hold by a torque in -2 .. 2, 200 steps.

    The controller pumps energy while the pendulum hangs, and holds it by angle and speed at the top.
    """

    env_id: ClassVar[str] = "Pendulum-v1"

    episodes: Annotated[int, Field(ge=3)] = 300
    skills: tuple[Skill, ...] = (0.0, 0.4, 0.7, 1.0)
    targets: tuple[float, ...] = (-150.0, -600.0, -1200.0)

    def act(self, observation: np.ndarray, skill: Any, env: Any, draw: np.random.Generator) -> np.ndarray:
        cosine, sine, speed = (float(value) for value in observation)
        if cosine > 0.8:
            torque = -10.0 * math.atan2(sine, cosine) - 2.0 * speed
        else:  # energy of the upright rest is 10
            energy = speed**2 / 6 + 5 * cosine
            torque = math.copysign(2.0, speed) * (1.0 if energy < 5.0 else -1.0)
        if draw.random() >= skill:
            torque = draw.uniform(-2.0, 2.0)
        return np.clip(np.array([torque], dtype=np.float32), -2.0, 2.0)
