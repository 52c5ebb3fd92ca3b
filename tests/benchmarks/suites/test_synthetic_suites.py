"""Rows of the synthetic suites against their rules, and every suite's jobs at size smoke."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.processes import find_suite
from benchmarks.run import cells, parse
from benchmarks.suites import copy, mad, recall, tracking
from benchmarks.suites.costs import state_bytes
from benchmarks.suites.synthetic import IGNORED, ConvFirst, model_of, scored
from zoo.blocks.api import Capability, Context, MixerConfig, Slot, Sublayer
from zoo.inspection.count import count_parameters
from zoo.models.gpt import GPTConfig
from zoo.registry import decode


def draws(make: Any, batch: int = 8, seed: int = 0, **sizes: Any) -> tuple[list[list[int]], list[list[int]]]:
    ids, labels = make(batch, torch.Generator().manual_seed(seed), **sizes)
    assert ids.shape == labels.shape and ids.dtype == labels.dtype == torch.long
    return ids.tolist(), labels.tolist()


def test_recall_asks_for_the_value_that_followed_the_key() -> None:
    for ids, labels in zip(*draws(recall.pair_rows, length=32, pairs=5, symbols=32), strict=True):
        told = dict(zip(ids[0:10:2], ids[1:10:2], strict=True))
        asked = {t: label for t, label in enumerate(labels) if label != IGNORED}
        assert len(told) == len(asked) == 5 and min(asked) >= 10
        assert all(told[ids[t]] == label for t, label in asked.items())


def test_noise_leaves_the_row_s_own_symbols_in_order() -> None:
    clean = draws(recall.pair_rows, length=32, pairs=4, symbols=16)
    noisy = draws(recall.noisy_rows, length=40, pairs=4, symbols=16)
    for ids, labels, kept, answers in zip(*noisy, *clean, strict=True):
        own = [t for t, symbol in enumerate(ids) if symbol < 16]
        assert len(own) == 32
        assert [ids[t] for t in own] == kept and [labels[t] for t in own] == answers


def test_a_fuzzy_value_is_told_whole_after_its_key() -> None:
    asked = 0
    for ids, labels in zip(*draws(recall.fuzzy_rows, length=48, pairs=3, symbols=32), strict=True):
        places = [t for t, label in enumerate(labels) if label != IGNORED]
        asked += len(places)
        for t in places:
            assert ids[t + 1] == labels[t] >= 16  # the symbol that comes next, a value's
        first = places[0]
        assert ids[first] < 16  # a key's last symbol, which stood before with the same value after it
        assert [ids[first], labels[first]] in [[ids[t], ids[t + 1]] for t in range(first)]
    assert asked > 8


def test_selective_copying_tells_the_symbols_in_order() -> None:
    for ids, labels in zip(*draws(copy.selective_rows, length=20, items=4, symbols=8), strict=True):
        assert [symbol for symbol in ids[:20] if symbol != copy.BLANK] == labels[20:]
        assert ids[20:] == [copy.QUESTION] * 4 and labels[:20] == [IGNORED] * 20


def test_an_induction_answer_can_be_looked_up_and_no_fixed_distance_helps() -> None:
    distances = set()
    for ids, labels in zip(*draws(copy.periodic_rows, length=24, periods=[4, 8], symbols=16, batch=32), strict=True):
        for t, label in enumerate(labels):
            earlier = [s for s in range(t) if ids[s] == ids[t]]
            assert (label != IGNORED) == bool(earlier)
            if earlier:
                assert ids[earlier[-1] + 1] == label
                distances.add(t - earlier[-1])
    assert distances == {4, 5, 6, 7, 8}


@pytest.mark.parametrize("backwards", [False, True])
def test_copies_and_palindromes(backwards: bool) -> None:
    for ids, labels in zip(*draws(copy.copy_rows, length=6, symbols=9, backwards=backwards), strict=True):
        row = ids[:6]
        assert labels[6:] == (row[::-1] if backwards else row)
        assert ids[6] == copy.QUESTION and ids[7:] == labels[6:-1] and labels[:6] == [IGNORED] * 6


def test_what_followed_the_start_is_asked_at_the_end() -> None:
    for ids, labels in zip(*draws(copy.hidden_pair_rows, length=10, symbols=6), strict=True):
        assert ids.count(copy.START) == 2 and ids[-1] == copy.START
        assert labels == [IGNORED] * 9 + [ids[ids.index(copy.START) + 1]]


def ids_of(rows: list[list[int]]) -> Tensor:
    return torch.tensor(rows)


def test_states_by_hand() -> None:
    assert tracking.parity(ids_of([[1, 0, 1, 1]])).tolist() == [[1, 1, 0, 1]]
    assert tracking.count(ids_of([[0, 1, 1, 0, 0]])).tolist() == [[2, 1, 0, 1, 2]]
    assert tracking.dyck(ids_of([[0, 1, 0, 0], [0, 1, 1, 0]])).tolist() == [[1, 0, 1, 1], [1, 0, 2, 2]]
    # + 3, - 4, * 2 modulo 5: 3, -1 = 4, 8 = 3
    assert tracking.modular(ids_of([[0, 6, 1, 7, 2, 5]])).tolist() == [[0, 3, 3, 4, 4, 3]]


@pytest.mark.parametrize(("task", "things"), [("s3", 3), ("s5", 5), ("s5_swaps", 5)])
def test_words_are_products_of_permutations(task: str, things: int) -> None:
    _, symbols, answers, make, tell = tracking.TASKS[task]
    ids = make(4, 12, torch.Generator().manual_seed(0))
    every = list(permutations(range(things)))
    chosen = tracking.swaps(things).tolist() if task.endswith("swaps") else list(range(len(every)))
    assert len(chosen) == symbols and len(every) == answers
    for row, told in zip(ids.tolist(), tell(ids).tolist(), strict=True):
        hands = list(range(things))  # things moved by hand
        for symbol, answer in zip(row, told, strict=True):
            hands = [every[chosen[symbol]][x] for x in hands]
            assert tuple(hands) == every[answer]


@pytest.mark.parametrize("task", tracking.TASKS)
def test_rows_to_track_stay_in_their_vocabulary_and_no_answer_dominates(task: str) -> None:
    _, symbols, answers, make, tell = tracking.TASKS[task]
    ids = make(64, 32, torch.Generator().manual_seed(1))
    labels = tell(ids)
    assert ids.min() >= 0 and ids.max() < symbols and labels.min() >= 0 and labels.max() < answers
    assert torch.bincount(labels.flatten()).max() / labels.numel() < 0.75


def test_mad_asks_for_seen_keys_alone_and_facts_are_the_same_in_every_row() -> None:
    for ids, labels in zip(*draws(mad.recall_rows, length=16, symbols=8), strict=True):
        for t in range(0, 16, 2):
            assert (labels[t] != IGNORED) == (ids[t] in ids[:t:2])
            assert labels[t] in (IGNORED, ids[t + 1])
    facts: dict[int, int] = {}
    for seed in (0, 1):
        for ids, labels in zip(*draws(mad.memorisation_rows, seed=seed, length=16, symbols=32), strict=True):
            for key, value in zip(ids[::2], labels[1::2], strict=True):
                assert facts.setdefault(key, value) == value


def test_compression_reads_the_last_output_alone() -> None:
    torch.manual_seed(0)
    model = find("mad", "compression").model_for_test()
    ids, labels = mad.compression_rows(2, torch.Generator().manual_seed(0), length=8, symbols=5)
    assert labels[:, :-1].tolist() == ids[:, :-1].tolist() and labels[0, -1] == IGNORED
    whole = model(ids)
    kept = model.model.features(ids)[:, -1]
    assert whole.shape == (2, 8, 6)
    torch.testing.assert_close(whole, model.out(F.gelu(model.hidden(kept[:, None] + model.place.weight))))


class find:  # noqa: N801
    """The one cell of a suite's task with attention, at size smoke."""

    def __init__(self, suite: str, task: str, mixer: str = "attention") -> None:
        words = [f"suite={suite}", f"task={task}", f"mixer={mixer}", "size=smoke"]
        self.suite = find_suite(suite)
        self.job = cells(parse(words), self.suite, {})[0].job("reported", 0, 3e-3)

    def model_for_test(self) -> Any:
        config, _ = model_of(self.job, 6, 8)
        return mad.AutoEncoder(config.build(), 8).eval()


