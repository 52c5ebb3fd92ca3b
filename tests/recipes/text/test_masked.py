"""Masked language modelling: what is a target, what it becomes, and on what that depends."""

from __future__ import annotations

import itertools
import math
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from recipes.data import load_kinds
from recipes.data.loader import EpochLoader
from recipes.data.text.collators import causal_lm, masked_lm
from recipes.data.text.draws import Draws
from recipes.data.text.masked import MaskedExamples
from recipes.data.text.sequences import Sequences
from recipes.data.text.tokenizers import Tokenizer
from zoo.registry import ConfigError, decode

load_kinds()
SPECIAL = ("pad", "cls", "sep", "mask", "unk")


@cache
def letters() -> Tokenizer:
    return decode("tokenizer", {"name": "characters", "special": SPECIAL}).train(["abcdefghijklmnopqrstuvwxyz "])


def rows(count: int = 400) -> Sequences:
    draw = np.random.default_rng(0)
    words = ["".join(map(chr, draw.integers(97, 123, draw.integers(3, 40)))) for _ in range(count)]
    return letters().sequences(words)


def unchanged(examples: MaskedExamples, indices: list[int]) -> torch.Tensor:
    return torch.from_numpy(examples.rows.batch(np.array(indices), 0)[0])


def test_at_probability_one_every_ordinary_token_is_a_target_and_nothing_else() -> None:
    examples = MaskedExamples(letters().sequences(["abc", "abcdefghij"]), letters(), 1.0)
    for key in (None, (0, 0), (1, 4)):
        batch = examples.batch([0, 1], key)
        original = unchanged(examples, [0, 1])
        ordinary = ~letters().is_special[original]
        assert torch.equal(batch["labels"] != -100, ordinary)
        assert torch.equal(batch["labels"][ordinary], original[ordinary])
        assert torch.equal(batch["ids"][~ordinary], original[~ordinary])
        assert batch["token_mask"].tolist() == [[True] * 5 + [False] * 7, [True] * 12]
        assert examples.targets(batch) == examples.count_targets([0, 1], key) == 13


@pytest.mark.parametrize("shares", [(0.8, 0.1), (1.0, 0.0), (0.0, 1.0), (0.0, 0.0), (0.5, 0.5)])
@pytest.mark.parametrize("probability", [0.15, 0.4])
def test_shares_lie_within_their_binomial_bounds(shares: tuple[float, float], probability: float) -> None:
    tokenizer = letters()
    examples = MaskedExamples(rows(1000), tokenizer, probability, mask=shares[0], random=shares[1])
    batch = examples.batch(range(1000), (0, 0))
    original = unchanged(examples, list(range(1000)))
    ordinary, target = ~tokenizer.is_special[original], batch["labels"] != -100
    assert ordinary.sum() > 10_000
    assert not (target & ~ordinary).any()
    assert torch.equal(batch["labels"][target], original[target])
    assert torch.equal(batch["ids"][~target], original[~target])

    def check(hits: int, of: int, share: float) -> None:
        assert abs(hits - share * of) <= 4 * math.sqrt(of * share * (1 - share)) + 1e-9

    count = int(target.sum())
    check(count, int(ordinary.sum()), probability)
    masked = batch["ids"][target] == tokenizer.mask_id
    check(int(masked.sum()), count, shares[0])
    swapped = ~masked & (batch["ids"][target] != original[target])
    drawn = len(tokenizer.random_ids)
    check(int(swapped.sum()), count, shares[1] * (1 - 1 / drawn))  # a random token may be the same one
    assert set(batch["ids"][target][~masked].tolist()) <= set(tokenizer.random_ids.tolist())
    if shares[1] == 1.0:
        assert set(batch["ids"][target].tolist()) == set(tokenizer.random_ids.tolist())


def test_masks_of_a_row_depend_on_seed_epoch_and_row_alone() -> None:
    examples = MaskedExamples(rows(), letters(), 0.3)
    whole = examples.batch(range(400), (0, 0))
    some = examples.batch([7, 399, 20], (0, 0))
    width = some["ids"].shape[1]
    assert torch.equal(some["ids"], whole["ids"][[7, 399, 20], :width])
    assert torch.equal(some["labels"], whole["labels"][[7, 399, 20], :width])
    for other in ((0, 1), (1, 0), None):
        assert not torch.equal(examples.batch(range(400), other)["labels"], whole["labels"])
    assert torch.equal(examples.batch(range(9), None)["ids"], examples.batch(range(9), None)["ids"])


