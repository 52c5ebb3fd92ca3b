"""Latent attention with the weights of transformers' DeepseekV3Attention gives its outputs, cached steps included."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import DeepseekV3Config, DynamicCache
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention, DeepseekV3RotaryEmbedding

from zoo.blocks import Context, Slot
from zoo.blocks.mixers.mla import LatentAttention, MLAConfig
from zoo.blocks.positions import RopeConfig
from zoo.blocks.positions.rotary_scaling import YarnScalingConfig

DIM, HEADS, T = 32, 4, 12
fp32 = {"rtol": 0.0, "atol": 1e-5}
NAMES = {"q": "q_proj", "q.down": "q_a_proj", "q.norm": "q_a_layernorm", "q.up": "q_b_proj"}
NAMES |= {"kv_down": "kv_a_proj_with_mqa", "kv_norm": "kv_a_layernorm", "kv_up": "kv_b_proj", "out": "o_proj"}
YARN = {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 64, "rope_theta": 10000.0}
YARN |= {"beta_fast": 32.0, "beta_slow": 1.0}
V3 = {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}
V2 = {**YARN, "mscale": 0.707, "mscale_all_dim": 0.707}
SCALING = YarnScalingConfig(factor=40.0, original_max_len=64)
# 0.1 x 0.707 ln 40 + 1, DeepSeek-V2's factor
V2_SCALING = YarnScalingConfig(factor=40.0, original_max_len=64, attention_factor=1.2608038)

CASES: dict[str, tuple[dict[str, Any], dict[str, Any], RopeConfig]] = {
    "V3": ({}, {}, RopeConfig(layout="interleaved")),
    "V3 yarn": ({"rope_parameters": V3}, {}, RopeConfig(layout="interleaved", scaling=SCALING)),
    "V2 yarn": ({"rope_parameters": V2}, {}, RopeConfig(layout="interleaved", scaling=V2_SCALING)),
    "yarn on cos and sin": (
        {"rope_parameters": YARN}, {"yarn_factor": "rotary"}, RopeConfig(layout="interleaved", scaling=SCALING),
    ),
    "no query latent": ({"q_lora_rank": None}, {"q_rank": None}, RopeConfig(layout="interleaved")),
    "half layout": ({"rope_interleave": False}, {}, RopeConfig()),
    "biases": ({"attention_bias": True}, {"bias": True, "out_bias": True}, RopeConfig(layout="interleaved")),
}  # fmt: skip


def pair(case: str) -> tuple[DeepseekV3Attention, DeepseekV3RotaryEmbedding, LatentAttention]:
    """Their layer with random weights everywhere, its angles, and ours with the same weights."""
    theirs, ours, position = CASES[case]
    torch.manual_seed(0)
    sizes = {"q_lora_rank": 12, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 6}
    config = DeepseekV3Config(
        **{"hidden_size": DIM, "num_attention_heads": HEADS, "num_key_value_heads": HEADS, **sizes, **theirs},
        max_position_embeddings=2560,
        attn_implementation="eager",
    )
    peer = DeepseekV3Attention(config, 0).eval()
    with torch.no_grad():
        for parameter in peer.parameters():
            parameter.normal_(std=0.3).add_(1.0 if parameter.dim() == 1 else 0.0)
    widths = {"q_rank": 12, "kv_rank": 16, "nope_dim": 8, "rope_dim": 8, "value_dim": 6, "position": position}
    mixer = MLAConfig(**{**widths, **ours}).build(Slot(dim=DIM, heads=HEADS, causal=True)).eval()
    state = peer.state_dict()
    modules = {name: NAMES[name.rpartition(".")[0]] + "." + name.rpartition(".")[2] for name in mixer.state_dict()}
    mixer.load_state_dict({name: state.pop(theirs) for name, theirs in modules.items()})
    assert not state
    return peer, DeepseekV3RotaryEmbedding(config), mixer


def call(peer: Any, rotary: Any, x: torch.Tensor, allowed: torch.Tensor, positions: torch.Tensor, **cache: Any) -> Any:
    mask = torch.zeros(allowed.shape).masked_fill(~allowed, torch.finfo(torch.float32).min)
    return peer(x, rotary(x, positions), mask, **cache)[0]


def rows(batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, T, DIM, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("case", CASES)
def test_outputs_and_gradients_equal_transformers(case: str) -> None:
    peer, rotary, mixer = pair(case)
    x, y = rows().requires_grad_(), rows().requires_grad_()
    causal = torch.ones(T, T, dtype=torch.bool).tril()[None, None]
    expected, found = call(peer, rotary, x, causal, torch.arange(T)[None]), mixer(y, Context())
    torch.testing.assert_close(found, expected, **fp32)
    expected.square().mean().backward()
    found.square().mean().backward()
    torch.testing.assert_close(y.grad, x.grad, **fp32)


@pytest.mark.parametrize("case", ["V3", "V3 yarn"])
def test_left_padded_rows_equal_transformers(case: str) -> None:
    peer, rotary, mixer = pair(case)
    mask = torch.ones(2, T, dtype=torch.bool)
    mask[0, :5] = False
    allowed = (torch.ones(T, T, dtype=torch.bool).tril() & mask[:, None])[:, None]
    expected = call(peer, rotary, rows(), allowed, (mask.cumsum(-1) - 1).clamp(min=0))
    torch.testing.assert_close(mixer(rows(), Context(token_mask=mask))[mask], expected[mask], **fp32)


@pytest.mark.parametrize("case", ["V3", "V3 yarn", "no query latent"])
def test_absorbed_steps_equal_transformers_cache(case: str) -> None:
    peer, rotary, mixer = pair(case)
    x, cache, state = rows(), DynamicCache(), mixer.init_state(2, T)
    allowed = torch.ones(T, T, dtype=torch.bool).tril()
    assert mixer._absorbs(1, 8)
    with torch.no_grad():
        for start, stop in [(0, 7), *((t, t + 1) for t in range(7, T))]:
            mask, time = allowed[None, None, start:stop, :stop], torch.arange(start, stop)[None]
            expected = call(peer, rotary, x[:, start:stop], mask, time, cache=cache)
            torch.testing.assert_close(mixer(x[:, start:stop], Context(), state), expected, **fp32)
