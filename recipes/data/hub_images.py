"""`hub_images`: image sets of the Hugging Face Hub, or local copies of them."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import torch

from recipes.data.decoded import DecodedDataConfig, Part, build
from recipes.data.hub import Splits, check_column, chosen_splits, class_labels, class_names, from_hub, local_copy
from recipes.data.images import ImageData
from recipes.data.preprocess import open_image
from recipes.data.splitting import stratified
from zoo.registry import Config, ConfigError, register

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["Columns", "HubImages", "Splits"]

TEST_SHARE = 0.1  # of the training images, where a set has no test split


class Columns(Config):
    """Names of the set's columns."""

    image: str = "image"
    label: str = "label"


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
            found = local_copy(self.path, self.config)
        else:
            found = from_hub(source, self.config, self.revision, instead="digits")
        names = chosen_splits(found, self.splits, source)
        classes = class_names(found[self.splits.train], self.columns.label, source)
        parts = {
            split: _part(found[name], self.columns, classes, f"{source}, split {name}") for split, name in names.items()
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
        check_column(table, getattr(columns, field), field, name)
    try:
        images = table.select_columns([columns.image]).cast_column(columns.image, Image(decode=False))
    except Exception as error:  # pyarrow's and datasets' own, by type of the column
        problem = f"column '{columns.image}' holds no images ({str(error).splitlines()[0]})"
        raise ConfigError([(("data", "columns", "image"), problem)]) from None
    labels = class_labels(table, columns.label, classes, name)
    return Part(_Rows(images, columns.image, name), labels, list(range(len(table))), torch.arange(len(table)))