def test_whole_words_are_targets_or_not() -> None:
    tokenizer = decode("tokenizer", {"name": "characters", "special": SPECIAL}).train(["abcdefghij ,"])
    texts = [f"abc, {'de' * k} fghij, ab" for k in range(1, 300)]
    examples = MaskedExamples(tokenizer.sequences(texts), tokenizer, 0.3, whole_word=True)
    batch = examples.batch(range(len(texts)), (0, 0))
    target = batch["labels"] != -100
    share = []
    for row in range(len(texts)):
        ids = examples.rows[row]
        begins = [*np.flatnonzero(tokenizer.starts_words(ids)).tolist(), len(ids)]
        for start, stop in itertools.pairwise(begins):
            hit = target[row, start:stop]
            if not tokenizer.is_special[int(ids[start])]:
                assert hit.all() or not hit.any()
                share.append(bool(hit.any()))
            else:
                assert not hit.any()
    assert abs(sum(share) - 0.3 * len(share)) < 4 * math.sqrt(0.21 * len(share))
    assert examples.count_targets(range(50), (2, 1)) == examples.targets(examples.batch(range(50), (2, 1)))


@pytest.mark.parametrize("probability", [0.15, 1.0])
def test_counts_are_those_of_the_batches(probability: float) -> None:
    examples = MaskedExamples(rows(), letters(), probability)
    for key in ((0, 0), (0, 1), None):
        for indices in ([3], [5, 1, 300], list(range(400))):
            assert examples.count_targets(indices, key) == examples.targets(examples.batch(indices, key))
    loader = EpochLoader(examples, 32, shuffle=True, seed=0, accumulate=4)
    window = list(loader)[:4]
    assert window[0]["window_targets"] == sum(examples.targets(batch) for batch in window)


def test_the_pure_function_takes_a_generator_and_leaves_its_input_alone() -> None:
    tokenizer = letters()
    ids = np.array([[1, *tokenizer.encode("hello"), 2, 0, 0]])
    before = ids.copy()
    real = ids != 0
    first, again = (
        masked_lm(ids, tokenizer, 0.5, generator=torch.Generator().manual_seed(4), real=real) for _ in range(2)
    )
    assert np.array_equal(first[0], again[0]) and np.array_equal(first[1], again[1])
    assert np.array_equal(ids, before)
    whole = masked_lm(ids, tokenizer, 1.0, generator=torch.Generator().manual_seed(0), real=real, whole_word=True)
    assert (whole[1] != -100).tolist() == [[False] + [True] * 5 + [False] * 3]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"probability": 0.0}, "probability should be above 0 and at most 1, got 0"),
        (
            {"mask": 0.9, "random": 0.2},
            "mask and random should be at least 0 and at most 1 together, got 0.9, 0.2",
        ),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MaskedExamples(rows(3), letters(), **settings)
    bare = decode("tokenizer", "bytes").train([])
    with pytest.raises(ConfigError, match="needs a tokenizer with 'mask'"):
        MaskedExamples(rows(3), bare)


def test_rows_are_cut_to_the_limit_with_their_ends() -> None:
    examples = MaskedExamples(letters().sequences(["abcdefghij"]), letters(), 0.15, limit=6)
    ids = examples.rows[0].tolist()
    assert len(ids) == 6 and ids[0] == letters().cls_id and ids[-1] == letters().sep_id


def test_causal_labels_are_the_next_tokens() -> None:
    ids = np.array([[5, 6, 7], [8, 9, 0]])
    inputs, labels = causal_lm(ids, ids != 0)
    assert inputs.tolist() == [[5, 6], [8, 9]]
    assert labels.tolist() == [[6, 7], [9, -100]]


def test_draws_are_uniform_and_without_patterns() -> None:
    draws = Draws((3, 1), np.arange(2000))
    values = draws.uniform("a", 50)
    assert values.min() >= 0 and values.max() < 1
    assert abs(values.mean() - 0.5) < 4 * math.sqrt(1 / 12 / values.size)
    counts = np.histogram(values, bins=20, range=(0, 1))[0]
    assert np.abs(counts - values.size / 20).max() < 5 * math.sqrt(values.size / 20)
    for other in (draws.uniform("b", 50), np.roll(values, 1, axis=0), np.roll(values, 1, axis=1)):
        assert abs(np.corrcoef(values.ravel(), other.ravel())[0, 1]) < 4 / math.sqrt(values.size)
    assert np.array_equal(draws[np.array([7, 3])].uniform("a", 20), values[[7, 3], :20])
