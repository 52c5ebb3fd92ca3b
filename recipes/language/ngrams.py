"""Character n-grams with interpolated Witten-Bell smoothing, counted by sorting (Witten & Bell 1991,
doi:10.1109/18.87000; the interpolated form of Chen & Goodman 1998, TR-10-98).

    p_n(c | h) = (N(h c) + U(h) p_{n-1}(c | h')) / (N(h) + U(h)),  h = the n - 1 characters before, h' = h[1:]
    U(h) = number of different characters seen after h;  p_0 = 1 / alphabet
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["most_orders", "naive_ngram_bits", "ngram_bits"]

Codes = NDArray[np.int64]
END = "\x00"
"""Closes each document. Its cost counts, as a model's end-of-text token does."""


def ngram_bits(train: Sequence[str], test: Sequence[str], orders: int = 6) -> list[float]:
    """Bits per character of `test` for the orders 1 .. `orders`; characters that train lacks share one code.

    Documents are closed by an end symbol, whose bits count although it is no character. Orders whose contexts do not
    fit 63 bits are left out (`most_orders`).
    """
    learned, scored = _codes(train, None), _codes(test, set("".join(train)))
    alphabet = sorted(set(learned) | {UNKNOWN})
    number = {symbol: place for place, symbol in enumerate(alphabet)}
    bits = max(1, int(len(alphabet) - 1).bit_length())
    known = np.array([number[symbol] for symbol in learned], dtype=np.int64)
    asked = np.array([number[symbol] for symbol in scored], dtype=np.int64)
    characters = sum(map(len, test))
    chance = np.full(len(asked), 1.0 / len(alphabet))
    found = []
    for order in range(1, min(orders, most_orders(len(alphabet))) + 1):
        chance = _interpolate(known, asked, order, bits, chance)
        found.append(float(-np.log2(chance).sum() / characters))
    return found


UNKNOWN = "\ufffe"


def _codes(documents: Sequence[str], known: set[str] | None) -> str:
    text = END + END.join(documents) + END
    if known is None:
        return text
    strange = set(text) - known - {END}
    return text.translate({ord(symbol): UNKNOWN for symbol in strange}) if strange else text


def most_orders(alphabet: int) -> int:
    """The highest order whose n-grams can be told apart in 63 bits."""
    return 63 // max(1, int(alphabet - 1).bit_length())


def _packed(codes: Codes, length: int, bits: int) -> Codes:
    """The `length` codes that end at each place as one number; places before the start count as the end symbol."""
    total = np.zeros(len(codes), dtype=np.int64)
    for back in range(length):
        moved = codes if back == 0 else np.concatenate([np.zeros(back, dtype=np.int64), codes[:-back]])
        total |= moved << (bits * back)
    return total


def _interpolate(known: Codes, asked: Codes, order: int, bits: int, lower: NDArray[np.float64]) -> NDArray[np.float64]:
    grams, counts = np.unique(_packed(known, order, bits), return_counts=True)  # a gram's context is gram >> bits
    contexts, first, kinds = np.unique(grams >> bits, return_index=True, return_counts=True)
    totals = np.add.reduceat(counts, first)
    wanted = _packed(asked, order, bits)
    seen = _look_up(grams, counts, wanted)
    unique = _look_up(contexts, kinds, wanted >> bits)
    total = _look_up(contexts, totals, wanted >> bits)
    return np.where(total > 0, (seen + unique * lower) / np.maximum(total + unique, 1), lower)


def _look_up(keys: Codes, values: NDArray[np.int64], wanted: Codes) -> NDArray[np.float64]:
    """Values of the wanted keys, 0 where there is none. `keys` are sorted."""
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[place] == wanted, values[place], 0).astype(np.float64)


def naive_ngram_bits(train: Sequence[str], test: Sequence[str], order: int) -> float:
    """The specification of one order, a character at a time."""
    learned, scored = _codes(train, None), _codes(test, set("".join(train)))
    alphabet = len(set(learned) | {UNKNOWN})

    def chance(text: str, place: int, n: int) -> float:
        if n == 0:
            return 1.0 / alphabet
        lower = chance(text, place, n - 1)
        context = (END * n + text[:place])[-(n - 1) :] if n > 1 else ""
        padded = END * (n - 1) + learned
        after = [padded[i + n - 1] for i in range(len(learned)) if padded[i : i + n - 1] == context]
        if not after:
            return lower
        unique = len(set(after))
        return (after.count(text[place]) + unique * lower) / (len(after) + unique)

    bits = sum(-np.log2(chance(scored, place, order)) for place in range(len(scored)))
    return float(bits / sum(map(len, test)))
