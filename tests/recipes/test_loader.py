"""The loader: order, ranks, exact resume, and target counts per optimizer step."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from itertools import islice

import pytest
import torch
from torch import Tensor

from recipes.data.loader import EpochLoader
from zoo.registry import ConfigError


class Rows:
    """Numbered rows; row i has i % 5 targets, and its augmented value depends on (seed, epoch, i)."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def batch(self, indices: Sequence[int], key: tuple[int, ...] | None) -> dict[str, Tensor]:
        value = [index + (1000 * key[1] + 10**6 * key[0] if key else 0) for index in indices]
        return {"value": torch.tensor(value), "counts": torch.tensor([index % 5 for index in indices])}

    def targets(self, batch: dict[str, Tensor]) -> int:
        return int(batch["counts"].sum())


class CountedRows(Rows):
    """The same rows, which know their targets beforehand."""

    def count_targets(self, indices: Sequence[int], key: tuple[int, ...] | None) -> int:
        return sum(index % 5 for index in indices)


class Broken(Rows):
    def batch(self, indices: Sequence[int], key: tuple[int, ...] | None) -> dict[str, Tensor]:
        if 3 in indices:
            raise ConfigError("cat.png: is a broken image")
        return super().batch(indices, key)


def plain(batch: dict[str, Tensor]) -> dict[str, list[float] | float]:
    return {name: value.tolist() for name, value in batch.items()}


def epochs(loader: EpochLoader, count: int) -> list[dict]:
    """Batches of some epochs, taken as Lightning takes them: len(loader) from each iterator, never exhausting it."""
    stream = []
    for _ in range(count):
        batches, taken = iter(loader), loader.position % len(loader)
        stream += [plain(next(batches)) for _ in range(len(loader) - taken)]
    return stream


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("batch_size", [1, 3, 8, 10])
@pytest.mark.parametrize("size", [40, 37])
def test_every_row_comes_once_an_epoch_and_ranks_run_in_step(size: int, batch_size: int, ranks: int) -> None:
    loaders = [
        EpochLoader(Rows(size), batch_size, shuffle=True, seed=1, rank=rank, world_size=ranks) for rank in range(ranks)
    ]
    assert len({len(loader) for loader in loaders}) == 1
    for _ in range(2):
        batches = [list(loader) for loader in loaders]
        assert [len(part) for part in batches] == [len(loaders[0])] * ranks
        assert all(len(batch["index"]) for part in batches for batch in part)
        ids = [index for part in batches for batch in part for index in batch["index"].tolist()]
        assert sorted(ids) == list(range(size))


def test_rank_batches_are_parts_of_the_global_batch() -> None:
    whole = [batch["index"].tolist() for batch in EpochLoader(Rows(40), 12, shuffle=True, seed=3)]
    parts = [list(EpochLoader(Rows(40), 4, shuffle=True, seed=3, rank=rank, world_size=3)) for rank in range(3)]
    joined = [[index for part in step for index in part["index"].tolist()] for step in zip(*parts, strict=True)]
    assert joined == whole


def test_drop_last_keeps_every_batch_full() -> None:
    loader = EpochLoader(Rows(41), 8, shuffle=True, seed=0, drop_last=True)
    assert [len(batch["index"]) for batch in loader] == [8] * 5
    assert len(loader) == 5


def test_order_is_drawn_from_seed_and_epoch_alone() -> None:
    def order(seed: int, epoch: int) -> list[float]:
        torch.manual_seed(random.randrange(1000))
        return epochs(EpochLoader(Rows(40), 40, shuffle=True, seed=seed), epoch + 1)[-1]["index"]

    assert order(0, 0) == order(0, 0)
    assert order(0, 1) == order(0, 1)
    assert len({tuple(order(seed, epoch)) for seed in (0, 1) for epoch in (0, 1)}) == 4


def test_evaluation_is_in_order_plain_and_starts_anew_each_time() -> None:
    loader = EpochLoader(Rows(10), 4, shuffle=False, seed=0)
    next(iter(loader))  # such as a trainer's sanity check
    for _ in range(2):
        assert [value for batch in loader for value in batch["value"].tolist()] == list(range(10))


