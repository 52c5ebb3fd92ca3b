"""Every language preset has the published size, counted on the meta device and against transformers' own classes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as hf
from torch import nn

import zoo
from tests.models.test_moe_presets import COUNTS as EXPERT_COUNTS
from zoo import registry
from zoo.interop.hf_electra import config_to_pair
from zoo.interop.hub import FAMILIES

COUNTS = {
    "gpt1": 116_534_784,
    "gpt2": 124_439_808,
    "gpt2_medium": 354_823_168,
    "gpt2_large": 774_030_080,
    "gpt2_xl": 1_557_611_200,
    "gpt3_175b": 174_604_259_328,
    "llama_7b": 6_738_415_616,
    "llama_13b": 13_015_864_320,
    "llama_33b": 32_528_943_616,
    "llama_65b": 65_285_660_672,
    "llama2_7b": 6_738_415_616,
    "llama2_13b": 13_015_864_320,
    "llama2_70b": 68_976_648_192,
    "llama3_8b": 8_030_261_248,
    "llama3_70b": 70_553_706_496,
    "llama3_405b": 405_853_388_800,
    "llama3_1b": 1_235_814_400,
    "llama3_3b": 3_212_749_824,
    "mistral_7b": 7_241_732_096,
    "qwen3_0.6b": 596_049_920,
    "qwen3_1.7b": 1_720_574_976,
    "qwen3_4b": 4_022_468_096,
    "qwen3_8b": 8_190_735_360,
    "qwen3_14b": 14_768_307_200,
    "qwen3_32b": 32_762_123_264,
    "gemma2_2b": 2_614_341_888,
    "gemma2_9b": 9_241_705_984,
    "gemma2_27b": 27_227_128_320,
    "olmo2_1b": 1_484_916_736,
    "olmo2_7b": 7_298_617_344,
    "olmo2_13b": 13_716_198_400,
    "smollm2_135m": 134_515_008,
    "mamba_130m": 129_135_360,
    "mamba_370m": 371_516_416,
    "mamba_790m": 793_204_224,
    "mamba_1_4b": 1_372_178_432,
    "mamba_2_8b": 2_768_345_600,
    "mamba2_130m": 128_989_632,
    "mamba2_370m": 368_346_624,
    "mamba2_780m": 780_161_280,
    "mamba2_1_3b": 1_343_757_312,
    "mamba2_2_7b": 2_702_599_680,
    "bert_base": 110_106_428,
    "bert_large": 336_226_108,
    "roberta_base": 124_697_433,
    "roberta_large": 355_412_057,
    "distilbert_base": 66_985_530,
    "modernbert_base": 149_655_232,
    "modernbert_large": 395_881_664,
    "t5_small": 60_506_624,
    "t5_base": 222_903_552,
    "t5_large": 737_668_096,
    "t5_3b": 2_851_598_336,
    "t5_11b": 11_307_321_344,
    "t5_v1_1_small": 76_961_152,
    "t5_v1_1_base": 247_577_856,
    "t5_v1_1_large": 783_150_080,
    "t5_v1_1_xl": 2_849_757_184,
    "t5_v1_1_xxl": 11_135_332_352,
    "transformer_base": 63_082_496,
    "transformer_big": 214_245_376,
    "bart_base": 139_420_416,
    "bart_large": 406_291_456,
    "marian_base": 73_944_309,
}

ELECTRA = {"small": (13_549_057, 4_620_026), "base": (109_483_009, 33_740_602), "large": (335_142_913, 51_295_290)}
"""Discriminator and generator, each with the embeddings that both read."""
WITHOUT_PEER = {"gpt1", "transformer_base", "transformer_big"}
PUBLISHED: dict[str, dict[str, Any]] = {
    "gpt2": {"n_positions": 1024, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new", "n_head": 12},
    "llama_7b": {"rms_norm_eps": 1e-6, "max_position_embeddings": 2048, "vocab_size": 32000},
    "llama_65b": {"rms_norm_eps": 1e-5, "num_attention_heads": 64, "intermediate_size": 22016},
    "llama2_7b": {"rms_norm_eps": 1e-5, "max_position_embeddings": 4096},
    "llama2_70b": {"num_key_value_heads": 8, "intermediate_size": 28672},
    "llama3_8b": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
        "max_position_embeddings": 8192,
        "vocab_size": 128256,
        "tie_word_embeddings": False,
    },
    "llama3_1b": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        "tie_word_embeddings": True,
        "head_dim": 64,
    },
    "mistral_7b": {
        "sliding_window": 4096,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    },
    "qwen3_4b": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
        "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
    },
    "qwen3_8b": {"tie_word_embeddings": False, "num_key_value_heads": 8, "head_dim": 128},
    "gemma2_27b": {
        "query_pre_attn_scalar": 144,
        "head_dim": 128,
        "sliding_window": 4096,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "layer_types": ["sliding_attention", "full_attention"] * 23,
    },
    "gemma2_9b": {"query_pre_attn_scalar": 256, "rms_norm_eps": 1e-6, "hidden_activation": "gelu_pytorch_tanh"},
    "olmo2_7b": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 4096,
    },
    "smollm2_135m": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
        "num_key_value_heads": 3,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
    },
    "mamba_2_8b": {"hidden_size": 2560, "state_size": 16, "time_step_rank": 160, "expand": 2, "conv_kernel": 4},
    "mamba2_2_7b": {"hidden_size": 2560, "state_size": 128, "num_heads": 80, "head_dim": 64, "n_groups": 1},
    "bert_base": {"layer_norm_eps": 1e-12, "max_position_embeddings": 512, "type_vocab_size": 2, "hidden_act": "gelu"},
    "roberta_base": {"layer_norm_eps": 1e-5, "max_position_embeddings": 514, "type_vocab_size": 1, "pad_token_id": 1},
    "distilbert_base": {"n_layers": 6, "hidden_dim": 3072, "activation": "gelu"},
    "modernbert_base": {
        "local_attention": 128,
        "norm_eps": 1e-5,
        "max_position_embeddings": 8192,
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 160000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
    },
    "t5_11b": {"d_kv": 128, "num_heads": 128, "d_ff": 65536, "feed_forward_proj": "relu", "layer_norm_epsilon": 1e-6},
    "t5_v1_1_small": {"feed_forward_proj": "gated-gelu", "num_layers": 8, "num_heads": 6, "tie_word_embeddings": False},
    "bart_large": {"max_position_embeddings": 1024, "decoder_start_token_id": 2, "scale_embedding": False},
    "marian_base": {"activation_function": "silu", "scale_embedding": True, "decoder_start_token_id": 58100},
}
"""Facts of the published config.json files, in transformers' words."""