ALL = [
    pytest.param(name, task.name, marks=[pytest.mark.slow] if place else [])
    for name in ("recall", "mad", "copy", "tracking")
    for place, task in enumerate(find_suite(name).tasks("smoke"))
]
"""One task of every suite; the others in the slow run."""


@pytest.mark.parametrize(("suite", "task"), ALL)
def test_a_job_runs_twice_to_the_same_bits(suite: str, task: str) -> None:
    one = find(suite, task)
    first, again = one.suite.run(one.job), one.suite.run(one.job)
    assert first == again
    other = one.suite.run(replace(one.job, seed=1))
    assert other.curves["train/loss"] != first.curves["train/loss"]
    wanted = next(t for t in one.suite.tasks("smoke") if t.name == task)
    assert 0.0 <= first.metrics[wanted.primary] <= 1.0 and first.params > 0 and first.state_bytes > 0


@pytest.mark.parametrize("suite", ["copy", "tracking", "mad"])
def test_every_arm_has_the_parameters_of_attention_within_one_percent(suite: str) -> None:
    found = find_suite(suite)
    task = {"copy": "selective", "tracking": "parity", "mad": "recall"}[suite]
    totals = {}
    for cell in cells(parse([f"suite={suite}", f"task={task}", "size=small"]), found, {}):
        config, matched = model_of(cell.job("reported", 0, 1e-3), 16, 40, reference="attention")
        with torch.device("meta"):
            totals[cell.arm.name] = count_parameters(config.build())[0]
        assert matched["params"]["arm"] == totals[cell.arm.name]
    assert all(abs(total / totals["attention"] - 1) <= 0.01 for total in totals.values()), totals