@pytest.mark.parametrize("case", range(30))
def test_resume_anywhere_yields_the_stream_of_an_unbroken_run(case: int) -> None:
    draw = random.Random(case)
    ranks = draw.choice([1, 1, 2, 3])
    settings: dict = {
        "batch_size": draw.randint(1, 9),
        "shuffle": True,
        "seed": draw.randint(0, 9),
        "accumulate": draw.randint(1, 4),
        "drop_last": draw.random() < 0.3,
        "rank": draw.randrange(ranks),
        "world_size": ranks,
    }
    rows = draw.choice([Rows, CountedRows])(draw.randint(30, 50))
    whole = epochs(EpochLoader(rows, **settings), 4)
    steps = len(whole) // 4
    for stop in {draw.randrange(3 * steps), steps, 2 * steps, 2 * steps - 1}:
        loader = EpochLoader(rows, **settings)
        seen = []
        while len(seen) < stop:
            for batch in loader:
                seen.append(plain(batch))
                if len(seen) in (stop, steps, 2 * steps):  # Lightning leaves the iterator at the end of an epoch
                    break
        state = json.loads(json.dumps(loader.state_dict()))
        resumed = EpochLoader(rows, **settings)
        resumed.load_state_dict(state)
        left = -(-(len(whole) - stop) // steps)
        assert seen == whole[:stop]
        assert epochs(resumed, left) == whole[stop:]


def test_forty_rows_stopped_after_7_and_20_come_exactly_once() -> None:
    for workers in (0, 2):
        for stop in (7, 20):
            loader = EpochLoader(Rows(40), 1, shuffle=True, seed=5, workers=workers)
            seen = [batch["index"].item() for batch in islice(loader, stop)]
            resumed = EpochLoader(Rows(40), 1, shuffle=True, seed=5)
            resumed.load_state_dict(loader.state_dict())
            seen += [batch["index"].item() for batch in resumed]
            assert sorted(seen) == list(range(40))


def test_stream_and_resume_do_not_depend_on_the_number_of_workers() -> None:
    settings: dict = {"batch_size": 7, "shuffle": True, "seed": 2, "accumulate": 2}
    whole = epochs(EpochLoader(Rows(40), **settings), 3)
    assert epochs(EpochLoader(Rows(40), workers=2, **settings), 3) == whole
    for before, after in ((0, 2), (2, 0), (2, 1)):
        first = EpochLoader(Rows(40), workers=before, **settings)
        batches = iter(first)
        seen = [plain(next(batches)) for _ in range(3)]
        second = EpochLoader(Rows(40), workers=after, **settings)
        second.load_state_dict(first.state_dict())
        assert seen + epochs(second, 3) == whole


@pytest.mark.parametrize("workers", [0, 1])
def test_loading_leaves_the_global_random_stream_alone(workers: int) -> None:
    before = torch.get_rng_state()
    epochs(EpochLoader(Rows(20), 5, shuffle=True, seed=0, workers=workers), 2)
    assert torch.equal(torch.get_rng_state(), before)


def test_breaking_off_an_epoch_goes_on_where_it_was() -> None:
    loader = EpochLoader(Rows(20), 5, shuffle=True, seed=0)
    whole = epochs(EpochLoader(Rows(20), 5, shuffle=True, seed=0), 2)
    seen = [plain(batch) for _ in range(6) for batch in islice(loader, 1)]
    assert seen == whole[:6]


def test_state_of_other_settings_is_refused() -> None:
    state = EpochLoader(Rows(20), 5, shuffle=True, seed=0).state_dict()
    with pytest.raises(ConfigError, match="batch_size was 5, now 4"):
        EpochLoader(Rows(20), 4, shuffle=True, seed=0).load_state_dict(state)
    with pytest.raises(ConfigError, match="examples was 20, now 21"):
        EpochLoader(Rows(21), 5, shuffle=True, seed=0).load_state_dict(state)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 0}, "batch_size should be at least 1, got 0"),
        ({"accumulate": 0}, "accumulate should be at least 1, got 0"),
        ({"workers": -1}, "workers should be at least 0, got -1"),
        ({"rank": 2, "world_size": 2}, "rank should be below world_size = 2, got 2"),
        ({"batch_size": 9, "drop_last": True}, "8 examples are too few"),
        ({"world_size": 9}, "8 examples are too few"),
    ],
)
def test_settings_without_a_batch_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EpochLoader(Rows(8), **({"batch_size": 2, "shuffle": True, "seed": 0} | settings))


