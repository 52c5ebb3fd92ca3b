"""Our GPT of Gated DeltaNet and gated attention with the weights of transformers' Qwen3-Next: what others leave open.

Logits, gradients, padding on both sides and greedy tokens from a state are compared with those of the other decoders
with experts (test_moe_family_parity.py), the mixer alone in test_delta_parity.py.
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
from zoo.interop.weights import by_part
from zoo.registry import ConfigError

NAMES = [name for name in EXPERT_DECODERS if name.startswith("qwen3_next")]
every = pytest.mark.parametrize("name", NAMES)


@every
def test_a_folder_of_transformers_comes_back_as_it_was(name: str, tmp_path: Path) -> None:
    peer = build(name)
    peer.save_pretrained(tmp_path / "theirs")
    model = from_hf(tmp_path / "theirs")
    to_hf(model, tmp_path / "ours")
    ids, mask = rows("right")
    loaded = hf.AutoModelForCausalLM.from_pretrained(tmp_path / "ours").eval()
    assert all(torch.equal(a, b) for a, b in zip(loaded.parameters(), peer.parameters(), strict=True))
    torch.testing.assert_close(model(ids, token_mask=mask)[mask], loaded(ids).logits[mask], rtol=0, atol=1e-5)
    first, second = (load_file(tmp_path / folder / "model.safetensors") for folder in ("theirs", "ours"))
    assert all(torch.equal(tensor, second[key]) for key, tensor in first.items())
    again = from_hf(tmp_path / "ours")
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), model.parameters(), strict=True))


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


def test_the_part_that_predicts_a_second_token_is_left_aside(tmp_path: Path) -> None:
    build("qwen3_next").save_pretrained(tmp_path)
    expected = from_hf(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    more = {f"mtp.{name}.weight": torch.ones(2) for name in ("fc", "norm", "layers.0.self_attn.q_proj")}
    save_file(state | more, tmp_path / "model.safetensors", metadata={"format": "pt"})
    again = from_hf(tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), expected.parameters(), strict=True))


def test_a_config_as_published_is_read() -> None:
    """The fields of the config.json of Qwen3-Next-80B-A3B-Instruct, written from memory."""
    config = FAMILIES["qwen3_next"].config_from(
        {
            "model_type": "qwen3_next", "architectures": ["Qwen3NextForCausalLM"], "attention_bias": False,
            "attention_dropout": 0.0, "bos_token_id": 151643, "decoder_sparse_step": 1, "eos_token_id": 151645,
            "full_attention_interval": 4, "head_dim": 256, "hidden_act": "silu", "hidden_size": 2048,
            "initializer_range": 0.02, "intermediate_size": 5120, "linear_conv_kernel_dim": 4,
            "linear_key_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
            "linear_value_head_dim": 128, "max_position_embeddings": 262144, "mlp_only_layers": [],
            "moe_intermediate_size": 512, "norm_topk_prob": True, "num_attention_heads": 16, "num_experts": 512,
            "num_experts_per_tok": 10, "num_hidden_layers": 48, "num_key_value_heads": 2,
            "output_router_logits": False, "partial_rotary_factor": 0.25, "rms_norm_eps": 1e-06, "rope_scaling": None,
            "rope_theta": 10000000, "router_aux_loss_coef": 0.001, "shared_expert_intermediate_size": 512,
            "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_cache": True, "use_sliding_window": False,
            "vocab_size": 151936,
        }
    )  # fmt: skip
    family = FAMILIES["qwen3_next"]
    assert family.config_to(config) == family.config_to(registry.decode("model", "qwen3_next"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' .* choices: 'silu'"),
        ({"layer_types": ["sliding_attention"] * 4}, "layer_types .* choices: 4 of linear_attention, full_attention"),
        ({"layer_types": ["full_attention"] * 3}, "layer_types"),
        ({"use_sliding_window": True}, "use_sliding_window True .* choices: False"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "rope_type 'longrope'"),
        ({"attn_output_gate": True}, "attn_output_gate True is unknown"),
    ],
    ids=str,
)
def test_what_has_no_counterpart_here_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        FAMILIES["qwen3_next"].config_from(build("qwen3_next").config.to_dict() | changes)
    assert "\n" not in str(caught.value)


NORM = {"name": "rmsnorm", "unit_offset": True}
DELTA = {"name": "gated_delta", "norm_eps": 1e-6}
FULL = {"name": "attention", "bias": False, "out_bias": False, "gate": "elementwise", "qk_norm": NORM}
EXPERT = {"name": "swiglu", "hidden": 8}
MOE = {"name": "moe", "experts": 4, "expert": EXPERT, "shared": EXPERT, "shared_gate": True}
SMALL: dict[str, Any] = {
    "vocab_size": 20,
    "dim": 16,
    "depth": 2,
    "heads": 2,
    "max_len": 16,
    "tie_embeddings": False,
    "norm": NORM,
    "position": {"name": "rope", "fraction": 0.5},
    "ffn": MOE,
}


def small(delta: dict[str, Any], full: dict[str, Any], **choices: Any) -> Any:
    mixer = {"name": "hybrid", "pattern": [{**DELTA, **delta}, {**FULL, **full}]}
    return zoo.create_model("gpt", **{**SMALL, "mixer": mixer, **choices}).eval()


@pytest.mark.parametrize(
    ("delta", "tied"),
    [({}, False), ({"value_heads": 2, "chunk": 16}, True), ({"value_heads": 4, "expand_v": 0.5}, False)],
    ids=str,
)
def test_widths_that_are_left_to_the_family_are_told(delta: dict[str, Any], tied: bool, tmp_path: Path) -> None:
    model, ids = small(delta, {}, tie_embeddings=tied), torch.randint(20, (2, 7))
    to_hf(model, tmp_path)
    loaded = hf.AutoModelForCausalLM.from_pretrained(tmp_path)
    torch.testing.assert_close(model(ids), loaded(ids).logits, rtol=0, atol=1e-5)
    torch.testing.assert_close(from_hf(tmp_path)(ids), model(ids), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("delta", "full", "choices", "message"),
    [
        ({"gate": "sigmoid"}, {}, {}, "gate 'sigmoid' .* choices: 'silu'"),
        ({"negative_eigenvalues": True}, {}, {}, "negative_eigenvalues True .* choices: False"),
        ({"norm_eps": 1e-5}, {}, {}, "norm_eps 1e-05 .* choices: 1e-06"),
        ({}, {"gate": "none"}, {}, "gate 'none' has no counterpart .* choices: elementwise"),
        ({}, {"gate": "head"}, {}, "gate 'head' has no counterpart .* choices: elementwise"),
        ({}, {"qk_norm": None}, {}, "qk_norm"),
        ({}, {"window": 4}, {}, "window 4 has no counterpart"),
        ({}, {}, {"norm": "rmsnorm"}, "norm.unit_offset False .* choices: True"),
        ({}, {}, {"ffn": {**MOE, "shared_gate": False}}, "ffn.shared_gate False .* choices: True"),
        ({}, {}, {"ffn": {**MOE, "bias_rate": 1e-3}}, "ffn.has_bias True"),
        ({}, {}, {"position": {"name": "rope", "layout": "interleaved"}}, "layout 'interleaved'"),
        ({}, {}, {"mixer": {"name": "hybrid", "pattern": "gated_delta+gla"}}, "mixer 'gla' has no counterpart"),
    ],
    ids=str,
)
def test_what_their_class_cannot_hold_is_refused(
    delta: dict[str, Any], full: dict[str, Any], choices: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        to_hf(small(delta, full, **choices), tmp_path / "folder")
    assert "\n" not in str(caught.value) and not (tmp_path / "folder").exists()


def test_rows_by_group_are_sorted_by_part() -> None:
    """Two groups of a query, two keys: q0 k0 k0 q1 k1 k1."""
    assert by_part(2, (1, 2)) == (0, 3, 1, 2, 4, 5)
