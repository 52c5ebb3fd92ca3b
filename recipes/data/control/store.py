"""Episodes to and from minari's data sets, in its arrow format, which needs neither jax nor h5py."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from zoo.registry import ConfigError

__all__ = ["Recorded", "cache_folder", "environments", "minari_from", "read_dataset", "write_dataset"]

Recorded = dict[str, np.ndarray]
"""One episode: observations (T + 1, ...), actions (T, ...), rewards, terminations and truncations (T,)."""
INSTALL = "pip install 'architecture-zoo[control]'"


def environments() -> Any:
    """gymnasium, with our own environments registered. Raises ConfigError where it is not installed."""
    try:
        import gymnasium
    except ImportError:
        raise ConfigError(f"environments need gymnasium; {INSTALL}", "data") from None
    import recipes.control.key_to_door  # noqa: F401  registers it

    return gymnasium


def cache_folder() -> Path:
    """Where recorded episodes are kept: $MINARI_DATASETS_PATH, or a folder of the user's cache."""
    chosen = os.environ.get("MINARI_DATASETS_PATH")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(chosen) if chosen else cache / "architecture-zoo" / "minari"


@contextmanager
def minari_from(folder: Path | None) -> Iterator[Any]:
    """minari with its data sets in `folder`; None: where it keeps them itself. Raises ConfigError without it."""
    try:
        import minari
    except ImportError:
        raise ConfigError(f"recorded episodes need minari; {INSTALL}", "data") from None
    before = os.environ.get("MINARI_DATASETS_PATH")
    if folder is not None:
        os.environ["MINARI_DATASETS_PATH"] = str(folder)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # about contact data that is not given
            yield minari
    finally:
        if before is None:
            os.environ.pop("MINARI_DATASETS_PATH", None)
        else:
            os.environ["MINARI_DATASETS_PATH"] = before


def write_dataset(name: str, episodes: Sequence[Recorded], env: Any, folder: Path, about: dict[str, Any]) -> None:
    """A new minari data set `name`, whole or not at all."""
    from shutil import move
    from tempfile import TemporaryDirectory

    from minari.data_collector.episode_buffer import EpisodeBuffer

    buffers = [EpisodeBuffer(id=number, **episode) for number, episode in enumerate(episodes)]  # type: ignore[arg-type]
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder) as half, minari_from(Path(half)) as minari:
        made = minari.create_dataset_from_buffers(name, buffers[:1], env=env, data_format="arrow", **about)
        storage: Any = made.storage
        storage.get_size = lambda: 0.0  # it looks at every file after every episode
        storage.update_episodes(buffers[1:])
        del storage.get_size
        storage.update_metadata({"dataset_size": float(storage.get_size())})
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.exists():  # another run may have been faster
            move(Path(half) / name, place)


def read_dataset(name: str, folder: Path | None) -> tuple[list[Any], Any]:
    """Its episodes (minari's EpisodeData) and the data set. Raises ConfigError where there is none of the name."""
    with minari_from(folder) as minari:
        local = minari.list_local_datasets()
        if name not in local:
            place = folder or "minari's folder"
            found = ", ".join(sorted(local)) or "none"
            raise ConfigError(f"no data set '{name}' in {place}; choices: {found}", "data.id")
        dataset = minari.load_dataset(name)
        return list(dataset.iterate_episodes()), dataset
