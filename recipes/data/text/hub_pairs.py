"""`hub_pairs`: source and target texts of the Hugging Face Hub, or of local tables."""

from __future__ import annotations

from recipes.data.text.corpora import Pair, PairData, check_splits, text_hash
from recipes.data.text.hub_tables import HubSource, column, hold_out, strings
from zoo.registry import Config, register

__all__ = ["HubPairs", "PairColumns"]


class PairColumns(Config):
    """Names of the set's columns; dots lead into structs, as in "translation.de"."""

    source: str = "source"
    target: str = "target"


@register("data", "hub_pairs")
class HubPairs(HubSource):
    """Any set of text pairs of the Hugging Face Hub (`id`), or a local copy of it (`path`). Licence: see its card.

    columns: what the set calls source and target. Pairs with an empty side are left out.
    """

    columns: PairColumns = PairColumns()

    def load(self, seed: int = 0) -> PairData:
        """Splits do not depend on `seed`. Raises ConfigError."""
        place = self.place
        parts: dict[str, list[Pair]] = {}
        for split, table in self.tables(instead="cmudict").items():
            sides = []
            for field in ("source", "target"):
                name = getattr(self.columns, field)
                sides.append(strings(column(table, name, field, place), field, name, place))
            parts[split] = [Pair(one, other, (other,)) for one, other in zip(*sides, strict=True) if one and other]
        train, val, test = hold_out(parts, self.held_out, lambda pair: pair.source, self.limit)
        check_splits(place, train=train, val=val, test=test)
        content = text_hash(text for pair in (*train, *val, *test) for text in (pair.source, pair.target))
        return PairData(train, val, test, place, content)
