"""Batches by length: every row once an epoch, similar lengths together, exact resume, any ranks, right counts."""

from __future__ import annotations

import json
import pickle
import random
from typing import Any

import numpy as np
import pytest

from recipes.data.loader import EpochLoader, OrdersEpochs
from recipes.data.text.bucketing import Bucketed
from recipes.data.text.pairs import PairExamples
from recipes.data.text.sequences import Sequences
from zoo.registry import ConfigError


def pairs(count: int, seed: int = 0) -> PairExamples:
    draw = np.random.default_rng(seed)
    source = Sequences.of([draw.integers(5, 30, length) for length in draw.integers(1, 30, count)])
    target = Sequences.of([draw.integers(5, 30, length) for length in draw.integers(1, 20, count)])
    return PairExamples(source, target, start=1, eos=2)


def plain(batch: dict[str, Any]) -> dict[str, Any]:
    return {name: value.tolist() for name, value in batch.items()}


def rows_of(loader: EpochLoader) -> list[list[int]]:
    return [batch["index"].tolist() for batch in loader]


def waste(loader: EpochLoader) -> float:
    """Share of padding in the sources of an epoch."""
    real = padded = 0
    for batch in loader:
        padded += batch["source"].numel()
        real += int(batch["source_mask"].sum()) if "source_mask" in batch else batch["source"].numel()
    return 1 - real / padded


@pytest.mark.parametrize("count", [1, 2, 37, 40, 203])
@pytest.mark.parametrize("settings", [{}, {"pool": 1}, {"pool": 3}, {"tokens": 64}, {"tokens": 5}, {"tokens": 10**6}])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_every_row_comes_once_an_epoch_and_ranks_run_in_step(count: int, settings: dict, ranks: int) -> None:
    if count < ranks:
        with pytest.raises(ConfigError, match=f"{count} examples are too few"):
            EpochLoader(Bucketed(pairs(count), **settings), 8, shuffle=True, seed=1, world_size=ranks)
        return
    loaders = [
        EpochLoader(Bucketed(pairs(count), **settings), 8, shuffle=True, seed=1, rank=rank, world_size=ranks)
        for rank in range(ranks)
    ]
    assert len({len(loader) for loader in loaders}) == 1
    for _ in range(2):
        parts = [rows_of(loader) for loader in loaders]
        assert [len(part) for part in parts] == [len(loaders[0])] * ranks
        assert all(rows for part in parts for rows in part)
        assert sorted(row for part in parts for rows in part for row in rows) == list(range(count))


def test_batches_hold_rows_of_similar_lengths_in_no_order_of_length() -> None:
    examples = pairs(1000)
    plainly = waste(EpochLoader(examples, 16, shuffle=True, seed=0))
    bucketed = EpochLoader(Bucketed(examples), 16, shuffle=True, seed=0)
    assert waste(bucketed) < 0.05 < 0.3 < plainly
    first = [batch["source"].shape[1] for batch in bucketed]
    again = [batch["source"].shape[1] for batch in bucketed]
    assert sorted(first) != first and first != again
    assert abs(np.corrcoef(first, range(len(first)))[0, 1]) < 0.4


def test_a_token_budget_bounds_each_batch() -> None:
    examples = pairs(500)
    longest = examples.lengths.sum(axis=1)
    loader = EpochLoader(Bucketed(examples, tokens=200), 64, shuffle=True, seed=0)
    sizes = set()
    for rows in rows_of(loader):
        assert len(rows) == 1 or len(rows) * max(longest[row] for row in rows) <= 200
        assert len(rows) <= 64
        sizes.add(len(rows))
    assert len(sizes) > 5
    few = EpochLoader(Bucketed(examples, tokens=10**6), 64, shuffle=True, seed=0)
    assert [len(rows) for rows in rows_of(few)].count(64) == 500 // 64


