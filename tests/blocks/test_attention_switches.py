"""Chunks and temperatures of attention: what they compute, and what their states hold."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.parts import DIM, HEADS, rows
from zoo.blocks.api import Context, Slot
from zoo.blocks.mixers.attention import Attention, AttentionConfig
from zoo.registry import ConfigError

fp64 = {"rtol": 0.0, "atol": 1e-10}


def build(causal: bool = True, **choices: Any) -> Attention:
    torch.manual_seed(0)
    slot = Slot(dim=DIM, heads=HEADS, causal=causal, init_std=0.3)
    return AttentionConfig(**choices).build(slot).double().eval()


@pytest.mark.parametrize("causal", [True, False])
def test_a_chunk_is_a_row_of_its_own(causal: bool) -> None:
    whole, plain, x = build(causal, chunk=4), build(causal), rows(length=11)
    expected = torch.cat([plain(piece, Context()) for piece in x.split(4, dim=1)], dim=1)
    torch.testing.assert_close(whole(x, Context()), expected, **fp64)


def test_a_state_of_chunks_holds_one_chunk_and_steps_equal_one_pass() -> None:
    mixer, x = build(chunk=4, kv_heads=2), rows(length=23)
    state = mixer.init_state(2, 1000, dtype=torch.float64)
    pieces = [mixer(piece, Context(), state) for piece in x.split([6, 1, 1, 1, 1, 5, 1, 1, 6], dim=1)]
    torch.testing.assert_close(torch.cat(pieces, 1), mixer(x, Context()), **fp64)
    assert state.nbytes() == 2 * 2 * 2 * 4 * (DIM // HEADS) * 8  # keys and values, rows, heads, tokens, width, bytes


def test_packed_documents_in_a_state_of_chunks_are_refused() -> None:
    mixer, x = build(chunk=4), rows()
    state = mixer.init_state(2, 20, dtype=torch.float64)
    with pytest.raises(ValueError, match="a state keeps the chunks of one document"):
        mixer(x, Context(documents=torch.zeros(2, 11, dtype=torch.long)), state)


@pytest.mark.parametrize("rotary", [True, False])
def test_queries_grow_with_their_positions_by_the_formula(rotary: bool) -> None:
    position: dict[str, Any] = {"position": {"name": "rope"}} if rotary else {}
    mixer, plain, x = build(temperature=0.3, temperature_floor=4, **position), build(**position), rows(length=11)
    state = plain.init_state(2, 11, dtype=torch.float64)
    width = plain.q_width
    weight, bias = plain.qkv.weight.detach().clone(), plain.qkv.bias.detach().clone()
    for t in range(11):  # token by token, with the queries' projection scaled by hand
        factor = 1 + 0.3 * torch.tensor(1.0 + (t + 1) // 4, dtype=torch.float64).log()
        with torch.no_grad():
            plain.qkv.weight[:width] = weight[:width] * factor
            plain.qkv.bias[:width] = bias[:width] * factor
        expected = plain(x[:, t : t + 1], Context(), state)
        torch.testing.assert_close(mixer(x, Context())[:, t : t + 1], expected, **fp64)
    assert (mixer(x, Context()) - build(**position)(x, Context()))[:, :3].abs().max() == 0


@pytest.mark.parametrize("choices", [{"chunk": 4}, {"temperature": 0.1}, {"window": 4}], ids=str)
def test_what_belongs_to_one_sequence_is_refused_between_two(choices: dict[str, Any]) -> None:
    config, slot = AttentionConfig(**choices), Slot(dim=DIM, heads=HEADS, memory_dim=DIM)
    (name,) = choices
    with pytest.raises(ConfigError, match=f"a {name} has no meaning between two sequences: leave {name} unset"):
        config.build(slot)
    assert config.for_memory().build(slot).cross


@pytest.mark.parametrize("bias", [True, False])
def test_an_elementwise_gate_multiplies_the_heads_outputs_and_has_a_bias_where_the_queries_have_one(bias: bool) -> None:
    mixer, x = build(gate="elementwise", bias=bias, out_bias=False), rows()
    assert mixer.gate is not None and (mixer.gate.bias is not None) == bias
    if bias:
        torch.nn.init.normal_(mixer.gate.bias)
    logits, gate = mixer.gate(x), mixer.gate
    mixer.gate, out = None, mixer.out
    mixer.out = torch.nn.Identity()
    heads = mixer(x, Context())  # (B, T, H V)
    mixer.gate, mixer.out = gate, out
    torch.testing.assert_close(mixer(x, Context()), out(heads * torch.sigmoid(logits)), **fp64)
