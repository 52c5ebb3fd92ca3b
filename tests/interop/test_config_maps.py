"""Configs of transformers: what has a counterpart is mapped, and everything else is refused in one line."""

from __future__ import annotations

from typing import Any

import pytest
import transformers as hf

import zoo.library  # noqa: F401  registers the presets
from tests.interop.peers import EVERY, build
from zoo import registry
from zoo.interop.hub import FAMILIES
from zoo.registry import ConfigError

PRESETS = {
    **dict.fromkeys(("gpt2", "gpt2_medium", "gpt2_large", "gpt2_xl", "gpt3_175b"), "gpt2"),
    **dict.fromkeys(("llama_7b", "llama2_70b", "llama3_8b", "llama3_405b", "llama3_1b", "smollm2_135m"), "llama"),
    "mistral_7b": "mistral",
    **{f"qwen3_{size}": "qwen3" for size in ("0.6b", "1.7b", "4b", "8b", "14b", "32b")},
    **{f"gemma2_{size}": "gemma2" for size in ("2b", "9b", "27b")},
    **{f"olmo2_{size}": "olmo2" for size in ("1b", "7b", "13b")},
    "bert_base": "bert",
    "bert_large": "bert",
    "roberta_base": "roberta",
    "roberta_large": "roberta",
    "distilbert_base": "distilbert",
    "modernbert_base": "modernbert",
    "modernbert_large": "modernbert",
    **{f"t5_{size}": "t5" for size in ("small", "11b", "v1_1_small", "v1_1_xxl")},
    "bart_base": "bart",
    "bart_large": "bart",
    "marian_base": "marian",
    **dict.fromkeys(("mixtral_8x7b", "mixtral_8x22b"), "mixtral"),
    **dict.fromkeys(("qwen3_30b_a3b", "qwen3_235b_a22b"), "qwen3_moe"),
    "deepseek_v3": "deepseek_v3",
    "qwen3_next": "qwen3_next",
    **dict.fromkeys(("kimi_linear", "kimi_linear_48b_a3b"), "kimi_linear"),
    **dict.fromkeys(("llama4_scout", "llama4_maverick"), "llama4_text"),
    "jamba": "jamba",
    **dict.fromkeys(("switch_base_8", "switch_large_128"), "switch_transformers"),
}


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_goes_to_their_config_and_back_and_their_class_accepts_it(name: str) -> None:
    config = registry.decode("model", name)
    family = FAMILIES[PRESETS[name]]
    plain = family.config_to(config)  # reads it back and compares all that is computed
    theirs = hf.AutoConfig.for_model(plain["model_type"], **{k: v for k, v in plain.items() if k != "model_type"})
    family.config_to(family.config_from(theirs.to_dict()))
    again = family.config_to(family.config_from(theirs.to_dict()))
    assert {k: again[k] for k in plain} == plain


WRONG: list[tuple[str, dict[str, Any], str]] = [
    (
        "llama",
        {"hidden_act": "mish"},
        "hidden_act 'mish' has no counterpart here for model_type 'llama'; choices: gelu,",
    ),
    (
        "llama",
        {"rope_parameters": {"rope_type": "longrope"}},
        "rope_type 'longrope' .* choices: default, linear, dynamic",
    ),
    ("llama", {"rope_scaling": {"type": "su", "factor": 2.0}, "rope_parameters": None}, "rope_type 'su'"),
    ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "beta": 1}}, "rope parameter beta 1"),
    ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 .* choices: 1.0"),
    ("llama", {"sliding_window": 8}, "sliding_window 8"),
    ("llama", {"layer_types": ["sliding_attention"] * 3}, "layer_types"),
    ("llama", {"num_hidden_layers": "3"}, "num_hidden_layers '3' .* choices: a whole number"),
    ("llama", {"attention_bias": 1}, "attention_bias 1 .* choices: true, false"),
    ("llama", {"residual_multiplier": 0.3}, "residual_multiplier 0.3 is unknown .* may change what it computes"),
    ("qwen3", {"layer_types": ["linear_attention"] * 3}, "layer_types"),
    ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention True"),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx True .* choices: False"),
    ("gpt2", {"add_cross_attention": True}, "add_cross_attention True"),
    (
        "bert",
        {"position_embedding_type": "relative_key"},
        "position_embedding_type 'relative_key' .* choices: 'absolute'",
    ),
    ("bert", {"is_decoder": True}, "is_decoder True"),
    ("bert", {"hidden_act": "relu"}, "hidden_act 'relu'"),
    ("bert", {"tie_word_embeddings": False}, "tie_word_embeddings False .* choices: True"),
    ("distilbert", {"sinusoidal_pos_embds": True}, "sinusoidal_pos_embds True"),
    ("electra", {"hidden_act": "relu"}, "hidden_act 'relu'"),
    ("modernbert", {"decoder_bias": False}, "decoder_bias False .* choices: True"),
    ("modernbert", {"classifier_activation": "silu"}, "classifier_activation 'silu'"),
    ("t5", {"feed_forward_proj": "gated-mish"}, "feed_forward_proj 'gated-mish'"),
    ("bart", {"decoder_attention_heads": 2}, "decoder_attention_heads 2 .* choices: 4"),
    ("bart", {"normalize_before": True}, "normalize_before True .* choices: False"),
    ("bart", {"tie_word_embeddings": False}, "tie_word_embeddings False"),
    ("marian", {"decoder_vocab_size": 7}, "decoder_vocab_size 7 .* share_encoder_decoder_embeddings false"),
]


