"""Packed rows and evaluation windows: every token once, no document asked for the next, the same with any batches."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from recipes.data.loader import CountsTargets, EpochLoader
from recipes.data.text.packing import PackedExamples, WindowExamples
from recipes.data.text.padding import pad
from recipes.data.text.sequences import Sequences
from zoo.registry import ConfigError

BOS, EOS = 1, 2


def documents(*lengths: int) -> Sequences:
    """Documents of different ids throughout, from 10 on."""
    ids = iter(range(10, 10**6))
    return Sequences.of([[next(ids) for _ in range(length)] for length in lengths])


def pairs_of(batch: dict[str, torch.Tensor]) -> Counter[tuple[int, int]]:
    """(input, label) of each scored place."""
    scored = batch["labels"] != -100
    return Counter(zip(batch["ids"][scored].tolist(), batch["labels"][scored].tolist(), strict=True))


def expected(rows: Sequences, bos: int | None, eos: int | None) -> Counter[tuple[int, int]]:
    """Each token with the next one of its own document."""
    found: Counter[tuple[int, int]] = Counter()
    for row in range(len(rows)):
        ids = [i for i in (bos,) if i is not None] + rows[row].tolist() + [i for i in (eos,) if i is not None]
        found.update(itertools.pairwise(ids))
    return found


CASES = [(5, 7), (1, 1, 1), (8, 0, 3, 16, 1), (40,), (3, 3, 3, 3), (7, 9, 2, 5, 30, 4)]


@pytest.mark.parametrize("lengths", CASES)
@pytest.mark.parametrize("marks", [(None, None), (BOS, None), (None, EOS), (BOS, EOS)])
@pytest.mark.parametrize("length", [1, 4, 8, 100])
@pytest.mark.parametrize("shift", [False, True])
def test_each_token_is_told_once_and_by_its_own_document(lengths, marks, length, shift) -> None:
    rows = documents(*lengths)
    bos, eos = marks
    examples = PackedExamples(rows, length, bos=bos, eos=eos, shift=shift, isolate=True)
    everything = list(range(len(examples)))
    for key in (None, (0, 0), (0, 1), (3, 5)):
        batch = examples.batch(everything, key)
        assert pairs_of(batch) == expected(rows, bos, eos)
        assert examples.count_targets(everything, key) == examples.targets(batch)
        for row in everything:
            one = examples.batch([row], key)
            assert torch.equal(one["ids"][0], batch["ids"][row])
            assert torch.equal(one["labels"][0], batch["labels"][row])
            assert torch.equal(one["documents"][0], batch["documents"][row])
            assert examples.count_targets([row], key) == examples.targets(one)
        padded = int((~batch["token_mask"]).sum()) if "token_mask" in batch else 0
        assert padded == -examples.tokens % length
        if padded:
            assert batch["token_mask"][:-1].all()  # the last row alone


def test_documents_of_a_row_are_numbered_and_padding_is_none_of_them() -> None:
    examples = PackedExamples(documents(5, 7), 16, isolate=True, pad=0)
    batch = examples.batch([0], None)
    assert batch["ids"][0].tolist() == [*range(10, 22), 0, 0, 0, 0]
    assert batch["labels"][0].tolist() == [11, 12, 13, 14, -100, 16, 17, 18, 19, 20, 21, -100, -100, -100, -100, -100]
    assert batch["documents"][0].tolist() == [0] * 5 + [1] * 7 + [2] * 4
    assert batch["token_mask"][0].tolist() == [True] * 12 + [False] * 4
    assert {name: value.dtype for name, value in batch.items()} == {
        "ids": torch.int64,
        "labels": torch.int64,
        "documents": torch.int64,
        "token_mask": torch.bool,
    }


def test_full_rows_have_no_mask_and_documents_only_when_isolated() -> None:
    assert set(PackedExamples(documents(8, 8), 4).batch([0, 1], None)) == {"ids", "labels"}
    assert set(PackedExamples(documents(8, 8), 4, isolate=True).batch([3], None)) == {"ids", "labels", "documents"}


def test_a_shift_cuts_elsewhere_in_each_epoch_and_never_in_evaluation() -> None:
    examples = PackedExamples(documents(100), 8, shift=True)
    first = [examples.batch([0], key)["ids"][0, 0].item() for key in ((0, 0), (0, 1), (0, 2), (1, 0))]
    assert len(set(first)) > 1
    assert examples.batch([0], None)["ids"][0, 0] == 10
    assert first[0] == examples.batch([0], (0, 0))["ids"][0, 0]


def test_labels_of_an_epoch_add_up_through_the_loader() -> None:
    examples = PackedExamples(documents(7, 9, 2, 5, 30, 4), 8, bos=BOS, shift=True)
    assert isinstance(examples, CountsTargets)
    found: Counter[tuple[int, int]] = Counter()
    for batch in EpochLoader(examples, 2, shuffle=True, seed=0, accumulate=2):
        found += pairs_of(batch)
    assert found == expected(documents(7, 9, 2, 5, 30, 4), BOS, None)


@pytest.mark.parametrize("lengths", CASES)
@pytest.mark.parametrize("marks", [(None, None), (BOS, EOS)])
@pytest.mark.parametrize(("length", "context"), [(1, 0), (4, 0), (4, 3), (8, 4), (8, 6), (64, 32)])
def test_windows_score_each_token_once_behind_their_context(lengths, marks, length, context) -> None:
    rows = documents(*lengths)
    bos, eos = marks
    examples = WindowExamples(rows, length, context=context, bos=bos, eos=eos)
    found: Counter[tuple[int, int]] = Counter()
    seen: Counter[int] = Counter()
    for index in range(len(examples)):
        batch = examples.batch([index], None)
        assert examples.count_targets([index], None) == examples.targets(batch) > 0
        assert batch["ids"].shape[1] == examples.lengths[index] <= length
        assert "token_mask" not in batch
        found += pairs_of(batch)
        place = int((batch["labels"][0] != -100).nonzero()[0, 0])
        assert (batch["labels"][0, place:] != -100).all()
        ids = batch["ids"][0].tolist()
        assert ids == list(range(ids[0], ids[0] + len(ids))) or bos is not None or eos is not None  # one document
        seen[place] += 1
    assert found == expected(rows, bos, eos)
    assert set(seen) <= {0, context}
    many = examples.batch(range(len(examples)), None)
    assert pairs_of(many) == found
    assert ("token_mask" in many) == (len(set(examples.lengths.tolist())) > 1)


def test_side_by_side_windows_have_all_left_context_there_is() -> None:
    batch = WindowExamples(documents(9), 4).batch([0, 1], None)
    assert batch["ids"].tolist() == [[10, 11, 12, 13], [14, 15, 16, 17]]
    assert batch["labels"].tolist() == [[11, 12, 13, 14], [15, 16, 17, 18]]
    behind = WindowExamples(documents(9), 4, context=2).batch([0, 1], None)
    assert behind["ids"].tolist() == [[10, 11, 12, 13], [12, 13, 14, 15]]
    assert behind["labels"].tolist() == [[11, 12, 13, 14], [-100, -100, 15, 16]]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"length": 0}, "length should be at least 1, got 0"),
        ({"length": 4, "context": 4}, "context should be from 0 to below the length 4, got 4"),
    ],
)
def test_windows_that_cannot_be_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        WindowExamples(documents(5), **settings)


def test_padding_and_its_mask() -> None:
    ids, mask = pad([[1, 2, 3], [], [4]], 9)
    assert ids.tolist() == [[1, 2, 3], [9, 9, 9], [4, 9, 9]]
    assert mask is not None and mask.tolist() == [[True] * 3, [False] * 3, [True, False, False]]
    assert ids.dtype == torch.int64 and mask.dtype == torch.bool
    ids, mask = pad([[1, 2], [3, 4]], 0)
    assert mask is None
    ids, mask = pad([[1, 2], [3, 4]], 0, multiple=4)
    assert ids.tolist() == [[1, 2, 0, 0], [3, 4, 0, 0]]
    assert mask is not None and mask.tolist() == [[True, True, False, False]] * 2
    assert pad([], 0)[0].shape == (0, 0)


def test_sequences_frame_cut_and_join() -> None:
    rows = Sequences.of([[5, 6, 7], [], [8]])
    assert [row.tolist() for row in map(rows.framed(1, 2).__getitem__, range(3))] == [
        [1, 5, 6, 7, 2],
        [1, 2],
        [1, 8, 2],
    ]
    assert [row.tolist() for row in map(rows.framed(1, 2, 3).__getitem__, range(3))] == [[1, 5, 2], [1, 2], [1, 8, 2]]
    assert [row.tolist() for row in map(rows.chunks(3).__getitem__, range(2))] == [[5, 6, 7], [6, 7, 8]]
    assert rows.chunks(9)[0].tolist() == [5, 6, 7, 8]
    assert len(Sequences.of([]).chunks(3)) == 0
    joined = Sequences.join([rows, rows])
    assert joined.lengths.tolist() == [3, 0, 1] * 2 and joined[-1].tolist() == [8]
    assert len(Sequences.join([])) == 0
    assert np.array_equal(rows.lengths_of(np.array([2, 0])), [1, 3])
    with pytest.raises(IndexError):
        rows[3]
