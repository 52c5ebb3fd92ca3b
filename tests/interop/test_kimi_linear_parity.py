"""Our GPT of KDA and latent attention with the weights of transformers' Kimi Linear: what other tests leave open.

Logits, gradients, padding on both sides and greedy tokens from a state are compared with those of the other decoders
with experts (test_moe_family_parity.py), the mixers alone in test_delta_parity.py and test_mla_parity.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file

import zoo
import zoo.library  # registers the presets
from tests.interop.peers import EXPERT_DECODERS, VOCAB, build, ours, rows
from zoo import registry
from zoo.interop.hub import FAMILIES, from_hf, to_hf
from zoo.registry import ConfigError

NAMES = [name for name in EXPERT_DECODERS if name.startswith("kimi_linear")]
every = pytest.mark.parametrize("name", NAMES)


@every
def test_a_folder_of_transformers_comes_back_as_it_was(name: str, tmp_path: Path) -> None:
    peer = build(name)
    peer.save_pretrained(tmp_path / "theirs")
    model = from_hf(tmp_path / "theirs")
    to_hf(model, tmp_path / "ours")
    ids, mask = rows("right")
    loaded = hf.AutoModelForCausalLM.from_pretrained(tmp_path / "ours").eval()
    pairs = zip(loaded.state_dict().items(), peer.state_dict().items(), strict=True)
    assert all(a == b and torch.equal(x, y) for (a, x), (b, y) in pairs)
    torch.testing.assert_close(model(ids, token_mask=mask)[mask], loaded(ids).logits[mask], rtol=0, atol=1e-5)
    again = from_hf(tmp_path / "ours")
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), model.parameters(), strict=True))


def test_both_layouts_are_read_and_that_of_published_files_is_written(tmp_path: Path) -> None:
    peer = build("kimi_linear")
    peer.save_pretrained(tmp_path)
    save_file({key: value.clone() for key, value in peer.state_dict().items()}, tmp_path / "memory.safetensors")
    single = from_hf(tmp_path)
    (tmp_path / "memory.safetensors").rename(tmp_path / "model.safetensors")
    pairs = zip(single.state_dict().items(), from_hf(tmp_path).state_dict().items(), strict=True)
    assert all(a == b and torch.equal(x, y) for (a, x), (b, y) in pairs)
    to_hf(single, tmp_path / "ours")
    written = load_file(tmp_path / "ours" / "model.safetensors")
    layer = "model.layers.0."
    assert written[f"{layer}self_attn.A_log"].shape == (1, 1, 3, 1)
    assert written[f"{layer}self_attn.k_conv1d.weight"].shape == (24, 1, 4)
    assert f"{layer}self_attn.f_a_proj.weight" in written and f"{layer}mlp.gate_proj.weight" in written
    moe = "model.layers.1.block_sparse_moe."
    names = ("gate.e_score_correction_bias", "experts.3.w2.weight", "shared_experts.up_proj.weight")
    assert all(f"{moe}{name}" in written for name in names)


@every
def test_cached_steps_equal_one_pass_in_fp64_with_left_padding(name: str) -> None:
    model: Any = ours(build(name))[0].double()
    ids, mask = rows("left")
    more = torch.randint(3, VOCAB, (3, 5), generator=torch.Generator().manual_seed(4))
    whole, real = torch.cat((ids, more), 1), torch.cat((mask, torch.ones_like(more, dtype=torch.bool)), 1)
    with torch.no_grad():
        expected, state = model(whole, token_mask=real), model.init_state(3, whole.shape[1])
        pieces = [
            model(part, token_mask=seen, state=state)
            for part, seen in zip(whole.split([9, 5, *[1] * 5], 1), real.split([9, 5, *[1] * 5], 1), strict=True)
        ]
    torch.testing.assert_close(torch.cat(pieces, 1)[real], expected[real], rtol=0, atol=1e-10)


@every
def test_generated_tokens_are_those_of_whole_passes(name: str) -> None:
    model: Any = ours(build(name))[0].double()
    ids, mask = rows("left")
    prompts = [row[real] for row, real in zip(ids, mask, strict=True)]
    found = zoo.generate(model, prompts, max_new_tokens=6).new
    with torch.no_grad():
        for prompt, new in zip(prompts, found, strict=True):
            seen = prompt
            for token in new:
                assert model(seen[None])[0, -1].argmax() == token
                seen = torch.cat((seen, token[None]))


PUBLISHED: dict[str, Any] = {
    "model_type": "kimi_linear", "architectures": ["KimiLinearForCausalLM"], "bos_token_id": 163584,
    "auto_map": {"AutoConfig": "configuration_kimi.KimiLinearConfig"}, "dtype": "bfloat16", "eos_token_id": 163586,
    "first_k_dense_replace": 1, "head_dim": 72, "hidden_act": "silu", "hidden_size": 2304, "initializer_range": 0.02,
    "intermediate_size": 9216, "kv_lora_rank": 512,
    "linear_attn_config": {
        "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
        "head_dim": 128,
        "kda_layers": [1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 14, 15, 17, 18, 19, 21, 22, 23, 25, 26],
        "num_heads": 32,
        "short_conv_kernel_size": 4,
    },
    "mla_use_nope": True, "model_max_length": 1048576, "moe_intermediate_size": 1024, "moe_layer_freq": 1,
    "moe_renormalize": True, "moe_router_activation_func": "sigmoid", "num_attention_heads": 32,
    "num_expert_group": 1, "num_experts": 256, "num_experts_per_token": 8, "num_hidden_layers": 27,
    "num_key_value_heads": 32, "num_nextn_predict_layers": 0, "num_shared_experts": 1, "pad_token_id": 163839,
    "q_lora_rank": None, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-05, "rope_scaling": None,
    "rope_theta": 10000.0, "routed_scaling_factor": 2.446, "tie_word_embeddings": False, "topk_group": 1,
    "use_cache": True, "use_grouped_topk": True, "v_head_dim": 128, "vocab_size": 163840,
}  # fmt: skip
"""The fields of the config.json of Kimi-Linear-48B-A3B-Instruct, written from memory."""


def test_a_config_as_published_is_read() -> None:
    family = FAMILIES["kimi_linear"]
    config = family.config_from(PUBLISHED)
    assert family.config_to(config) == family.config_to(registry.decode("model", "kimi_linear_48b_a3b"))


def test_transformers_reads_a_config_as_published_to_the_same() -> None:
    family = FAMILIES["kimi_linear"]
    theirs = hf.AutoConfig.for_model(**{key: value for key, value in PUBLISHED.items() if key != "auto_map"})
    assert family.config_to(family.config_from(theirs.to_dict())) == family.config_to(family.config_from(PUBLISHED))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "situ"}, "hidden_act 'situ' .* choices: 'silu'"),
        ({"mla_use_nope": False}, "mla_use_nope False .* choices: True"),
        ({"moe_router_activation_func": "softmax"}, "moe_router_activation_func 'softmax' .* choices: 'sigmoid'"),
        ({"num_key_value_heads": 1}, "num_key_value_heads 1 .* choices: 32"),
        ({"num_shared_experts": 0}, "n_shared_experts 0 .* choices: 1 or more"),
        ({"layer_types": ["full_attention"]}, "layer_types .* choices: 27 of linear_attention, full_attention"),
        ({"mlp_layer_types": ["none"] * 27}, "mlp_layer_types .* choices: 27 of dense, sparse"),
        ({"moe_layer_freq": 2}, "moe_layer_freq 2 .* choices: 1"),
        ({"linear_attn_config": {"gate_lower_bound": -5.0}}, "linear_attn_config.gate_lower_bound -5.0"),
    ],
    ids=str,
)
def test_what_has_no_counterpart_here_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        FAMILIES["kimi_linear"].config_from(PUBLISHED | changes)
    assert "\n" not in str(caught.value)


EXPERT = {"name": "swiglu", "hidden": 8}
MOE = {"name": "moe", "experts": 4, "expert": EXPERT, "shared": EXPERT, "scores": "sigmoid", "bias_rate": 1e-3}
SMALL: dict[str, Any] = {
    "vocab_size": 20,
    "dim": 16,
    "depth": 3,
    "heads": 2,
    "max_len": 16,
    "tie_embeddings": False,
    "norm": {"name": "rmsnorm", "eps": 1e-5},
    "position": "none",
    "ffn": {"name": "hybrid", "first": [EXPERT], "pattern": [MOE]},
}


def small(delta: dict[str, Any], full: dict[str, Any], **choices: Any) -> Any:
    mixer = {"name": "hybrid", "pattern": [{"name": "kda", **delta}, {"name": "mla", **full}]}
    return zoo.create_model("gpt", **{**SMALL, "mixer": mixer, **choices}).eval()


@pytest.mark.parametrize("delta", [{}, {"rank": 8, "value_heads": 2, "chunk": 16}], ids=str)
def test_widths_that_are_left_to_the_family_are_told(delta: dict[str, Any], tmp_path: Path) -> None:
    model, ids = small(delta, {}), torch.randint(20, (2, 7))
    to_hf(model, tmp_path)
    loaded = hf.AutoModelForCausalLM.from_pretrained(tmp_path)
    torch.testing.assert_close(model(ids), loaded(ids).logits, rtol=0, atol=1e-5)
    torch.testing.assert_close(from_hf(tmp_path)(ids), model(ids), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("delta", "full", "choices", "message"),
    [
        ({"gate": "silu"}, {}, {}, "gate 'silu' .* choices: 'sigmoid'"),
        ({"rank": 3}, {}, {}, "rank 3 has no counterpart"),
        ({"expand_v": 2.0}, {}, {}, "expand_v 2.0 .* choices: 1.0"),
        ({"norm_eps": 1e-6}, {}, {}, "norm_eps 1e-06 .* choices: 1e-05"),
        ({}, {"gate": "head"}, {}, "gate 'head' .* choices: 'none'"),
        ({}, {"norm": {"name": "rmsnorm", "eps": 1e-5}}, {}, "norm.eps 1e-05 .* choices: 1e-06"),
        ({}, {}, {"position": "rope"}, "position.* has no counterpart"),
        ({}, {}, {"tie_embeddings": True}, "tie_embeddings True has no counterpart .* choices: False"),
        ({}, {}, {"ffn": {**MOE, "bias_rate": 0.0}}, "ffn.has_bias False .* choices: True"),
        ({}, {}, {"mixer": {"name": "hybrid", "pattern": "kda+gla"}}, "mixer 'gla' .* choices: kda, mla"),
    ],
    ids=str,
)
def test_what_their_class_cannot_hold_is_refused(
    delta: dict[str, Any], full: dict[str, Any], choices: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        to_hf(small(delta, full, **choices), tmp_path / "folder")
    assert "\n" not in str(caught.value) and not (tmp_path / "folder").exists()
