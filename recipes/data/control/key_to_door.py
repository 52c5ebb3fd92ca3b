"""`key_to_door`: credit over a gap that holds no trace of what was done."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field

from recipes.data.control.scripted import ScriptedConfig, Skill
from zoo.registry import register

__all__ = ["KeyToDoorData"]


@register("data", "key_to_door")
class KeyToDoorData(ScriptedConfig):
    """Key-to-Door (recipes/control/key_to_door.py): 1 for a door that is reached with the key.

    The controller walks towards key and door. Its skills in the two rooms are drawn apart, so that the key tells
    nothing of what is done at the door.
    """

    env_id: ClassVar[str] = "zoo/KeyToDoor-v0"

    episodes: Annotated[int, Field(ge=3)] = 3000
    skills: tuple[Skill, ...] = (0.0, 0.0, 0.9)
    targets: tuple[float, ...] = (1.0, 0.0)

    def skill(self, episode: int, draw: np.random.Generator) -> tuple[float, ...]:
        """Of the rooms of key, distraction and door."""
        key, door = draw.choice(self.skills, size=2)
        return float(key), 0.0, float(door)

    def act(self, observation: np.ndarray, skill: Any, env: Any, draw: np.random.Generator) -> int:
        room = int(observation[:3].argmax())
        towards = env.unwrapped.towards_object()
        return towards if towards is not None and draw.random() < skill[room] else int(draw.integers(4))
