"""`hub_labelled`: labelled texts of the Hugging Face Hub, or of local tables."""

from __future__ import annotations

from pydantic import Field

from recipes.data.hub import class_labels, class_names
from recipes.data.keys import seed_of
from recipes.data.text.corpora import Labelled, LabelledText, check_splits, text_hash
from recipes.data.text.hub_tables import HubSource, column, hold_out, strings
from zoo.registry import Config, ConfigError, register

__all__ = ["HubLabelled", "LabelledColumns"]


class LabelledColumns(Config):
    """Names of the set's columns."""

    text: str = "text"
    label: str = "label"


@register("data", "hub_labelled")
class HubLabelled(HubSource):
    """Any set of labelled texts of the Hugging Face Hub (`id`), or a local copy (`path`). Licence: see its card.

    columns: what the set calls text and label. labels: labelled texts for training downstream, the same whatever the
    run's seed; None: all. The texts without their labels are there for pre-training.
    """

    columns: LabelledColumns = LabelledColumns()
    labels: int | None = Field(default=None, ge=1)

    def load(self, seed: int = 0) -> LabelledText:
        """Splits do not depend on `seed`. Raises ConfigError."""
        place = self.place
        tables = self.tables(instead="cmudict_words")
        classes = class_names(tables["train"], self.columns.label, place)
        parts: dict[str, list[Labelled]] = {}
        for split, table in tables.items():
            name = f"{place}, split {split}"
            texts = strings(column(table, self.columns.text, "text", name), "text", self.columns.text, name)
            if self.columns.label not in table.column_names:
                column(table, self.columns.label, "label", name)
            labels = class_labels(table, self.columns.label, classes, name).tolist()
            if None in texts:
                raise ConfigError([(("data", "columns", "text"), f"row {texts.index(None)} of {name} has no text")])
            parts[split] = [(text or "", label) for text, label in zip(texts, labels, strict=True)]
        train, val, test = hold_out(parts, self.held_out, lambda row: row[0], self.limit)
        check_splits(place, train=train, val=val, test=test)
        content = text_hash(f"{label} {text}" for text, label in (*train, *val, *test))
        chosen = train
        if self.labels is not None:
            chosen = tuple(sorted(train, key=lambda row: seed_of("labelled", row[0]))[: self.labels])
        plain_train, plain_val, plain_test = (tuple(text for text, _ in part) for part in (train, val, test))
        names = tuple(map(str, classes))
        return LabelledText(plain_train, plain_val, plain_test, chosen, val, test, names, place, content)
