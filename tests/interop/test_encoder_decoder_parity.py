"""T5 1.0 and 1.1, BART and Marian give transformers' logits and gradients. fp32: 1e-5 and 1e-4."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.interop.peers import ENCODER_DECODERS, build, gradients, ours, rows
from tests.interop.test_encoder_parity import compare, weighted
from zoo.blocks.api import Context


def run(name: str, padding: str, length: int = 14) -> tuple[list[Tensor], list[Tensor]]:
    """Both logits at the real targets, after a backward pass whose gradients are compared."""
    peer = build(name)
    model, family = ours(peer)
    source, mask = rows(padding, length=length)
    target, target_mask = rows("right", length=length - 1)
    theirs = {"attention_mask": mask.long(), "decoder_attention_mask": target_mask.long()}
    expected = peer(source, decoder_input_ids=target, **theirs, use_cache=False).logits[target_mask]
    mine = None if padding == "none" else mask
    found = model(source, target, source_mask=mine, target_mask=target_mask)[target_mask]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    weighted([expected]).backward()
    weighted([found]).backward()
    compare(model, family.from_huggingface(gradients(peer), model.config), floor=1e-4)
    return found, expected  # type: ignore[return-value]


@pytest.mark.parametrize("padding", ["none", "right"])
@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_logits_and_gradients_equal_transformers(name: str, padding: str) -> None:
    run(name, padding)


@pytest.mark.parametrize("name", ["t5", "t5 1.1"])
def test_t5_equals_transformers_with_a_source_padded_on_the_left(name: str) -> None:
    """Only distances count, so a source may stand anywhere; BART and Marian count padding there as positions."""
    run(name, "left")


@pytest.mark.parametrize("name", ["t5", "t5 1.1"])
def test_t5_equals_transformers_beyond_its_largest_bucket(name: str) -> None:
    run(name, "right", length=150)


@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_greedy_tokens_from_a_state_equal_those_of_transformers_cache(name: str) -> None:
    peer = build(name)
    model, _ = ours(peer)
    source, mask = rows("right")
    start = model.config.start_id
    options = {"do_sample": False, "max_new_tokens": 8, "pad_token_id": 1, "eos_token_id": None}
    options |= {"decoder_start_token_id": start, "num_beams": 1}
    if "forced_eos_token_id" in peer.config.to_dict():
        peer.generation_config.forced_eos_token_id = None
    peer.generation_config.bad_words_ids = None
    with torch.no_grad():
        expected = peer.generate(source, attention_mask=mask.long(), **options)
        context = Context(memory=model.encode(source, mask), memory_mask=mask)
        state = model.init_state(len(source), 9)
        found = [torch.full((len(source), 1), start)]
        while len(found) < 9:
            logits = model.head(model.features(found[-1], context, state))
            found.append(logits[:, -1].argmax(-1, keepdim=True))
            context = Context()
    assert torch.equal(torch.cat(found, 1), expected)
