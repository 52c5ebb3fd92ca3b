"""Span corruption and prefixes: nothing is lost between source and target, and lengths are what is promised."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
import torch

from recipes.data import load_kinds
from recipes.data.loader import EpochLoader
from recipes.data.text.collators import noise_counts, noise_spans, prefix_lm, span_corruption, spans_lengths
from recipes.data.text.draws import Draws
from recipes.data.text.sequences import Sequences
from recipes.data.text.spans import PrefixExamples, SpanExamples
from recipes.data.text.tokenizers import Tokenizer
from zoo.registry import ConfigError, decode

load_kinds()
SENTINELS = tuple(range(100, 130))


def splice(source: Sequence[int], target: Sequence[int], sentinels: Sequence[int]) -> list[int]:
    """The row that source and target were made of: each sentinel of the source stands for what follows it in the
    target. Checks that each is in both exactly once, in the order given."""
    used = [i for i in source if i in sentinels]
    assert used == [i for i in target if i in sentinels] == list(sentinels[: len(used)])
    spans: dict[int, list[int]] = {}
    current: list[int] | None = None
    for i in target:
        if i in sentinels:
            current = spans[i] = []
        else:
            assert current is not None, "the target starts with a sentinel"
            current.append(i)
    assert all(spans.values()), "no span is empty"
    return [token for i in source for token in (spans.get(i, [i]))]


@pytest.mark.parametrize("density", [0.15, 0.55, 0.01, 0.99])
@pytest.mark.parametrize("mean_span", [1.0, 2.0, 3.0, 4.0, 5.0])
def test_splicing_the_target_into_the_source_gives_the_row(density: float, mean_span: float) -> None:
    for length in range(2, 21):
        ids = np.stack([np.arange(10, 10 + length)] * 4)
        generator = torch.Generator().manual_seed(length)
        noise = noise_spans([length] * 4, density, mean_span, generator)
        counted, spans = noise_counts(length, density, mean_span)
        assert (noise.sum(1) == counted).all()
        assert 1 <= counted <= length - 1
        assert (np.diff(noise.astype(int), prepend=0, axis=1) == 1).sum(1).tolist() == [spans] * 4
        source, target = span_corruption(ids, noise, SENTINELS)
        for row in range(4):
            assert splice(source[row].tolist(), target[row].tolist(), SENTINELS) == ids[row].tolist()
        promised = spans_lengths(length, density, mean_span, eos=False)
        assert [set(source.lengths.tolist()), set(target.lengths.tolist())] == [{size} for size in promised]


def test_rows_of_unequal_lengths_get_what_they_get_alone() -> None:
    lengths = np.array([2, 20, 7, 3, 13])
    noise = noise_spans(lengths, 0.4, 2.0, Draws((3,), range(5)))
    for row, length in enumerate(lengths.tolist()):
        alone = noise_spans([length], 0.4, 2.0, Draws((3,), [row]))
        assert (noise[row, :length] == alone[0]).all() and not noise[row, length:].any()


def test_any_noise_splices_also_where_a_row_starts_with_it() -> None:
    ids = np.array([[10, 11, 12, 13, 14]])
    noise = np.array([[True, True, False, False, True]])
    source, target = span_corruption(ids, noise, SENTINELS)
    assert source[0].tolist() == [100, 12, 13, 101]
    assert target[0].tolist() == [100, 10, 11, 101, 14]


def test_counts_are_those_of_t5() -> None:
    # 512 tokens of source: rows of 568 tokens, 85 of them noise in 28 spans, targets of 114 (Raffel et al. 2019)
    assert SpanExamples.row_length(512) == 568
    assert noise_counts(568, 0.15, 3.0) == (85, 28)
    assert spans_lengths(568, 0.15, 3.0, eos=True) == (512, 114)


def test_every_way_to_divide_is_as_likely() -> None:
    noise = noise_spans([6] * 6000, 0.5, 1.5, torch.Generator().manual_seed(0))  # 3 of noise in 2 spans, 3 kept
    kinds, counts = np.unique(noise, axis=0, return_counts=True)
    assert len(kinds) == 4  # 2 ways for the noise, 2 for the kept
    assert np.abs(counts - 1500).max() < 4 * np.sqrt(6000 * 0.25 * 0.75)


@cache
def tokenizer() -> Tokenizer:
    config = {"name": "bytes", "special": ["pad", "eos"], "sentinels": 12}
    return decode("tokenizer", config).train([])


def test_examples_of_unequal_rows_splice_and_count() -> None:
    draw = np.random.default_rng(0)
    lengths = draw.integers(0, 41, 60).tolist()
    rows = Sequences.of([draw.integers(20, 200, length) for length in lengths])
    examples = SpanExamples(rows, tokenizer(), start=0, eos=1)
    assert len(examples) == sum(length >= 2 for length in lengths)
    everything = list(range(len(examples)))
    for key in (None, (0, 0), (0, 1)):
        batch = examples.batch(everything, key)
        assert examples.targets(batch) == examples.count_targets(everything, key)
        for row in everything:
            mask = batch["source_mask"][row]
            source, labels = batch["source"][row][mask].tolist(), batch["labels"][row]
            target = labels[labels != -100].tolist()
            assert (source.pop(), target.pop()) == (1, 1)
            assert splice(source, target, tokenizer().sentinel_ids) == examples.rows[row].tolist()
            read = batch["target"][row].tolist()
            assert read[: len(target) + 1] == [0, *target]
            one = examples.batch([row], key)
            assert one["source"][0].tolist() == batch["source"][row][mask].tolist()
    first, second = (examples.batch(everything, (0, epoch))["labels"] for epoch in (0, 1))
    assert not torch.equal(first, second)


def test_equal_rows_give_equal_lengths_and_no_padding() -> None:
    row = SpanExamples.row_length(64)
    rows = Sequences.of([np.random.default_rng(0).integers(20, 200, 1000)]).chunks(row)
    examples = SpanExamples(rows, tokenizer(), start=0, eos=1)
    for batch in EpochLoader(examples, 5, shuffle=True, seed=0):
        assert set(batch) == {"source", "target", "labels", "index", "window_targets"}
        assert batch["source"].shape[1] == 64
        assert batch["labels"].shape[1] == spans_lengths(row, 0.15, 3.0, eos=True)[1]
        assert (batch["labels"] != -100).all()


def test_prefixes_and_rests_make_the_row() -> None:
    draw = np.random.default_rng(0)
    rows = Sequences.of([draw.integers(20, 200, length) for length in (2, 3, 9, 30, 2)])
    examples = PrefixExamples(rows, tokenizer(), start=0, eos=None)
    for key in (None, (0, 0), (3, 2)):
        batch = examples.batch(range(5), key)
        assert examples.count_targets(range(5), key) == examples.targets(batch)
        for row in range(5):
            source = batch["source"][row][batch["source_mask"][row]].tolist() if "source_mask" in batch else []
            labels = batch["labels"][row]
            rest = labels[labels != -100].tolist()
            assert source and rest
            assert source + rest == rows[row].tolist()
    with pytest.raises(ValueError, match="cut should be from 1 to 2, got 3"):
        prefix_lm(np.arange(3), 3)


def test_too_few_sentinels_are_told_beforehand() -> None:
    few = decode("tokenizer", {"name": "bytes", "sentinels": 1}).train([])
    rows = Sequences.of([np.arange(40)])
    with pytest.raises(ConfigError, match=r"40 tokens have 2 spans, .* got 1, set tokenizer\.sentinels=2"):
        SpanExamples(rows, few, start=0, eos=1)
    with pytest.raises(ConfigError, match="density should be between 0 and 1"):
        SpanExamples(rows, tokenizer(), start=0, eos=1, density=1.0)
    with pytest.raises(ConfigError, match="too short for span corruption"):
        SpanExamples.row_length(2)
