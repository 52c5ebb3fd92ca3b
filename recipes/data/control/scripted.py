"""Episodes of a scripted controller that is obeyed now and then: several skills in one set.

Each episode has one skill, by turns. Made once, in a fixed order from fixed seeds, stored with minari, and found again
by the settings that they depend on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field

from recipes.data.control.episodes import ControlData, ControlDataConfig, control_data
from recipes.data.control.spaces import collected, environment_of
from recipes.data.control.store import Recorded, cache_folder, environments, read_dataset, write_dataset
from zoo.registry import encode

__all__ = ["Controller", "ScriptedConfig"]

Skill = Annotated[float, Field(ge=0, le=1)]
Controller = Callable[[np.ndarray], Any]
"""Observation (...,) -> action."""


class ScriptedConfig(ControlDataConfig):
    """Base of the scripted sets. `episodes` and what the subclass names decide the content."""

    env_id: ClassVar[str]
    version: ClassVar[int] = 0
    """Raised when the controller changes, so that old episodes are not found."""

    episodes: Annotated[int, Field(ge=3)] = 500
    skills: tuple[Skill, ...] = (0.0, 0.3, 0.6, 0.9)
    """Probability of obeying the controller instead of acting at random, of the episodes by turns."""

    def act(self, observation: np.ndarray, skill: Any, env: Any, draw: np.random.Generator) -> Any:
        """The controller's action with probability `skill`, else a random one."""
        raise NotImplementedError

    def skill(self, episode: int, draw: np.random.Generator) -> Any:
        """The skill of one episode."""
        return self.skills[episode % len(self.skills)]

    def load(self, seed: int = 0) -> ControlData:
        gymnasium = environments()
        name, folder = self.name, cache_folder()
        if not (folder / name / "data" / "metadata.json").is_file():
            env = gymnasium.make(self.env_id)
            about = {"algorithm_name": type(self).__name__, "description": (type(self).__doc__ or "").strip()}
            write_dataset(name, [self.record(env, number) for number in range(self.episodes)], env, folder, about)
            env.close()
        episodes, dataset = read_dataset(name, folder)
        environment = environment_of(dataset.observation_space, dataset.action_space, gymnasium.spec(self.env_id))
        return control_data(self, collected(episodes, environment, dataset), environment, name)

    @property
    def name(self) -> str:
        """Of the data set: it tells the settings that the content depends on."""
        content = {key: value for key, value in encode(self).items() if key not in ("validation", "targets", "curve")}
        text = json.dumps([self.env_id, self.version, content], sort_keys=True)
        return f"zoo/{self.registered_name}-{hashlib.sha256(text.encode()).hexdigest()[:10]}-v{self.version}"

    def record(self, env: Any, number: int) -> Recorded:
        """Episode `number`, which depends on nothing else."""
        draw = np.random.default_rng([self.version, number])
        skill = self.skill(number, draw)
        observation, _ = env.reset(seed=int(draw.integers(2**31)))
        seen, taken, rewards, ends, cuts = [observation], [], [], [], []
        done = False
        while not done:
            action = self.act(observation, skill, env, draw)
            observation, reward, ended, cut, _ = env.step(action)
            seen.append(observation)
            taken.append(action)
            rewards.append(float(reward))
            ends.append(bool(ended))
            cuts.append(bool(cut))
            done = ended or cut
        arrays = {"observations": seen, "actions": taken, "rewards": rewards, "terminations": ends, "truncations": cuts}
        return {key: np.asarray(value) for key, value in arrays.items()}