def test_plain_recall_leaves_no_short_convolution() -> None:
    for arm in recall.SUITE.arms("plain", recall.SUITE.mixers):
        config = decode("mixer", arm.mixer)
        for layer in range(2):
            assert getattr(config.at(layer, 2), "conv", 0) == 0


def test_the_convolution_in_front_carries_its_tail_from_call_to_call() -> None:
    torch.manual_seed(0)
    slot = Slot(dim=8, heads=2, max_len=12, causal=True, init_std="fan_in")
    mixer = ConvFirst(mixer=decode("mixer", "gated_delta"), width=3).build(slot)
    x = torch.randn(2, 12, 8)
    with torch.no_grad():
        whole = mixer(x, Context())
        state = mixer.init_state(2, 12)
        parts = torch.cat([mixer(part, Context(), state) for part in x.split([1, 4, 7], dim=1)], dim=1)
    torch.testing.assert_close(parts, whole, rtol=1e-5, atol=1e-5)
    assert state.nbytes() == mixer.mixer.init_state(2, 12).nbytes() + 2 * 2 * 8 * 4


def test_scores_by_hand() -> None:
    class Echo(torch.nn.Module):
        def forward(self, ids: Tensor) -> Tensor:
            return F.one_hot(ids, 4).float()

    ids = torch.tensor([[0, 1, 1, 1], [2, 3, 3, 3]])
    labels = torch.tensor([[0, 1, 1, 2], [2, IGNORED, IGNORED, IGNORED]])
    score = scored(Echo(), ids, labels)
    assert score.accuracy == pytest.approx(4 / 5) and score.rows == 0.5
    assert score.macro == pytest.approx((1 + 1 + 0.5) / 3)  # symbols 0 and 1 right, symbol 2 one of two


class Summed(MixerConfig):
    """A causal mixer that keeps no state."""

    capabilities: ClassVar[Capability] = Capability.CAUSAL

    def build(self, slot: Slot) -> Sublayer:
        return _Summed()


class _Summed(Sublayer):
    def forward(self, x: Tensor, context: Context, state: Any = None) -> Tensor:
        return x.cumsum(1)  # (B, T, D)


def test_a_mixer_without_a_state_has_none_behind_a_convolution_either() -> None:
    for mixer in (Summed(), ConvFirst(mixer=Summed(), width=3)):
        model = GPTConfig(vocab_size=5, max_len=8, dim=8, depth=1, heads=1, mixer=mixer, layout="mixer_only").build()
        assert state_bytes(model, 8) == 0
        assert model(torch.zeros(1, 8, dtype=torch.long)).shape == (1, 8, 5)
