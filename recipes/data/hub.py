"""Tables of the Hugging Face Hub, its cache, and local copies: how every `hub_*` set reads them."""

from __future__ import annotations

import glob
import os
import re
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import torch
from torch import Tensor

from zoo.registry import Config, ConfigError, nearest

__all__ = ["TEXTS", "Splits", "check_column", "chosen_splits", "class_labels", "class_names", "from_hub", "local_copy"]

SECONDS_TO_REACH = 3.0
TABLES = {".parquet": "parquet", ".arrow": "arrow"}
TEXTS = {".parquet": "parquet", ".arrow": "arrow", ".jsonl": "json", ".json": "json", ".csv": "csv", ".tsv": "csv"}


class Splits(Config):
    """Names of the set's splits, dots and all; None: held out of the training split, by class, always the same rows."""

    train: str = "train"
    val: str | None = None
    test: str | None = "test"


def chosen_splits(found: Mapping[str, Any], splits: Splits, source: str) -> dict[str, str]:
    """The set's name of each of train, val and test that has one. Raises ConfigError for a name it does not have."""
    names = {"train": splits.train, "val": splits.val, "test": splits.test}
    given = {split: name for split, name in names.items() if name is not None}
    if len(set(given.values())) < len(given):
        raise ConfigError([(("data", "splits"), f"should be three different splits, got {', '.join(given.values())}")])
    for split, name in given.items():
        if name not in found:
            problem = f"'{name}' is not a split of {source}{nearest(name, found)}; choices: {', '.join(found)}"
            problem += " (null: hold it out of train)" if split != "train" else ""
            raise ConfigError([(("data", "splits", split), problem)])
    return given


def check_column(table: Any, column: str, field: str, name: str) -> None:
    """Raises ConfigError at data.columns.`field` when the table has no such column."""
    if column not in table.column_names:
        choices = f"choices: {', '.join(table.column_names)}"
        problem = f"'{column}' is not a column of {name}{nearest(column, table.column_names)}; {choices}"
        raise ConfigError([(("data", "columns", field), problem)])


def class_names(table: Any, column: str, name: str) -> list[Any]:
    """Class names of a ClassLabel column, or else the distinct values, sorted."""
    check_column(table, column, "label", name)
    feature = table.features[column]
    if hasattr(feature, "names"):
        return list(feature.names)
    values = {value for value in table[column] if value is not None}
    if not all(isinstance(value, (int, str)) for value in values):
        kinds = ", ".join(sorted({type(value).__name__ for value in values}))
        problem = f"column '{column}' should hold classes (whole numbers or strings), got {kinds}"
        raise ConfigError([(("data", "columns", "label"), problem)])
    return sorted(values)


def class_labels(table: Any, column: str, classes: list[Any], name: str) -> Tensor:
    """(N,) int64. Raises ConfigError where rows have no known label."""
    values = list(table[column])
    if not hasattr(table.features[column], "names"):
        number = {value: place for place, value in enumerate(classes)}
        values = [number.get(value, -1) for value in values]
    labels = torch.from_numpy(np.array([-1 if value is None else value for value in values], dtype=np.int64))
    unlabelled = int((labels < 0).sum())
    if unlabelled:
        problem = f"{unlabelled} of {len(labels)} rows of {name} have no known label; choose another split"
        raise ConfigError([(("data", "splits"), problem)])
    return labels


def local_copy(path: str, config: str | None, kinds: Mapping[str, str] = TABLES) -> Mapping[str, Any]:
    """Splits of a local copy: a file, a pattern, a folder of files, or what `save_to_disk` wrote.

    kinds: the loader of `datasets` for each suffix.
    """
    import datasets

    place = Path(path).expanduser()
    files = [str(place)] if place.is_file() else sorted(glob.glob(str(place)))
    if not place.exists() and not files:
        raise ConfigError([(("data", "path"), f"no such file or folder '{path}'")])
    with _quiet(datasets):
        try:
            if place.is_dir() and any((place / name).is_file() for name in ("dataset_dict.json", "state.json")):
                loaded: Any = datasets.load_from_disk(str(place))
            elif place.is_dir():
                shards = _shards(place, config, kinds)
                loaded = _load(shards, kinds) if shards else datasets.load_dataset(str(place))
            else:
                loaded = _load({"train": files}, kinds)
        except ConfigError:
            raise
        except Exception as error:  # pyarrow's, datasets' and the file system's own
            raise ConfigError([(("data", "path"), f"cannot read '{path}': {_first_line(error)}")]) from None
    return loaded if isinstance(loaded, Mapping) else {"train": loaded}


