"""`minari`: any data set that minari has on this machine."""

from __future__ import annotations

import json

from recipes.data.control.episodes import ControlData, ControlDataConfig, control_data
from recipes.data.control.spaces import collected, environment_of
from recipes.data.control.store import environments, read_dataset
from zoo.registry import ConfigError, register

__all__ = ["MinariSet"]


@register("data", "minari")
class MinariSet(ControlDataConfig):
    """A minari data set by its id, from $MINARI_DATASETS_PATH or minari's own folder; its own environment is what the
    model acts in, where that is installed."""

    id: str = ""
    """Such as D4RL/pointmaze/umaze-v2; fetch it with `minari download ID`."""

    def load(self, seed: int = 0) -> ControlData:
        environments()
        if not self.id:
            raise ConfigError("needs the id of a data set, such as D4RL/pointmaze/umaze-v2", "data.id")
        episodes, dataset = read_dataset(self.id, None)
        if not episodes:
            raise ConfigError(f"'{self.id}' has no episodes", "data.id")
        longest = max(len(episode.rewards) for episode in episodes)
        spec = dataset.spec.env_spec
        environment = environment_of(dataset.observation_space, dataset.action_space, spec, longest)
        _plain(environment.kwargs)
        return control_data(self, collected(episodes, environment, dataset), environment, self.id)


def _plain(kwargs: dict[str, object]) -> None:
    try:
        json.dumps(kwargs)
    except TypeError as error:
        raise ConfigError(f"its environment takes arguments that cannot be stored: {error}", "data.id") from None