def on_meta(config: Any) -> nn.Module:
    with torch.device("meta"):
        return zoo.create_model(config)


def parameters(*modules: nn.Module) -> int:
    return sum(parameter.numel() for parameter in {p: None for module in modules for p in module.parameters()})


KINDS = {"llama2": "llama", "llama3": "llama", "smollm2": "llama", "gpt3": "gpt2"}


def their_config(name: str) -> dict[str, Any]:
    kind = name.partition("_")[0]
    return FAMILIES[KINDS.get(kind, kind)].config_to(registry.decode("model", name))


def test_every_preset_of_a_language_family_is_counted() -> None:
    presets = [name for name in zoo.list_models() if registry.describe("model", name).is_preset]
    elsewhere = ("vit_", "deit_", "dit_", "sd3_", "whisper_", "decision_")  # tests of their own
    told = COUNTS.keys() | EXPERT_COUNTS.keys() | {f"electra_{size}" for size in ELECTRA}
    assert {name for name in presets if not name.startswith(elsewhere)} == told


@pytest.mark.parametrize("name", COUNTS)
def test_a_preset_has_the_published_number_of_parameters(name: str) -> None:
    assert parameters(on_meta(name)) == COUNTS[name]


@pytest.mark.parametrize("name", sorted(COUNTS.keys() - WITHOUT_PEER))
def test_transformers_class_of_the_same_config_has_the_same_number(name: str) -> None:
    plain = their_config(name)
    values = {key: value for key, value in plain.items() if key not in ("model_type", "architectures")}
    kind = getattr(hf, plain["architectures"][0])
    with torch.device("meta"):
        peer = kind(hf.AutoConfig.for_model(plain["model_type"], **values))
    expected = parameters(peer)
    if name.startswith("t5_v1_1"):  # transformers 5 builds it tied, and unties when it loads a head
        expected += plain["vocab_size"] * plain["d_model"]
    if name == "marian_base":  # theirs stores two tables of sines, and its bias of the logits is a buffer
        expected += plain["vocab_size"] - 2 * plain["max_position_embeddings"] * plain["d_model"]
    assert COUNTS[name] == expected


def test_gpt1_has_as_many_as_transformers_own() -> None:
    with torch.device("meta"):
        peer = hf.OpenAIGPTLMHeadModel(hf.OpenAIGPTConfig())
    assert COUNTS["gpt1"] == parameters(peer)


@pytest.mark.parametrize("size", ELECTRA)
def test_both_parts_of_an_electra_have_as_many_as_transformers(size: str) -> None:
    model: Any = on_meta(f"electra_{size}")
    own = parameters(model.discriminator, model.dense, model.replaced_head), parameters(model.generator)
    assert own == ELECTRA[size]
    kinds = (hf.ElectraForPreTraining, hf.ElectraForMaskedLM)
    for count, kind, plain in zip(own, kinds, config_to_pair(model.config), strict=True):
        values = {key: value for key, value in plain.items() if key not in ("model_type", "architectures")}
        with torch.device("meta"):
            assert parameters(kind(hf.ElectraConfig(**values))) == count


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_preset_has_the_facts_of_the_published_config(name: str) -> None:
    plain = their_config(name)
    assert {key: plain[key] for key in PUBLISHED[name]} == PUBLISHED[name]
