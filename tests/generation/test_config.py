"""Choices of generation: what they mean together, and one line for each that cannot be."""

from __future__ import annotations

import pytest

from zoo.generation.config import GenerationConfig
from zoo.registry import ConfigError, encode

REFUSED = [
    ({"temperature": 0.0}, "temperature: should be above 0, got 0.0; for the likeliest token at every step leave"),
    ({"temperature": -1.0}, "temperature: should be above 0, got -1.0"),
    ({"top_k": 0}, "top_k: should be at least 1, got 0; leave it out to keep all tokens"),
    ({"top_p": 1.5}, "top_p: should be above 0 and at most 1, got 1.5; leave it out"),
    ({"top_p": 0.0}, "top_p: should be above 0 and at most 1, got 0.0"),
    ({"min_p": -0.1}, "min_p: should be between 0 and 1, got -0.1"),
    ({"repetition_penalty": 0.0}, "repetition_penalty: should be above 0, got 0.0"),
    ({"max_new_tokens": -1}, "max_new_tokens: should be at least 0, got -1"),
    ({"beams": 0}, "beams: should be at least 1, got 0"),
    ({"prefill_chunk": 0}, "prefill_chunk: should be at least 1, got 0"),
    ({"early_stopping": "never"}, "early_stopping: should be 'first', 'heuristic' or 'exact', got 'never'"),
    ({"stop": [[]]}, "stop: holds an empty sequence"),
    ({"sample": False, "top_k": 3}, "sample false leaves top_k without effect"),
    ({"beams": 2, "top_p": 0.5}, "beams 2 takes no top_p"),
    ({"beams": 2, "sample": True}, "beams 2 takes no sample"),
    ({"beams": 2, "num_sequences": 3}, "num_sequences 3 should be at most beams 2"),
    ({"beams": 2, "keep_state": True}, "keep_state has no meaning with beams 2"),
    ({"num_sequences": 2}, "num_sequences 2 would be equal"),
    ({"top_k": "5"}, "top_k: should be a valid integer, got '5'"),
]


@pytest.mark.parametrize(("values", "message"), REFUSED, ids=[text for _, text in REFUSED])
def test_a_choice_that_cannot_be_is_told_in_one_line(values: dict, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        GenerationConfig(**values)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_sampling_choice_turns_sampling_on() -> None:
    assert not GenerationConfig().samples and not GenerationConfig(repetition_penalty=2.0).samples
    for choice in ({"temperature": 1.0}, {"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.1}, {"sample": True}):
        assert GenerationConfig(**choice).samples
    assert GenerationConfig(eos_id=3).eos_ids == (3,) and GenerationConfig(eos_id=[3, 4]).eos_ids == (3, 4)


def test_a_config_survives_plain_values() -> None:
    config = GenerationConfig(top_p=0.9, stop=((1, 2), (3,)), eos_id=(4, 5))
    assert GenerationConfig(**encode(config)) == config
