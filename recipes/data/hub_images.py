"""`hub_images`: image sets of the Hugging Face Hub, or local copies of them."""

from __future__ import annotations

import glob
import io
import os
import re
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np
import torch
from torch import Tensor

from recipes.data.decoded import DecodedDataConfig, Part, build
from recipes.data.images import ImageData
from recipes.data.preprocess import open_image
from recipes.data.splitting import stratified
from zoo.registry import Config, ConfigError, nearest, register

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["Columns", "HubImages", "Splits"]

TEST_SHARE = 0.1  # of the training images, where a set has no test split
SECONDS_TO_REACH = 3.0


class Columns(Config):
    """Names of the set's columns."""

    image: str = "image"
    label: str = "label"


class Splits(Config):
    """Names of the set's splits, dots and all; None: held out of the training split, by class, always the same rows."""

    train: str = "train"
    val: str | None = None
    test: str | None = "test"


@register("data", "hub_images")
class HubImages(DecodedDataConfig):
    """Any labelled image set of the Hugging Face Hub (`id`), or a local copy of it (`path`). Licence: see its card.

    id, config, revision: as `datasets.load_dataset` takes them. path: a parquet or arrow file, a pattern of such, a
    folder of them whose names tell the split, an image folder, or what `save_to_disk` wrote; it goes before `id` and
    needs no network.
    columns, splits: what the set calls its columns and splits.
    """

    id: str | None = None
    config: str | None = None
    revision: str | None = None
    path: str | None = None
    columns: Columns = Columns()
    splits: Splits = Splits()

    def load(self, seed: int = 0) -> ImageData:
        source = self.path or self.id
        if source is None:
            raise ConfigError([(("data", "id"), "needs the id of a set on the Hub, or data.path of a local copy")])
        if self.path is not None:
            found = _local(self.path, self.config)
        else:
            found = _from_hub(source, self.config, self.revision)
        names = {"train": self.splits.train, "val": self.splits.val, "test": self.splits.test}
        given = [name for name in names.values() if name is not None]
        if len(set(given)) < len(given):
            raise ConfigError([(("data", "splits"), f"should be three different splits, got {', '.join(given)}")])
        for split, name in names.items():
            if name is not None and name not in found:
                problem = f"'{name}' is not a split of {source}{nearest(name, found)}; choices: {', '.join(found)}"
                problem += " (null: hold it out of train)" if split != "train" else ""
                raise ConfigError([(("data", "splits", split), problem)])
        classes = _classes(found[self.splits.train], self.columns, source)
        parts = {
            split: _part(found[name], self.columns, classes, f"{source}, split {name}")
            for split, name in names.items()
            if name is not None
        }
        train, val, test = parts["train"], parts.get("val"), parts.get("test")
        if test is None:
            is_test = torch.zeros(len(train), dtype=torch.bool)
            is_test[stratified(train.labels, max(1, round(TEST_SHARE * len(train))), "test")] = True
            train, test = train[(~is_test).nonzero().flatten()], train[is_test.nonzero().flatten()]
        return build(self, train, val, test, tuple(map(str, classes)), source)


class _Rows:
    """Decodes rows of a table whose image column holds encoded files."""

    def __init__(self, table: Any, column: str, name: str) -> None:
        self.table = table
        self.column = column
        self.name = name

    def __call__(self, row: int) -> Image.Image:
        value = self.table[row][self.column]
        name = f"{self.name}, row {row}"
        if value is None:
            raise ConfigError(f"{name}: has no image")
        if value["bytes"] is not None:
            return open_image(io.BytesIO(value["bytes"]), name)
        return open_image(value["path"])


def _part(table: Any, columns: Columns, classes: list[Any], name: str) -> Part:
    from datasets import Image

    for field in ("image", "label"):
        _check_column(table, columns, field, name)
    try:
        images = table.select_columns([columns.image]).cast_column(columns.image, Image(decode=False))
    except Exception as error:  # pyarrow's and datasets' own, by type of the column
        problem = f"column '{columns.image}' holds no images ({str(error).splitlines()[0]})"
        raise ConfigError([(("data", "columns", "image"), problem)]) from None
    labels = _labels(table, columns.label, classes, name)
    return Part(_Rows(images, columns.image, name), labels, list(range(len(table))), torch.arange(len(table)))


def _check_column(table: Any, columns: Columns, field: str, name: str) -> None:
    column = getattr(columns, field)
    if column not in table.column_names:
        choices = f"choices: {', '.join(table.column_names)}"
        problem = f"'{column}' is not a column of {name}{nearest(column, table.column_names)}; {choices}"
        raise ConfigError([(("data", "columns", field), problem)])


def _classes(table: Any, columns: Columns, name: str) -> list[Any]:
    """Class names of a ClassLabel column, or else the distinct values, sorted."""
    _check_column(table, columns, "label", name)
    feature = table.features[columns.label]
    if hasattr(feature, "names"):
        return list(feature.names)
    values = {value for value in table[columns.label] if value is not None}
    if not all(isinstance(value, (int, str)) for value in values):
        kinds = ", ".join(sorted({type(value).__name__ for value in values}))
        problem = f"column '{columns.label}' should hold classes (whole numbers or strings), got {kinds}"
        raise ConfigError([(("data", "columns", "label"), problem)])
    return sorted(values)


def _labels(table: Any, column: str, classes: list[Any], name: str) -> Tensor:
    """(N,) int64."""
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


def _local(path: str, config: str | None) -> Mapping[str, Any]:
    """Splits of a local copy."""
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
                shards = _shards(place, config)
                kind = "arrow" if any(".arrow" in name for names in shards.values() for name in names) else "parquet"
                loaded = datasets.load_dataset(kind, data_files=shards) if shards else datasets.load_dataset(str(place))
            else:
                kind = "arrow" if files[0].endswith(".arrow") else "parquet"
                loaded = datasets.load_dataset(kind, data_files=files)
        except ConfigError:
            raise
        except Exception as error:  # pyarrow's, datasets' and the file system's own
            raise ConfigError([(("data", "path"), f"cannot read '{path}': {_first_line(error)}")]) from None
    return loaded if isinstance(loaded, Mapping) else {"train": loaded}


def _shards(folder: Path, config: str | None) -> dict[str, list[str]]:
    """Parquet or arrow files below a folder by the split that their names tell: SPLIT-00000-of-00001.parquet,
    SPLIT.parquet, or SPLIT/0000.parquet. (datasets itself finds split names with dots only in a folder "data".)

    Raises ConfigError when several folders hold such files and `config` names none of them.
    """
    found: dict[str, dict[str, list[str]]] = {}
    for path in sorted([*folder.rglob("*.parquet"), *folder.rglob("*.arrow")]):
        by_folder = path.stem.isdigit()
        split = path.parent.name if by_folder else re.sub(r"-\d+-of-\d+.*", "", path.stem)
        home = path.parent.parent if by_folder else path.parent
        found.setdefault(home.name, {}).setdefault(split, []).append(str(path))
    if len(found) > 1 and config not in found:
        problem = f"should name one of the folders of '{folder}': {', '.join(found)}; got {config}"
        raise ConfigError([(("data", "config"), problem)])
    return found[config] if config in found else next(iter(found.values()), {})


def _from_hub(name: str, config: str | None, revision: str | None) -> Mapping[str, Any]:
    """Splits of a set on the Hub, or in its cache on this machine."""
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
                "run once with a connection, or give a local copy with data.path=FOLDER, or take data=digits"
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