def test_empty_evaluation_split_has_no_batches() -> None:
    assert list(EpochLoader(Rows(0), 4, shuffle=False, seed=0)) == []


def test_error_in_a_worker_arrives_as_its_one_line() -> None:
    with pytest.raises(ConfigError) as caught:
        list(EpochLoader(Broken(8), 2, shuffle=False, seed=0, workers=1))
    assert str(caught.value) == "cat.png: is a broken image"


@pytest.mark.parametrize("rows", [Rows, CountedRows])
@pytest.mark.parametrize("ranks", [1, 2])
def test_window_targets_count_the_whole_step(rows: type[Rows], ranks: int) -> None:
    # 6 batches, accumulate 4: windows of 4 and of 2
    loaders = [
        EpochLoader(rows(12 * ranks), 2, shuffle=True, seed=0, accumulate=4, rank=rank, world_size=ranks)
        for rank in range(ranks)
    ]
    batches = [list(loader) for loader in loaders]
    for window in (slice(0, 4), slice(4, 6)):
        total = sum(int(batch["counts"].sum()) for part in batches for batch in part[window])
        for part in batches:
            assert [batch["window_targets"].item() for batch in part[window]] == [total] * len(part[window])
    assert batches[0][0]["window_targets"].dtype == torch.float64
    assert batches[0][0]["window_targets"].shape == ()


class Ragged:
    """Sequences of vectors with a target each, `lengths` long; padded in a batch."""

    def __init__(self, lengths: Sequence[int]) -> None:
        draws = torch.Generator().manual_seed(0)
        self.inputs = [torch.randn(length, 4, generator=draws, dtype=torch.float64) for length in lengths]
        self.outputs = [torch.randn(length, generator=draws, dtype=torch.float64) for length in lengths]

    def __len__(self) -> int:
        return len(self.inputs)

    def batch(self, indices: Sequence[int], key: tuple[int, ...] | None) -> dict[str, Tensor]:
        return {
            "input": torch.cat([self.inputs[index] for index in indices]),
            "output": torch.cat([self.outputs[index] for index in indices]),
        }

    def targets(self, batch: dict[str, Tensor]) -> int:
        return len(batch["output"])


def step_gradients(examples: Ragged, batch_size: int, accumulate: int, ranks: int) -> list[Tensor]:
    """Gradient of each optimizer step of an epoch, the way Lightning and DDP make it: micro-batch losses are divided by
    `accumulate`, also in a short last window, and gradients are averaged over ranks."""
    weight = torch.linspace(-1, 1, 4, dtype=torch.float64).requires_grad_()
    loaders = [
        EpochLoader(examples, batch_size, shuffle=True, seed=0, accumulate=accumulate, rank=rank, world_size=ranks)
        for rank in range(ranks)
    ]
    gradients, pending = [], torch.zeros(4, dtype=torch.float64)
    for step, batches in enumerate(zip(*loaders, strict=True)):
        for batch in batches:
            loss_sum = ((batch["input"] @ weight - batch["output"]) ** 2).sum()
            loss = loss_sum / batch["window_targets"] * accumulate * ranks
            pending += torch.autograd.grad(loss, weight)[0] / accumulate / ranks
        if (step + 1) % accumulate == 0 or step + 1 == len(loaders[0]):
            gradients.append(pending)
            pending = torch.zeros(4, dtype=torch.float64)
    return gradients


