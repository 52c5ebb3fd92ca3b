"""Logits to tokens: equal to loops, and to transformers; ties, single tokens and excluded rows."""

from __future__ import annotations

import math

import pytest
import torch

from zoo.generation import logits as processors
from zoo.generation.config import GenerationConfig
from zoo.generation.logits import draw, processed


def naive_top_k(row: list[float], k: int) -> list[float]:
    least = sorted(row, reverse=True)[min(k, len(row)) - 1]
    return [x if x >= least else -math.inf for x in row]


def naive_top_p(row: list[float], p: float) -> list[float]:
    probabilities = torch.tensor(row, dtype=torch.float64).softmax(0).tolist()
    kept, total = set(), 0.0
    for i in sorted(range(len(row)), key=lambda i: (-probabilities[i], -i)):
        if total < p or not kept:
            kept.add(i)
        total += probabilities[i]
    return [x if i in kept else -math.inf for i, x in enumerate(row)]


def naive_min_p(row: list[float], share: float) -> list[float]:
    probabilities = torch.tensor(row, dtype=torch.float64).softmax(0).tolist()
    return [x if p >= share * max(probabilities) else -math.inf for x, p in zip(row, probabilities, strict=True)]


def naive_penalised(row: list[float], seen: list[int], penalty: float) -> list[float]:
    return [x if i not in seen else x / penalty if x > 0 else x * penalty for i, x in enumerate(row)]


def naive_processed(row: list[float], config: GenerationConfig, seen: list[int]) -> list[float]:
    row = naive_penalised(row, seen, config.repetition_penalty)
    row = [x / (config.temperature or 1.0) for x in row]
    row = naive_top_k(row, config.top_k or len(row))
    row = naive_top_p(row, config.top_p or 1.0)
    return naive_min_p(row, config.min_p or 0.0)


CHOICES = [
    {"temperature": 0.7},
    {"top_k": 5},
    {"top_k": 1},
    {"top_k": 500},
    {"top_p": 0.6},
    {"top_p": 1e-9},
    {"top_p": 1.0},
    {"min_p": 0.2},
    {"min_p": 1.0},
    {"repetition_penalty": 1.7},
    {"repetition_penalty": 0.5},
    {"repetition_penalty": 1.3, "temperature": 1.4, "top_k": 20, "top_p": 0.8, "min_p": 0.05},
    {"temperature": 0.5, "top_k": 3, "top_p": 0.999, "min_p": 0.4},
]


@pytest.mark.parametrize("choices", CHOICES, ids=str)
def test_processing_equals_loops_and_transformers(choices: dict) -> None:
    from transformers import LogitsProcessorList
    from transformers.generation import logits_process as theirs

    generator = torch.Generator().manual_seed(1)
    logits = 3 * torch.randn(6, 40, generator=generator, dtype=torch.float64)
    ids = torch.randint(0, 40, (6, 7), generator=generator)
    seen = torch.zeros(6, 40, dtype=torch.bool).scatter(1, ids, True)
    config = GenerationConfig(**choices)
    ours = processed(logits, config, seen if config.repetition_penalty != 1 else None)
    naive = [naive_processed(row, config, i) for row, i in zip(logits.tolist(), ids.tolist(), strict=True)]
    torch.testing.assert_close(ours, torch.tensor(naive, dtype=torch.float64), rtol=0, atol=1e-12)
    made = {
        "repetition_penalty": theirs.RepetitionPenaltyLogitsProcessor,
        "temperature": theirs.TemperatureLogitsWarper,
        "top_k": theirs.TopKLogitsWarper,
        "top_p": theirs.TopPLogitsWarper,
        "min_p": theirs.MinPLogitsWarper,
    }
    chain = LogitsProcessorList([made[name](float(v) if name != "top_k" else v) for name, v in choices.items()])
    torch.testing.assert_close(ours, chain(ids, logits.clone()), rtol=0, atol=1e-12)


def test_the_order_is_that_of_transformers() -> None:
    """Their `generate` puts its processors in the order of ours, whatever the order of the keywords."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_embd=8, n_layer=1, n_head=1, vocab_size=11, bos_token_id=0, eos_token_id=0))
    config = model.generation_config
    config.do_sample, config.min_p, config.top_p, config.top_k = True, 0.1, 0.9, 5
    config.temperature, config.repetition_penalty = 0.5, 1.2
    chain = model._get_logits_processor(config, 3, torch.zeros(1, 3, dtype=torch.long), None, [])
    names = [type(one).__name__ for one in chain]
    told = ["RepetitionPenalty", "Temperature", "TopK", "TopP", "MinP"]
    assert [next(t for t in told if name.startswith(t)) for name in names] == told


def test_ties_at_the_edge_of_top_k_all_stay_and_one_token_always_does() -> None:
    row = torch.tensor([[1.0, 3.0, 1.0, 3.0, 0.0]])
    assert processors.top_k(row, 3).isfinite().tolist() == [[True, True, True, True, False]]
    equal = torch.zeros(1, 8)
    assert processors.top_p(equal, 0.25).isfinite().sum() == 2
    assert processors.top_p(equal, 1e-6).isfinite().sum() == 1
    assert processors.min_p(equal, 1.0).isfinite().all()
    excluded = torch.tensor([[-math.inf, 0.0, -math.inf, -1.0]])
    every = GenerationConfig(temperature=2.0, top_k=3, top_p=0.9999, min_p=0.1)
    assert processed(excluded, every, None).isfinite().tolist() == [[False, True, False, True]]


def test_draws_follow_the_probabilities_and_never_take_what_is_excluded() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.0]).log().expand(40_000, 5)
    counts = draw(logits, generator).bincount(minlength=5) / 40_000
    # 5 standard deviations of a share of 40,000 draws: 5 sqrt(0.25 / 40,000) = 0.0125
    torch.testing.assert_close(counts, torch.tensor([0.1, 0.2, 0.3, 0.4, 0.0]), rtol=0, atol=0.0125)
    assert counts[4] == 0
    assert draw(torch.tensor([[-math.inf, 5.0], [7.0, -math.inf]]), generator).tolist() == [1, 0]