@pytest.mark.parametrize(("kind", "changes", "message"), WRONG, ids=lambda value: str(value)[:50])
def test_what_has_no_counterpart_is_refused_with_field_value_and_choices(
    kind: str, changes: dict[str, Any], message: str
) -> None:
    name = next(name for name in EVERY if name.startswith(kind))
    plain = build(name).config.to_dict() | changes
    with pytest.raises(ConfigError, match=message) as caught:
        FAMILIES[kind].config_from(plain)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_silent_config_means_the_defaults_of_their_class(kind: str) -> None:
    """An older config.json holds only what differs from the defaults."""
    full = hf.AutoConfig.for_model(kind).to_dict()
    assert FAMILIES[kind].config_from({"model_type": kind}) == FAMILIES[kind].config_from(full)


def test_configs_as_published_are_read() -> None:
    """The fields of well-known config.json files, written from memory in the words of their versions."""
    llama = FAMILIES["llama"].config_from(
        {
            "model_type": "llama", "architectures": ["LlamaForCausalLM"], "attention_bias": False,
            "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 8192, "max_position_embeddings": 131072,
            "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8, "head_dim": 64,
            "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "tie_word_embeddings": True, "vocab_size": 128256,
            "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "rope_type": "llama3",
                                "original_max_position_embeddings": 8192},
            "pretraining_tp": 1, "torch_dtype": "bfloat16", "transformers_version": "4.45.0.dev0", "use_cache": True,
            "bos_token_id": 128000, "eos_token_id": 128001, "mlp_bias": False, "initializer_range": 0.02,
        }
    )  # fmt: skip
    assert FAMILIES["llama"].config_to(llama) == FAMILIES["llama"].config_to(registry.decode("model", "llama3_1b"))
    bert = FAMILIES["bert"].config_from(
        {
            "model_type": "bert",
            "architectures": ["BertForMaskedLM"],
            "attention_probs_dropout_prob": 0.1,
            "gradient_checkpointing": False,
            "hidden_act": "gelu",
            "hidden_dropout_prob": 0.1,
            "hidden_size": 768,
            "initializer_range": 0.02,
            "intermediate_size": 3072,
            "layer_norm_eps": 1e-12,
            "pad_token_id": 0,
            "max_position_embeddings": 512,
            "num_attention_heads": 12,
            "num_hidden_layers": 12,
            "position_embedding_type": "absolute",
            "type_vocab_size": 2,
            "use_cache": True,
            "vocab_size": 30522,
        }
    )
    assert (bert.depth, bert.masked_lm, bert.next_sentence) == (12, True, False)  # type: ignore[attr-defined]
    t5 = FAMILIES["t5"].config_from(
        {
            "model_type": "t5",
            "architectures": ["T5ForConditionalGeneration"],
            "d_ff": 1024,
            "d_kv": 64,
            "d_model": 512,
            "decoder_start_token_id": 0,
            "dropout_rate": 0.1,
            "eos_token_id": 1,
            "num_heads": 6,
            "feed_forward_proj": "gated-gelu",
            "initializer_factor": 1.0,
            "is_encoder_decoder": True,
            "layer_norm_epsilon": 1e-06,
            "num_decoder_layers": 8,
            "num_layers": 8,
            "output_past": True,
            "pad_token_id": 0,
            "relative_attention_num_buckets": 32,
            "tie_word_embeddings": False,
            "use_cache": True,
            "vocab_size": 32128,
        }
    )
    assert FAMILIES["t5"].config_to(t5) == FAMILIES["t5"].config_to(registry.decode("model", "t5_v1_1_small")) | {
        "dropout_rate": 0.1
    }