@pytest.mark.parametrize(
    ("lengths", "batch_size", "accumulate", "ranks"),
    [
        ([3, 9], 1, 2, 1),
        ([5, 1, 8, 2, 2, 7], 1, 4, 1),  # a short last window
        ([3, 9, 1, 4, 6, 6, 2, 5], 1, 2, 2),
        ([3, 9, 1, 4, 6, 6, 2, 5, 5, 1, 1, 7], 2, 2, 2),
    ],
)
def test_accumulated_gradient_equals_that_of_the_big_batch(
    lengths: list[int], batch_size: int, accumulate: int, ranks: int
) -> None:
    examples = Ragged(lengths)
    got = step_gradients(examples, batch_size, accumulate, ranks)
    expected = step_gradients(examples, batch_size * accumulate * ranks, 1, 1)
    assert len(got) == len(expected)
    for ours, big in zip(got, expected, strict=True):
        torch.testing.assert_close(ours, big, rtol=0, atol=1e-10)


def test_mean_loss_of_a_window_weighs_targets_not_micro_batches() -> None:
    loader = EpochLoader(Ragged([3, 9]), 1, shuffle=False, seed=0, accumulate=2)
    per_target = {3: 1.0, 9: 2.0}
    mean = sum(
        per_target[len(batch["output"])] * len(batch["output"]) / batch["window_targets"].item() for batch in loader
    )
    assert mean == pytest.approx(1.75)


class OrderedRows(CountedRows):
    """Rows that want to be taken backwards in batches of 3, 1, 3, 1 ..., which come in an order of the epoch's."""

    order_identity = 7

    def epoch_bounds(self, size: int, ranks: int) -> list[tuple[int, int]]:
        return [(start + low, start + high) for start in range(0, self.size, 4) for low, high in ((0, 3), (3, 4))]

    def epoch_order(self, key: tuple[int, ...] | None, bounds: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
        batches = list(range(len(bounds)))
        if key is not None:
            random.Random(str(key)).shuffle(batches)
        return list(range(self.size))[::-1], batches


def test_examples_may_order_the_epochs_themselves() -> None:
    loader = EpochLoader(OrderedRows(8), 4, shuffle=False, seed=0)
    assert [batch["index"].tolist() for batch in loader] == [[7, 6, 5], [4], [3, 2, 1], [0]]
    shuffled = EpochLoader(OrderedRows(40), 4, shuffle=True, seed=0, accumulate=3)
    assert len(shuffled) == 20
    first, second = ([plain(batch) for batch in shuffled] for _ in range(2))
    for epoch, stream in enumerate((first, second)):
        assert sorted(row for batch in stream for row in batch["index"]) == list(range(40))
        for batch in stream:
            assert batch["value"] == [row + 1000 * epoch for row in batch["index"]]
        for start in range(0, 20, 3):
            window = stream[start : start + 3]
            assert {batch["window_targets"] for batch in window} == {sum(map(sum, (b["counts"] for b in window)))}
    assert [batch["index"] for batch in first] != [batch["index"] for batch in second]


def test_an_order_of_their_own_resumes_exactly_and_only_under_itself() -> None:
    settings: dict = {"batch_size": 4, "shuffle": True, "seed": 2, "accumulate": 2}
    whole = epochs(EpochLoader(OrderedRows(24), **settings), 3)
    for stop in (1, 5, 12, 17):
        loader = EpochLoader(OrderedRows(24), **settings)
        seen: list[dict] = []
        while len(seen) < stop:
            seen += [plain(batch) for batch in islice(loader, min(stop - len(seen), 12))]
        resumed = EpochLoader(OrderedRows(24), workers=1, **settings)
        resumed.load_state_dict(json.loads(json.dumps(loader.state_dict())))
        while len(seen) < len(whole):
            seen += [plain(batch) for batch in resumed]
        assert seen == whole
    state = EpochLoader(CountedRows(24), **settings).state_dict()
    with pytest.raises(ConfigError, match="order was None, now 7"):
        EpochLoader(OrderedRows(24), **settings).load_state_dict(state)
