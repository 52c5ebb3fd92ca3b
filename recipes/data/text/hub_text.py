"""`hub_text`: documents of the Hugging Face Hub, of tables on the disk, or of plain text files."""

from __future__ import annotations

import re
from collections.abc import Iterable

from recipes.data.hub import chosen_splits
from recipes.data.text.corpora import TextData, check_splits, text_hash
from recipes.data.text.hub_tables import HubSource, column, hold_out, strings
from recipes.data.text.text_files import Unit, is_text, read_text_files
from zoo.registry import Config, register

__all__ = ["HubText", "TextColumns"]

HEADING = re.compile(r"\s*= [^=].*[^=] =\s*")  # " = Title = ", and no subheading " = = Part = = "


class TextColumns(Config):
    """Names of the set's columns; dots lead into structs."""

    text: str = "text"


@register("data", "hub_text")
class HubText(HubSource):
    """Any text of the Hugging Face Hub (`id`), or of local files (`path`; also txt, text, md). Licence: see its card.

    columns: what the set calls its text. articles: rows are lines, as in wikitext, and are joined into articles, which
    begin at a line " = Title = ". unit: what is a document in a plain text file. Empty texts are left out.
    """

    columns: TextColumns = TextColumns()
    articles: bool = False
    unit: Unit = "document"

    def load(self, seed: int = 0) -> TextData:
        """Splits do not depend on `seed`. Raises ConfigError."""
        source = self.place
        if self.path is not None and is_text(self.path):
            found = read_text_files(self.path, self.splits, self.unit)
            parts = {split: found[name] for split, name in chosen_splits(found, self.splits, source).items()}
        else:
            name = self.columns.text
            parts = {
                split: [text for text in strings(column(table, name, "text", source), "text", name, source) if text]
                for split, table in self.tables(instead="kjv").items()
            }
        if self.articles:
            parts = {split: _articles(lines) for split, lines in parts.items()}
        train, val, test = hold_out(parts, self.held_out, str, self.limit)
        check_splits(f"{source} (of few documents, data.unit=paragraph makes more)", train=train, val=val, test=test)
        return TextData(train, val, test, source, text_hash((*train, *val, *test)))


def _articles(lines: Iterable[str]) -> list[str]:
    found: list[list[str]] = []
    for line in lines:
        if not found or HEADING.fullmatch(line):
            found.append([])
        found[-1].append(line if line.endswith("\n") else line + "\n")
    return ["".join(parts) for parts in found]
