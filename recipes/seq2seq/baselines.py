"""Simple methods from letters to symbols, and what others reached."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from recipes.data.text.corpora import Pair

__all__ = ["PUBLISHED", "aligned_symbols"]

PUBLISHED: dict[str, dict[str, dict[str, float]]] = {
    "cmudict": {
        f"{name} (from memory, other split)": {"test/per": per, "test/wer": wer}
        for name, per, wer in (
            ("Bisani & Ney 2008", 0.059, 0.245),
            ("Yao & Zweig 2015", 0.055, 0.236),
            ("Yolchuyeva et al. 2019", 0.052, 0.221),
        )
    }
}
"""By data set. Published figures, quoted from memory: joint n-grams, a bidirectional LSTM and a Transformer of 4 + 4
layers, trained to the end on other splits of the same dictionary."""


def aligned_symbols(train: Sequence[Pair], sources: Sequence[str]) -> list[str]:
    """Each letter becomes the symbol that most often stands at its place, in training pairs with as many symbols as
    letters; letters never met there become nothing."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for pair in train:
        symbols = pair.target.split()
        if len(symbols) == len(pair.source):
            for letter, symbol in zip(pair.source, symbols, strict=True):
                counts[letter][symbol] += 1
    # Of symbols that are as frequent the first in the alphabet, so that the order of the pairs plays no part.
    best = {letter: min(found, key=lambda symbol: (-found[symbol], symbol)) for letter, found in counts.items()}
    return [" ".join(best[letter] for letter in source if letter in best) for source in sources]