def _load(files: dict[str, list[str]], kinds: Mapping[str, str]) -> Any:
    """The splits of files of one kind."""
    import datasets

    suffixes = sorted({Path(name).suffix for names in files.values() for name in names})
    loaders = {kinds.get(suffix, next(iter(kinds.values()))) for suffix in suffixes}
    if len(loaders) > 1:
        raise ConfigError([(("data", "path"), f"should hold files of one kind, found {', '.join(suffixes)}")])
    options: dict[str, Any] = {"sep": "\t"} if suffixes == [".tsv"] else {}
    return datasets.load_dataset(loaders.pop(), data_files=files, **options)


def _shards(folder: Path, config: str | None, kinds: Mapping[str, str]) -> dict[str, list[str]]:
    """Files of these kinds below a folder by the split that their names tell: SPLIT-00000-of-00001.parquet,
    SPLIT.parquet, or SPLIT/0000.parquet. (datasets itself finds split names with dots only in a folder "data".)

    Raises ConfigError when several folders hold such files and `config` names none of them.
    """
    found: dict[str, dict[str, list[str]]] = {}
    for path in sorted(path for path in folder.rglob("*") if path.suffix in kinds and path.is_file()):
        by_folder = path.stem.isdigit()
        split = path.parent.name if by_folder else re.sub(r"-\d+-of-\d+.*", "", path.stem)
        home = path.parent.parent if by_folder else path.parent
        found.setdefault(home.name, {}).setdefault(split, []).append(str(path))
    if len(found) > 1 and config not in found:
        problem = f"should name one of the folders of '{folder}': {', '.join(found)}; got {config}"
        raise ConfigError([(("data", "config"), problem)])
    return found[config] if config in found else next(iter(found.values()), {})


def from_hub(name: str, config: str | None, revision: str | None, instead: str) -> Mapping[str, Any]:
    """Splits of a set on the Hub, or in its cache on this machine. `instead`: a set that needs no network."""
    import datasets
    from huggingface_hub import constants

    reached = not constants.is_offline_mode() and _reachable(constants.ENDPOINT)
    try:
        # The library itself would try for half a minute before it looks into its cache.
        with _quiet(datasets), _offline(not reached):
            return datasets.load_dataset(name, name=config, revision=revision)  # pyright: ignore[reportReturnType]
    except Exception as error:  # connection, gating, unknown name or config: each library layer has its own types
        if not reached or isinstance(error, ConnectionError):
            why = "offline mode is on" if constants.is_offline_mode() else "the Hub cannot be reached"
            problem = (
                f"'{name}' is not in the local cache ({constants.HF_HOME}) and {why}: "
                f"run once with a connection, or give a local copy with data.path=FOLDER, or take data={instead}"
            )
        else:
            problem = f"cannot load '{name}': {_first_line(error)}"
        raise ConfigError([(("data", "id"), problem)]) from None


def _reachable(endpoint: str) -> bool:
    """Whether the Hub answers; taken for granted behind a proxy."""
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True
    address = urlsplit(endpoint)
    port = address.port or (80 if address.scheme == "http" else 443)
    try:
        socket.create_connection((address.hostname or "", port), SECONDS_TO_REACH).close()
    except OSError:
        return False
    return True


@contextmanager
def _offline(on: bool) -> Iterator[None]:
    """Offline mode of the Hub's libraries, which read these two constants at each call."""
    import datasets.config
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    if on:
        constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = before


@contextmanager
def _quiet(datasets: Any) -> Iterator[None]:
    """No progress bars where there is no terminal."""
    quiet = not sys.stderr.isatty() and datasets.are_progress_bars_disabled() is False
    if quiet:
        datasets.disable_progress_bars()
    try:
        yield
    finally:
        if quiet:
            datasets.enable_progress_bars()


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