@pytest.mark.parametrize("case", range(24))
def test_resume_anywhere_yields_the_stream_of_an_unbroken_run(case: int) -> None:
    draw = random.Random(case)
    ranks = draw.choice([1, 1, 2, 3])
    settings: dict[str, Any] = {
        "batch_size": draw.randint(1, 9),
        "shuffle": True,
        "seed": draw.randint(0, 9),
        "accumulate": draw.randint(1, 4),
        "rank": draw.randrange(ranks),
        "world_size": ranks,
    }
    bucketed = Bucketed(pairs(draw.randint(30, 50), case), pool=draw.randint(1, 4), tokens=draw.choice([None, 60]))
    loader = EpochLoader(bucketed, **settings)
    whole = [plain(batch) for _ in range(3) for batch in loader]
    steps = len(whole) // 3
    for stop in {draw.randrange(1, 2 * steps), steps}:
        broken = EpochLoader(bucketed, **settings)
        seen: list[Any] = []
        while len(seen) < stop:
            for batch in broken:
                seen.append(plain(batch))
                if len(seen) == stop:
                    break
        resumed = EpochLoader(bucketed, workers=draw.choice([0, 0, 1]), **settings)
        resumed.load_state_dict(json.loads(json.dumps(broken.state_dict())))
        while len(seen) < len(whole):
            seen += [plain(batch) for batch in resumed]
        assert seen == whole


@pytest.mark.parametrize("tokens", [None, 80])
def test_targets_of_a_window_are_those_of_all_its_batches_on_all_ranks(tokens: int | None) -> None:
    bucketed = Bucketed(pairs(77), tokens=tokens, pool=2)
    loaders = [
        EpochLoader(bucketed, 4, shuffle=True, seed=3, accumulate=3, rank=rank, world_size=2) for rank in range(2)
    ]
    parts = [list(loader) for loader in loaders]
    for start in range(0, len(parts[0]), 3):
        window = [batch for part in parts for batch in part[start : start + 3]]
        total = sum(bucketed.targets(batch) for batch in window)
        assert {float(batch["window_targets"]) for batch in window} == {float(total)}


def test_evaluation_is_sorted_by_length_and_says_which_rows() -> None:
    examples = pairs(60)
    loader = EpochLoader(Bucketed(examples), 8, shuffle=False, seed=0)
    rows = [row for batch in rows_of(loader) for row in batch]
    assert sorted(rows) == list(range(60))
    lengths = examples.lengths[rows].tolist()
    assert lengths == sorted(lengths)
    assert rows == [row for batch in rows_of(loader) for row in batch]


def test_a_state_of_another_order_is_refused() -> None:
    examples = pairs(40)
    state = EpochLoader(Bucketed(examples), 8, shuffle=True, seed=0).state_dict()
    for other in (Bucketed(examples, pool=3), Bucketed(examples, tokens=50), Bucketed(pairs(40, seed=5))):
        with pytest.raises(ConfigError, match="cannot resume the data stream: order was"):
            EpochLoader(other, 8, shuffle=True, seed=0).load_state_dict(state)
    plainly = EpochLoader(examples, 8, shuffle=True, seed=0).state_dict()
    with pytest.raises(ConfigError, match="cannot resume the data stream: order was None"):
        EpochLoader(Bucketed(examples), 8, shuffle=True, seed=0).load_state_dict(plainly)


def test_the_rest_of_the_examples_shows_through() -> None:
    examples = pairs(10)
    bucketed = pickle.loads(pickle.dumps(Bucketed(examples)))
    assert isinstance(bucketed, OrdersEpochs)
    assert not isinstance(examples, OrdersEpochs)
    assert bucketed.start == 1 and (bucketed.lengths == examples.lengths).all()
    with pytest.raises(ConfigError, match="pool should be at least 1, got 0"):
        Bucketed(examples, pool=0)
    with pytest.raises(ConfigError, match="tokens should be at least 1, got 0"):
        Bucketed(examples, tokens=0)


def test_short_last_batches_are_dropped_when_asked() -> None:
    loader = EpochLoader(Bucketed(pairs(41)), 8, shuffle=True, seed=0, drop_last=True)
    assert [len(rows) for rows in rows_of(loader)] == [8] * 5
