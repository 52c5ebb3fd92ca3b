"""Presets with experts: all parameters and those that one token passes through, counted on the meta device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as hf

import zoo
from zoo import registry
from zoo.inspection.count import count, count_parameters, idle_parameters
from zoo.interop.family import experts
from zoo.interop.hub import FAMILIES

COUNTS = {
    "mixtral_8x7b": (46_702_792_704, 12_879_925_248),
    "mixtral_8x22b": (140_630_071_296, 39_161_468_928),
    "qwen3_30b_a3b": (30_532_122_624, 3_353_032_704),
    "qwen3_235b_a22b": (235_093_634_560, 22_190_763_520),
    "deepseek_v3": (671_026_404_352, 37_552_282_624),
    "llama4_scout": (107_769_861_120, 17_172_894_720),
    "llama4_maverick": (400_711_848_960, 17_184_691_200),
    "qwen3_next": (79_674_391_296, 3_874_929_408),
    "kimi_linear": (49_133_074_464, 3_494_852_640),
    "kimi_linear_48b_a3b": (49_122_675_072, 3_484_453_248),
    "jamba": (51_570_323_328, 12_110_311_296),
    "minimax_01": (456_089_655_296, 48_403_306_496),
    "switch_base_8": (619_339_008, 222_977_280),
    "switch_base_16": (1_072_397_568, 223_051_008),
    "switch_base_32": (1_978_514_688, 223_198_464),
    "switch_base_64": (3_790_748_928, 223_493_376),
    "switch_base_128": (7_415_217_408, 224_083_200),
    "switch_base_256": (14_664_154_368, 225_262_848),
    "switch_large_128": (26_309_291_008, 740_813_824),
}
"""All, and active with the vocabulary's tables."""
KINDS = {"mixtral": "mixtral", "qwen3": "qwen3_moe", "deepseek": "deepseek_v3", "llama4": "llama4_text"}
KINDS |= {"switch": "switch_transformers", "qwen3_next": "qwen3_next", "kimi": "kimi_linear", "jamba": "jamba"}
PUBLISHED: dict[str, dict[str, Any]] = {
    "mixtral_8x7b": {"num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": None, "rms_norm_eps": 1e-5},
    "qwen3_30b_a3b": {
        "num_experts": 128,
        "norm_topk_prob": True,
        "moe_intermediate_size": 768,
        "head_dim": 128,
        "mlp_only_layers": [],
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
    },
    "deepseek_v3": {
        "n_group": 8,
        "topk_group": 4,
        "routed_scaling_factor": 2.5,
        "first_k_dense_replace": 3,
        "rope_interleave": True,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 40.0,
            "original_max_position_embeddings": 4096,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "truncate": True,
        },
    },
    "llama4_scout": {"use_qk_norm": True, "attention_chunk_size": 8192, "no_rope_layers": [1, 1, 1, 0] * 12},
    "llama4_maverick": {"use_qk_norm": False, "moe_layers": list(range(1, 48, 2)), "intermediate_size_mlp": 16384},
    "qwen3_next": {
        "num_experts": 512,
        "num_experts_per_tok": 10,
        "norm_topk_prob": True,
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 12,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_value_head_dim": 128,
        "head_dim": 256,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000000.0, "partial_rotary_factor": 0.25},
    },
    "kimi_linear_48b_a3b": {
        "layer_types": [
            "full_attention" if layer in (4, 8, 12, 16, 20, 24, 27) else "linear_attention" for layer in range(1, 28)
        ],
        "mlp_layer_types": ["dense"] + ["sparse"] * 26,
        "routed_scaling_factor": 2.446,
        "linear_num_heads": 32,
        "linear_head_dim": 128,
        "kv_lora_rank": 512,
        "q_lora_rank": None,
    },
    "jamba": {
        "attn_layer_period": 8,
        "attn_layer_offset": 4,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "mamba_dt_rank": 256,
        "mamba_d_state": 16,
    },
    "switch_base_8": {"d_ff": 3072, "num_sparse_encoder_layers": 6, "num_sparse_decoder_layers": 6, "d_kv": 64},
}
"""Facts of the published config.json files, in transformers' words."""


def on_meta(name: str) -> Any:
    with torch.device("meta"):
        return zoo.create_model(name)


def their_config(name: str) -> dict[str, Any]:
    return FAMILIES[KINDS.get(name) or KINDS[name.partition("_")[0]]].config_to(registry.decode("model", name))


@pytest.mark.parametrize("name", COUNTS)
def test_a_preset_has_the_published_number_of_parameters_and_of_active_ones(name: str) -> None:
    model = on_meta(name)
    total, without_tables = count_parameters(model)
    assert (total, total - idle_parameters(model)) == COUNTS[name]
    assert total - without_tables == model.config.vocab_size * model.config.dim  # the second convention


def test_every_preset_with_experts_is_counted() -> None:
    presets = [name for name in zoo.list_models() if registry.describe("model", name).is_preset]
    presets = [name for name in presets if not name.startswith(("vit_", "deit_"))]
    assert {name for name in presets if experts(registry.decode("model", name)) is not None} == COUNTS.keys()


WRITTEN = [name for name in COUNTS if not name.startswith("switch") or name.endswith("_8")]
WRITTEN.remove("minimax_01")  # which their class does not compute exactly: tests/interop/test_minimax_parity.py


@pytest.mark.parametrize("name", WRITTEN)
def test_transformers_class_of_the_same_config_has_the_same_number(name: str) -> None:
    plain = their_config(name)
    values = {key: value for key, value in plain.items() if key not in ("model_type", "architectures")}
    with torch.device("meta"):
        peer = getattr(hf, plain["architectures"][0])(hf.AutoConfig.for_model(plain["model_type"], **values))
    assert sum(parameter.numel() for parameter in peer.parameters()) == COUNTS[name][0]


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_preset_has_the_facts_of_the_published_config(name: str) -> None:
    plain = their_config(name)
    assert {key: plain[key] for key in PUBLISHED[name]} == PUBLISHED[name]


def test_count_tells_both_conventions_and_the_cost_of_the_experts_at_work() -> None:
    model = on_meta("mixtral_8x7b")
    told = count(model, torch.zeros(1, 8, dtype=torch.long))
    table = 32000 * 4096
    assert (told.params, told.params_active) == COUNTS["mixtral_8x7b"]
    assert told.params_active_non_embedding == told.params_active - table
    scores = 32 * 2 * 2 * 32 * 8 * 8 * 128  # layers, two products, a multiply-add, heads, T x S, width
    norms = 65 * 4096
    assert told.flops_forward == 2 * 8 * (told.params_active_non_embedding - norms) + scores
