"""Pairs and labelled rows as batches."""

from __future__ import annotations

import pytest
import torch

from recipes.data.loader import EpochLoader
from recipes.data.text.labelled import LabelledExamples
from recipes.data.text.pairs import PairExamples
from recipes.data.text.sequences import Sequences
from zoo.registry import ConfigError

SOURCE = Sequences.of([[5, 6, 7], [8], [9, 10]])
TARGET = Sequences.of([[15], [16, 17], [18, 19]])


def test_the_decoder_reads_its_labels_one_place_later() -> None:
    examples = PairExamples(SOURCE, TARGET, start=1, eos=2)
    batch = examples.batch([0, 1], None)
    assert batch["source"].tolist() == [[5, 6, 7], [8, 0, 0]]
    assert batch["source_mask"].tolist() == [[True, True, True], [True, False, False]]
    assert batch["target"].tolist() == [[1, 15, 2], [1, 16, 17]]
    assert batch["labels"].tolist() == [[15, 2, -100], [16, 17, 2]]
    assert all(batch[name].dtype == torch.int64 for name in ("source", "target", "labels"))
    assert examples.targets(batch) == examples.count_targets([0, 1], None) == 5


def test_no_mask_without_padding_and_ends_where_asked_for() -> None:
    examples = PairExamples(SOURCE, TARGET, start=0, eos=2, source_eos=2)
    batch = examples.batch([2, 2], None)
    assert set(batch) == {"source", "target", "labels"}
    assert batch["source"].tolist() == [[9, 10, 2]] * 2
    assert PairExamples(SOURCE, TARGET, start=0, eos=None).batch([2], None)["labels"].tolist() == [[18, 19]]
    cut = PairExamples(SOURCE, TARGET, start=0, eos=2, limit=2)
    assert cut.batch([0, 2], None)["source"].tolist() == [[5, 6], [9, 10]]
    assert cut.batch([0, 2], None)["labels"].tolist() == [[15, 2], [18, 2]]
    assert examples.lengths.tolist() == [[4, 2], [2, 3], [3, 3]]


def test_targets_of_a_window_are_counted_without_reading_ahead() -> None:
    examples = PairExamples(SOURCE, TARGET, start=0, eos=2)
    batches = list(EpochLoader(examples, 1, shuffle=True, seed=0, accumulate=3))
    assert {float(batch["window_targets"]) for batch in batches} == {8.0}


def test_pairs_that_do_not_match_are_refused() -> None:
    with pytest.raises(ConfigError, match="as many targets as sources, got 3 sources, 1 targets"):
        PairExamples(SOURCE, Sequences.of([[1]]), start=0, eos=2)
    with pytest.raises(ConfigError, match="the source of pair 1 is empty"):
        PairExamples(Sequences.of([[1], []]), Sequences.of([[1], [2]]), start=0, eos=2)


def test_labelled_rows() -> None:
    examples = LabelledExamples(SOURCE, [2, 0, 1], cls=1, sep=2)
    batch = examples.batch([1, 0], None)
    assert batch["ids"].tolist() == [[1, 8, 2, 0, 0], [1, 5, 6, 7, 2]]
    assert batch["token_mask"].tolist() == [[True] * 3 + [False] * 2, [True] * 5]
    assert batch["label"].tolist() == [0, 2]
    assert examples.targets(batch) == examples.count_targets([1, 0], None) == 2
    assert "token_mask" not in examples.batch([2], None)
    with pytest.raises(ConfigError, match="as many labels as rows, got 3 rows, 1 labels"):
        LabelledExamples(SOURCE, [1])
