"""A prompt cache: exact, of bounded size, and never reading again what it holds."""

from __future__ import annotations

import pytest
import torch

from tests.generation.models import MIXERS, decoder, prompt
from zoo.generation import generate
from zoo.generation.prompt_cache import PromptCache
from zoo.registry import ConfigError

fp64 = {"rtol": 0.0, "atol": 1e-10}


def tokens_read(model) -> list[int]:
    """Tokens a row of the model's calls from now on."""
    sizes: list[int] = []
    model.embed.register_forward_hook(lambda module, inputs, output: sizes.append(inputs[0][0].numel()))
    return sizes


@pytest.mark.parametrize("kind", ["full", "window", "window_sinks", "hybrid", "parallel"])
def test_answers_from_a_cache_equal_answers_without(kind: str) -> None:
    model = decoder(**MIXERS[kind])
    cache = PromptCache(model)
    shared = prompt(12)
    prompts = [torch.cat([shared, prompt(n, n)]) for n in (3, 5, 1)] + [shared[:6], shared, shared[:1], prompt(9, 40)]
    for row in [*prompts, *prompts]:
        expected = generate(model, row, max_new_tokens=5, use_state=False)
        for choices in ({}, {"prefill_chunk": 4}):
            result = cache.generate(row, max_new_tokens=5, **choices)
            assert result.new[0].tolist() == expected.new[0].tolist()
            torch.testing.assert_close(result.log_probs[0], expected.log_probs[0], **fp64)
    penalty = {"max_new_tokens": 5, "repetition_penalty": 1.4}
    assert (
        cache.generate(prompts[0], **penalty).new[0].tolist() == generate(model, prompts[0], **penalty).new[0].tolist()
    )


def test_what_is_held_is_not_read_again() -> None:
    model = decoder(position="rope")
    cache, shared = PromptCache(model), prompt(12)
    cache.generate(torch.cat([shared, prompt(3, 2)]), max_new_tokens=1)
    sizes = tokens_read(model)
    cache.generate(torch.cat([shared, prompt(4, 3)]), max_new_tokens=1)
    assert sizes == [3, 1]  # 16 tokens, 12 held: three more, and the last for its logits
    sizes.clear()
    cache.generate(torch.cat([shared, prompt(4, 3)]), max_new_tokens=1)
    assert sizes == [1]


def test_a_window_that_moved_on_serves_only_prompts_that_go_on_from_it() -> None:
    model = decoder(**MIXERS["window"])
    cache, row = PromptCache(model), prompt(20)
    cache.generate(row, max_new_tokens=1)
    assert cache.longest(row)[1] == 19
    assert cache.longest(torch.cat([row[:12], prompt(4, 9)])) == (None, 0)
    state, covered = cache.longest(torch.cat([row[:19], prompt(4, 9)]))
    assert covered == 19 and state.length.tolist() == [19]


def test_the_prompts_used_last_are_kept_and_bytes_are_told() -> None:
    model = decoder(position="rope")
    cache = PromptCache(model, entries=2)
    for seed in (1, 2):
        cache.generate(prompt(6, seed), max_new_tokens=1)
    cache.generate(prompt(6, 1), max_new_tokens=1)
    cache.generate(prompt(6, 3), max_new_tokens=1)
    assert len(cache) == 2
    assert [cache.longest(prompt(6, seed))[1] for seed in (1, 2, 3)] == [6 - 1, 0, 6 - 1]
    assert cache.nbytes() == 2 * model.init_state(1, 5).nbytes()
    cache.clear()
    assert len(cache) == 0 and cache.longest(prompt(6, 1)) == (None, 0)


def test_a_cache_takes_one_prompt() -> None:
    with pytest.raises(ConfigError, match="one prompt"):
        PromptCache(decoder()).generate([[1, 2], [3, 4]])
    with pytest.raises(ConfigError, match="entries should be at least 1"):
        PromptCache(decoder(), entries=0)
