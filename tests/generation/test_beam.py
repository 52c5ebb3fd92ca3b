"""Beam search: equal to trying everything where the beams are wide, to a loop, and to transformers."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import nn

from tests.generation.models import decoder, padded, prompt
from zoo.generation import Generated, generate

fp64 = {"rtol": 0.0, "atol": 1e-10}


def answers(result: Generated, row: int, count: int) -> list[tuple[list[int], float]]:
    """New tokens and scores of one prompt's answers."""
    part = slice(row * count, (row + 1) * count)
    return [(new.tolist(), float(score)) for new, score in zip(result.new[part], result.scores[part], strict=True)]


def log_probability(model: Any, start: torch.Tensor, new: tuple[int, ...]) -> float:
    ids = torch.cat([start, torch.tensor(new)])[None]
    table = model(ids).detach().log_softmax(-1)[0]
    return float(sum(table[len(start) - 1 + i, token] for i, token in enumerate(new)))


def exhaustive(model: Any, start: torch.Tensor, limit: int, eos: int, power: float) -> list[tuple[list[int], float]]:
    """All rows that end with `eos` or at the limit, best first."""
    vocabulary, found = range(model.head.table.shape[0]), []
    for n in range(1, limit + 1):
        for new in itertools.product(vocabulary, repeat=n):
            ends = new[-1] == eos or n == limit
            if ends and eos not in new[:-1]:
                found.append((list(new), log_probability(model, start, new) / n**power))
    return sorted(found, key=lambda pair: -pair[1])


@pytest.mark.parametrize("power", [0.0, 1.0, 2.5, -1.0])
def test_wide_beams_find_what_trying_everything_finds(power: float) -> None:
    model, start = decoder(vocab_size=4), torch.tensor([1, 3])
    found = exhaustive(model, start, 3, eos=2, power=power)
    result = generate(
        model,
        start,
        max_new_tokens=3,
        beams=40,
        num_sequences=5,
        eos_id=2,
        length_penalty=power,
        early_stopping="exact",
    )
    ours = answers(result, 0, 5)
    assert [new for new, _ in ours] == [new for new, _ in found[:5]]
    torch.testing.assert_close([s for _, s in ours], [s for _, s in found[:5]], **fp64)
    fewer = generate(model, start, max_new_tokens=1, beams=40, num_sequences=5, eos_id=2)  # only 4 answers exist
    assert fewer.scores[:4].isfinite().all() and fewer.scores[4] == float("-inf") and fewer.new[4].numel() == 0


def naive_beams(
    model: Any, start: torch.Tensor, limit: int, beams: int, eos: set[int], power: float, early: str
) -> list[tuple[list[int], float]]:
    """The rules of beam.py as lists, one prompt, every row read again."""
    running: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    finished: list[tuple[list[int], float]] = []
    for n in range(1, limit + 1):
        every = []
        for new, total in running:
            ids = torch.cat([start, torch.tensor(new, dtype=torch.long)])[None]
            for token, value in enumerate(model(ids)[0, -1].log_softmax(-1).tolist()):
                every.append(((*new, token), total + value))
        every = sorted(every, key=lambda pair: -pair[1])[: (1 + len(eos)) * beams]
        done = [(list(new), total / n**power) for new, total in every[:beams] if new[-1] in eos or n == limit]
        finished = sorted(finished + done, key=lambda pair: -pair[1])[:beams]
        running = [pair for pair in every if pair[0][-1] not in eos][:beams]
        if len(finished) == beams:
            reach = limit if early == "exact" and power > 0 else n
            if early == "first" or running[0][1] / reach**power <= finished[-1][1]:
                break
    return finished


