"""Baselines of a text: character n-grams and compressors."""

from __future__ import annotations

import math

import pytest

from recipes.language.compressors import compressor_bits
from recipes.language.ngrams import most_orders, naive_ngram_bits, ngram_bits

TRAIN = ("the cat sat on the mat", "a cat is a cat is a cat")
TEST = ("the dog sat!", "a cat\n\tsat")


def test_sorted_counts_equal_the_counts_one_by_one() -> None:
    assert ngram_bits(TRAIN, TEST, 5) == pytest.approx(
        [naive_ngram_bits(TRAIN, TEST, n) for n in range(1, 6)], abs=1e-9
    )


def test_characters_that_train_lacks_cost_a_finite_number_of_bits() -> None:
    bits = ngram_bits(TRAIN, ("\U0001f600 ы",), 3)
    assert all(math.isfinite(value) and value > 3 for value in bits)


def test_an_alphabet_too_large_for_63_bits_leaves_high_orders_out() -> None:
    train = ("".join(chr(0x4E00 + n) for n in range(3000)),)
    assert len(ngram_bits(train, train, 9)) == most_orders(3002) == 5


def test_longer_contexts_help_on_a_text_that_repeats() -> None:
    text = ("abcabdabcabe" * 40,)
    bits = ngram_bits(text, text, 5)
    assert bits == sorted(bits, reverse=True)


def test_compressors_are_measured_in_bits_per_character() -> None:
    text = ("abcdefgh" * 500,)
    bits = compressor_bits(text, text)
    assert set(bits) == {"zlib", "bz2", "xz", "xz after train"}
    assert all(0 < value < 1 for value in bits.values())
    assert bits["xz after train"] < bits["xz"]
    assert compressor_bits(("",), ("",))["zlib"] > 0  # no division by zero
