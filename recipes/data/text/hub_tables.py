"""What the `hub_*` text sets share: a source on the Hub or on the disk, columns by dotted names, held-out rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import Field

from recipes.data.hub import TEXTS, Splits, check_column, chosen_splits, from_hub, local_copy
from recipes.data.splitting import by_name
from zoo.registry import Config, ConfigError

__all__ = ["HubSource", "TextSplits", "column", "hold_out"]

Row = TypeVar("Row")


class TextSplits(Splits):
    """Names of the set's splits, dots and all; None: held out of the training split, by the sha1 of the text."""

    val: str | None = "validation"


class HubSource(Config):
    """Where a text set comes from.

    id, config, revision: as `datasets.load_dataset` takes them. path: a parquet, arrow, jsonl, json, csv or tsv file, a
    pattern of such, a folder of them whose names tell the split, or what `save_to_disk` wrote; it goes before `id` and
    needs no network. splits: what the set calls its splits. held_out: share of the training rows for each split that
    the set does not have. limit: cap on the training rows that remain, the first of the set.
    """

    id: str | None = None
    config: str | None = None
    revision: str | None = None
    path: str | None = None
    splits: TextSplits = TextSplits()
    held_out: float = Field(default=0.05, gt=0, lt=0.5)
    limit: int | None = Field(default=None, ge=1)

    @property
    def place(self) -> str:
        """The path, or else the id. Raises ConfigError when neither is given."""
        source = self.path or self.id
        if source is None:
            raise ConfigError([(("data", "id"), "needs the id of a set on the Hub, or data.path of a local copy")])
        return source

    def tables(self, instead: str, kinds: Mapping[str, str] = TEXTS) -> dict[str, Any]:
        """A table for each of train, val, test that the set has. `instead`: a set that needs no network."""
        source = self.place
        if self.path is not None:
            found = local_copy(self.path, self.config, kinds)
        else:
            found = from_hub(source, self.config, self.revision, instead)
        return {split: found[name] for split, name in chosen_splits(found, self.splits, source).items()}


def column(table: Any, name: str, field: str, source: str) -> list[Any]:
    """The values of a column, which may lie in a struct ("translation.de"). Raises ConfigError."""
    if "." in name and name not in table.column_names:
        table = table.flatten()
    check_column(table, name, field, source)
    return list(table[name])


def strings(values: Sequence[Any], field: str, name: str, source: str) -> list[str | None]:
    """The values, which should be strings or missing. Raises ConfigError for others."""
    strange = next((value for value in values if not isinstance(value, (str, type(None)))), None)
    if strange is not None:
        problem = f"column '{name}' of {source} should hold text, got {type(strange).__name__}"
        raise ConfigError([(("data", "columns", field), problem)])
    return list(values)


def hold_out(
    parts: Mapping[str, Sequence[Row]], share: float, text: Callable[[Row], str], limit: int | None
) -> tuple[tuple[Row, ...], tuple[Row, ...], tuple[Row, ...]]:
    """(train, val, test). A split that is missing is held out of train by the sha1 of a row's text: equal texts are on
    one side, and none changes sides when rows are added. Then at most `limit` training rows are kept."""
    missing = [split for split in ("test", "val") if split not in parts]
    taken: dict[str, list[Row]] = {split: [] for split in ("train", *missing)}
    for row in parts["train"]:
        place = int(by_name(text(row)) / share) if missing else len(missing)
        taken[missing[place] if place < len(missing) else "train"].append(row)
    whole = {split: taken.get(split, parts.get(split, ())) for split in ("train", "val", "test")}
    return tuple(whole["train"][:limit]), tuple(whole["val"]), tuple(whole["test"])
