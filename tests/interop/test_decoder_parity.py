"""Our GPT with the weights of transformers' decoders gives their logits and gradients, padding and windows included.

fp32: logits to 1e-5, gradients of O(1) to 1e-4, those of every parameter through the same weight map.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as hf

from tests.interop.peers import DECODERS, VOCAB, build, gradients, ours, positions, rows


def assert_same(peer: Any, padding: str, logits: float = 1e-5, grads: float = 1e-4) -> None:
    model, family = ours(peer)
    ids, mask = rows(padding)
    expected = peer(ids, attention_mask=mask.long(), position_ids=positions(mask)).logits[mask]  # (N, V)
    found = model(ids, token_mask=None if padding == "none" else mask)[mask]
    torch.testing.assert_close(found, expected, rtol=0, atol=logits)
    weight = torch.randn(expected.shape, generator=torch.Generator().manual_seed(2)).to(expected) / len(expected) ** 0.5
    (expected * weight).sum().backward()
    (found * weight).sum().backward()
    theirs = family.from_huggingface(gradients(peer), model.config)
    parameters = dict(model.named_parameters())
    assert theirs.keys() == parameters.keys()
    for name, grad in theirs.items():
        assert grad.abs().max() > 1e-3, f"{name} has no gradient to compare"
        torch.testing.assert_close(
            parameters[name].grad, grad, rtol=0, atol=grads, msg=lambda text, n=name: f"{n}: {text}"
        )


@pytest.mark.parametrize("padding", ["none", "left", "right"])
@pytest.mark.parametrize("name", DECODERS)
def test_logits_and_gradients_equal_transformers(name: str, padding: str) -> None:
    assert_same(build(name), padding)


@pytest.mark.parametrize("padding", ["left", "right"])
def test_gpt2_equals_transformers_in_double_precision(padding: str) -> None:
    assert_same(build("gpt2").double(), padding, logits=1e-11, grads=1e-10)


@pytest.mark.parametrize("length", [10, 16, 40])
def test_dynamic_rope_scaling_equals_transformers_below_and_beyond_the_trained_length(length: int) -> None:
    """One row: theirs takes the longest row of the batch for all of them, ours each row's own length."""
    torch.manual_seed(0)
    config = hf.LlamaConfig(
        vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=40,
        max_position_embeddings=16, rope_parameters={"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0},
    )  # fmt: skip
    peer = hf.LlamaForCausalLM(config).eval()
    model, _ = ours(peer)
    ids, _ = rows("none", batch=1, length=length)
    torch.testing.assert_close(model(ids), peer(ids).logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["gpt2", "llama", "llama yarn", "mistral window 5", "gemma2 window 5"])
def test_greedy_tokens_from_a_state_equal_those_of_transformers_cache(name: str) -> None:
    peer = build(name)
    model, _ = ours(peer)
    ids, mask = rows("left")
    with torch.no_grad():
        expected = peer.generate(
            ids, attention_mask=mask.long(), do_sample=False, max_new_tokens=8, pad_token_id=0, eos_token_id=None
        )[:, ids.shape[1] :]
        state = model.init_state(len(ids), ids.shape[1] + 8)
        found = [model(ids, token_mask=mask, state=state)[:, -1].argmax(-1, keepdim=True)]
        while len(found) < 8:
            found.append(model(found[-1], state=state)[:, -1].argmax(-1, keepdim=True))
    assert torch.equal(torch.cat(found, 1), expected)
