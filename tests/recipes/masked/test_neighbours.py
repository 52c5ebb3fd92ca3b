"""Baselines from neighbours of masked tokens, and hand-made rules, on cases done by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from recipes.data.text.sequences import Sequences
from recipes.masked.neighbours import hidden_only, neighbour_accuracies
from recipes.masked.syllables import rule_accuracies, syllables
from recipes.masked.text_baselines import majority_accuracy, tfidf_accuracy

CLS, SEP, MASK = 1, 2, 3
A, B, C, D, E = 4, 5, 6, 7, 8


def asked(row: list[int], place: int, mask: list[int] | None = None) -> dict[str, torch.Tensor]:
    """A row with one masked token that is to be told; further places of `mask` are masked but not asked."""
    ids = torch.tensor([row])
    labels = torch.full_like(ids, -100)
    labels[0, place] = ids[0, place]
    ids[0, [place, *(mask or [])]] = MASK
    return {"ids": ids, "labels": labels}


TRAIN = Sequences.of([[CLS, *row, SEP] for row in ([A, B, A], [A, B, C], [A, B, C], [A, D, A], [A, D, A], [A, E, A])])


def told(batch: dict[str, torch.Tensor]) -> list[bool]:
    return [bool(value) for value in neighbour_accuracies(TRAIN, 4, [batch]).values()]


def test_each_context_tells_its_most_frequent_token() -> None:
    # After A come B three times, D twice, E once; between A and A, D twice; A is the most frequent of all.
    assert told(asked([CLS, A, B, A, SEP], 2)) == [False, True, False, False]
    assert told(asked([CLS, A, D, A, SEP], 2)) == [False, False, True, True]
    assert told(asked([CLS, A, B, C, SEP], 2)) == [False, True, True, True]
    assert told(asked([CLS, A, B, A, SEP], 1)) == [True, True, True, True]


def test_a_masked_neighbour_is_not_seen_and_a_smaller_context_decides() -> None:
    # The right neighbour is masked: after A comes B.
    assert told(asked([CLS, A, B, C, SEP], 2, [3])) == [False, True, True, True]
    # The left one is masked: before C comes B.
    assert told(asked([CLS, A, B, C, SEP], 2, [1])) == [False, False, True, True]
    # Both: the most frequent token, A.
    assert told(asked([CLS, A, A, C, SEP], 2, [1, 3])) == [True, True, True, True]


def test_neighbours_of_another_row_and_padding_are_beyond_the_end() -> None:
    train = Sequences.of([[A, B], [C, D], [C, D], [E, B]])  # no special tokens: B is never followed by C
    batch = asked([A, B, 0, 0], 1)
    batch["token_mask"] = torch.tensor([[True, True, False, False]])
    assert list(neighbour_accuracies(train, 4, [batch]).values())[2:] == [1.0, 1.0]


def test_special_tokens_are_never_told() -> None:
    found = neighbour_accuracies(TRAIN, 4, [asked([CLS, A, B, A, SEP], 3)])
    assert found["most frequent token"] == 1.0  # A, though cls and sep are as frequent as anything
    assert list(found) == ["most frequent token", "left neighbour", "left + right neighbour", "2 + 2 neighbours"]


def test_syllables_by_rule() -> None:
    plain = {"cat": 1, "table": 2, "make": 2, "walked": 2, "boxes": 2, "hmm": 1, "idea": 2}
    silent = {"cat": 1, "table": 2, "make": 1, "walked": 1, "wanted": 2, "makes": 1, "boxes": 2, "the": 1}
    assert {word: syllables(word, silent=False) for word in plain} == plain
    assert {word: syllables(word, silent=True) for word in silent} == silent
    found = rule_accuracies(["cat", "make", "abababababab"], [0, 0, 4])
    assert list(found.values()) == [pytest.approx(2 / 3), 1.0]


def test_simple_classifiers_learn_what_is_easy_and_take_one_class_only() -> None:
    train = [("aab", 0), ("aba", 0), ("baa", 0), ("xxy", 1), ("yxx", 1)] * 3
    test = [("aaba", 0), ("xyxx", 1), ("yyx", 1)]
    assert majority_accuracy(train, test) == pytest.approx(1 / 3)
    assert tfidf_accuracy(train, test, test, letters=True) == 1.0
    one = [(text, 0) for text, _ in train]
    assert tfidf_accuracy(one, test, test, letters=True) == pytest.approx(1 / 3)
    assert np.isfinite(tfidf_accuracy([("a b", 0), ("c d", 1)], test, test, letters=False))


def test_only_places_shown_as_the_mask_token_are_hidden() -> None:
    batch = {"ids": torch.tensor([[A, MASK, C, MASK]]), "labels": torch.tensor([[B, B, -100, -100]])}
    (found,) = hidden_only([batch], MASK)
    assert found["labels"].tolist() == [[-100, B, -100, -100]]
    assert batch["labels"].tolist() == [[B, B, -100, -100]]