@pytest.mark.parametrize("early", ["first", "heuristic", "exact"])
@pytest.mark.parametrize("power", [0.0, 0.6, 2.0, -0.5])
@pytest.mark.parametrize("eos", [(4,), (4, 9, 11)])
def test_beams_equal_a_loop_over_lists(early: str, power: float, eos: tuple[int, ...]) -> None:
    for seed in range(3):
        model = decoder(seed)
        ids, mask, rows = padded("interior", seed)
        result = generate(
            model, ids, token_mask=mask, max_new_tokens=6, beams=3, num_sequences=3, eos_id=eos, length_penalty=power,
            early_stopping=early,
        )  # fmt: skip
        for b, row in enumerate(rows):
            naive = naive_beams(model, row, 6, 3, set(eos), power, early)
            ours = answers(result, b, 3)
            assert [new for new, _ in ours] == [new for new, _ in naive]
            torch.testing.assert_close([s for _, s in ours], [s for _, s in naive], **fp64)


class Peer(nn.Module):
    """A GPT-2 of transformers behind the surface of our models."""

    def __init__(self, peer: Any) -> None:
        super().__init__()
        self.peer, self.head = peer, Head(peer)

    def features(self, ids: torch.Tensor, context: Any, state: Any = None) -> torch.Tensor:
        return self.peer.transformer(ids).last_hidden_state


class Head(nn.Module):
    def __init__(self, peer: Any) -> None:
        super().__init__()
        self.linear = peer.lm_head

    @property
    def table(self) -> torch.Tensor:
        return self.linear.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


@pytest.fixture(scope="module")
def peer() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=19, n_embd=16, n_layer=2, n_head=2, n_positions=32, initializer_range=0.4, tie_word_embeddings=False,
        bos_token_id=0, eos_token_id=5, pad_token_id=0,
    )  # fmt: skip
    return GPT2LMHeadModel(config).eval()


EARLY = {"first": True, "heuristic": False, "exact": "never"}


@pytest.mark.parametrize(
    "choices",
    [
        {},
        {"repetition_penalty": 1.4},
        *({"beams": 4, "early_stopping": early, "length_penalty": p} for early in EARLY for p in (1.0, 0.3, 2.0)),
        {"beams": 3, "repetition_penalty": 1.6},
    ],
    ids=str,
)
def test_answers_are_those_of_transformers(peer: Any, choices: dict) -> None:
    ids = torch.stack([prompt(5, 1), prompt(5, 2), prompt(5, 3)]) % 19
    beams = choices.get("beams", 1)
    ours = generate(
        Peer(peer), ids, use_state=False, max_new_tokens=9, eos_id=5, num_sequences=min(beams, 2), **choices
    )
    early = EARLY[choices.get("early_stopping", "heuristic")]
    others = {**{k: v for k, v in choices.items() if k not in ("beams", "early_stopping")}, "num_beams": beams}
    theirs = peer.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=9, do_sample=False, early_stopping=early,
        num_return_sequences=min(beams, 2), return_dict_in_generate=True, output_scores=True, **others,
    )  # fmt: skip
    assert len(ours.new) == len(theirs.sequences)
    for mine, row in zip(ours.new, theirs.sequences, strict=True):
        assert mine.tolist() == row[5 : 5 + len(mine)].tolist()
        assert set(row[5 + len(mine) :].tolist()) <= {0, 5}  # filled with the pad or the end token
    if beams > 1:
        torch.testing.assert_close(ours.scores, theirs.sequences_scores, rtol=1e-5, atol=1e-5)


def test_stop_sequences_end_beams() -> None:
    model, start = decoder(), prompt(4)
    free = generate(model, start, max_new_tokens=6, beams=3, length_penalty=0.0)
    stop = free.new[0][1:3].tolist()
    result = generate(model, start, max_new_tokens=6, beams=3, num_sequences=3, stop=[stop], length_penalty=0.0)
    ended = [new.tolist() for new, why in zip(result.new, result.finished, strict=True) if why == "stop"]
    assert ended and all(new[-2:] == stop for new in ended)
    assert all(new.tolist()[i : i + 2] != stop for new in result.new for i in range(len(new) - 2))
