"""Key-to-Door: fetch a key, pass a room without meaning, and reach a door (Mesnard et al. 2020, arXiv:2011.09464;
as a test of credit assignment in Chen et al. 2021, section 5.5).

Three rooms of 3 x 3 cells, six steps each. In the first lies a key, in the last a door; both are reached by stepping on
their cell, and a reward of 1 comes with the door alone, and only for those who hold the key. Whether it is held cannot
be seen. Rooms, cells and steps are smaller than the papers'.
"""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

__all__ = ["ID", "KeyToDoor"]

ID = "zoo/KeyToDoor-v0"
SIDE, STEPS, ROOMS = 3, 6, 3
MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))  # up, down, left, right
CELL = 16
"""Pixels of a cell."""


class KeyToDoor(gymnasium.Env[np.ndarray, np.int64]):
    """Observation (6,): room as one of three, object visible, and its signed offset in rows and columns over 2."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 4}

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space = spaces.Box(-1.0, 1.0, (6,), np.float32)
        self.action_space = spaces.Discrete(4)
        self.agent, self.target = (0, 0), (0, 0)
        self.room, self.clock, self.key = 0, 0, False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.room, self.key = 0, False
        self._enter()
        return self._observation(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        row, column = MOVES[int(action)]
        self.agent = (min(max(self.agent[0] + row, 0), SIDE - 1), min(max(self.agent[1] + column, 0), SIDE - 1))
        self.clock += 1
        reached = self.visible and self.agent == self.target
        self.key = self.key or (reached and self.room == 0)
        opened = reached and self.room == ROOMS - 1 and self.key
        over = opened or (self.clock == STEPS and self.room == ROOMS - 1)
        if self.clock == STEPS and not over:
            self.room += 1
            self._enter()
        return self._observation(), float(opened), over, False, {"key": self.key}

    @property
    def visible(self) -> bool:
        """Whether the room shows an object: a key that still lies there, or the door."""
        return self.room == ROOMS - 1 or (self.room == 0 and not self.key)

    def towards_object(self) -> int | None:
        """A move that comes nearer to the object in sight; None where there is none, or one stands on it."""
        row, column = self.target[0] - self.agent[0], self.target[1] - self.agent[1]
        if not self.visible or not (row or column):
            return None
        return (0 if row < 0 else 1) if row else (2 if column < 0 else 3)

    def render(self) -> Any:
        image = np.full((SIDE * CELL, SIDE * CELL, 3), (235, 235, 225), np.uint8)
        image[::CELL] = image[:, ::CELL] = 200
        if self.visible:
            _square(image, self.target, (230, 180, 30) if self.room == 0 else (120, 70, 30), 3)
        _square(image, self.agent, (40, 140, 60) if self.key else (40, 80, 200), 5)
        return np.concatenate([image if room == self.room else image // 2 for room in range(ROOMS)], axis=1)

    def _enter(self) -> None:
        """Agent and object in two different cells of the room."""
        cells = self.np_random.choice(SIDE * SIDE, size=2, replace=False)
        self.agent, self.target = (divmod(int(cell), SIDE) for cell in cells)
        self.clock = 0

    def _observation(self) -> np.ndarray:
        seen = np.zeros(6, np.float32)
        seen[self.room] = 1.0
        if self.visible:
            row, column = self.target[0] - self.agent[0], self.target[1] - self.agent[1]
            seen[3:] = 1.0, row / (SIDE - 1), column / (SIDE - 1)
        return seen


def _square(image: np.ndarray, cell: tuple[int, int], colour: tuple[int, int, int], margin: int) -> None:
    top, left = (side * CELL for side in cell)
    image[top + margin : top + CELL - margin, left + margin : left + CELL - margin] = colour


if ID not in gymnasium.registry:
    gymnasium.register(ID, entry_point="recipes.control.key_to_door:KeyToDoor", max_episode_steps=STEPS * ROOMS)
