"""Our GPT of Mamba, attention and experts with the weights of transformers' Jamba: logits, gradients, tokens, folders.

Its cached path reads a prompt in one piece and then one token at a time; given several tokens at once it is wrong.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

import zoo
import zoo.library  # registers the presets
from tests.interop.peers import STATE_DECODERS, build, ours, rows
from tests.interop.test_decoder_parity import assert_same
from zoo import registry
from zoo.interop.hub import FAMILIES, from_hf, to_hf
from zoo.registry import ConfigError

NAMES = [name for name in STATE_DECODERS if name.startswith("jamba")]
NEW = 8


@pytest.mark.parametrize("padding", ["none", "left", "right"])
@pytest.mark.parametrize("name", NAMES)
def test_logits_and_gradients_equal_transformers(name: str, padding: str) -> None:
    assert_same(build(name), padding)


@pytest.mark.parametrize("padding", ["none", "left"])
@pytest.mark.parametrize("name", NAMES)
def test_greedy_tokens_equal_transformers_own_token_by_token(name: str, padding: str) -> None:
    peer = build(name)
    model, _ = ours(peer)
    ids, mask = rows(padding)
    with torch.no_grad():
        expected = peer.generate(
            ids, attention_mask=mask.long(), do_sample=False, max_new_tokens=NEW, pad_token_id=0, eos_token_id=None
        )[:, ids.shape[1] :]
    prompts = [row[real] for row, real in zip(ids, mask, strict=True)]
    assert torch.equal(torch.stack(zoo.generate(model, prompts, max_new_tokens=NEW).new), expected)


@pytest.mark.parametrize("name", NAMES)
def test_a_prompt_read_in_pieces_gives_the_logits_of_one(name: str) -> None:
    peer = build(name)
    model, _ = ours(peer)
    ids, _ = rows("none")
    with torch.no_grad():
        state = model.init_state(len(ids), ids.shape[1])
        pieces = [model(part, state=state) for part in ids.split([3, 5, 1, 5], dim=1)]
        torch.testing.assert_close(torch.cat(pieces, 1), peer(ids).logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_goes_there_and_back(name: str, tmp_path: Path) -> None:
    model, _ = ours(build(name))
    to_hf(model, tmp_path)
    loaded, back = hf.AutoModelForCausalLM.from_pretrained(tmp_path), from_hf(tmp_path)
    ids, _ = rows("none")
    torch.testing.assert_close(model(ids), loaded(ids).logits, rtol=0, atol=1e-5)
    for (key, mine), (other, its) in zip(model.state_dict().items(), back.state_dict().items(), strict=True):
        assert key == other and torch.equal(mine, its), key


def test_the_preset_is_the_published_config() -> None:
    """The fields of the config.json of Jamba v0.1, written from memory."""
    preset: Any = registry.decode("model", "jamba")
    config: Any = FAMILIES["jamba"].config_from(
        {
            "model_type": "jamba", "architectures": ["JambaForCausalLM"], "attention_dropout": 0.0,
            "attn_layer_offset": 4, "attn_layer_period": 8, "calc_logits_for_entire_prompt": False,
            "expert_layer_offset": 1, "expert_layer_period": 2, "hidden_act": "silu", "hidden_size": 4096,
            "initializer_range": 0.02, "intermediate_size": 14336, "mamba_conv_bias": True, "mamba_d_conv": 4,
            "mamba_d_state": 16, "mamba_dt_rank": 256, "mamba_expand": 2, "mamba_inner_layernorms": True,
            "mamba_proj_bias": False, "n_ctx": 262144, "num_attention_heads": 32, "num_experts": 16,
            "num_experts_per_tok": 2, "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-06,
            "router_aux_loss_coef": 0.001, "sliding_window": None, "tie_word_embeddings": False,
            "use_mamba_kernels": True, "vocab_size": 65536,
        }
    )  # fmt: skip
    assert FAMILIES["jamba"].config_to(config) == FAMILIES["jamba"].config_to(preset)
    assert config.ffn == preset.ffn and config.max_len == preset.max_len


MAMBA: dict[str, Any] = {"name": "mamba", "inner_norm": {"name": "rmsnorm", "eps": 1e-5}}
SEEING: dict[str, Any] = {"name": "attention", "bias": False, "out_bias": False}
SMALL: dict[str, Any] = {
    "dim": 32,
    "depth": 4,
    "vocab_size": 9,
    "position": "none",
    "norm": {"name": "rmsnorm", "eps": 1e-5},
    "ffn": "swiglu",
    "mixer": {"name": "hybrid", "pattern": [MAMBA, SEEING]},
}


def hybrid(*pattern: Any) -> dict[str, Any]:
    return {"mixer": {"name": "hybrid", "pattern": list(pattern)}}


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({}, None),
        (hybrid(MAMBA, {**MAMBA, "dt_rank": 2}), None),  # a rank told, no attention
        (hybrid({**MAMBA, "inner_norm": None}, SEEING), "inner_norm"),
        (hybrid({**MAMBA, "inner_norm": "rmsnorm"}, SEEING), "inner_norm.eps 1e-06 .* choices: 1e-05"),
        (hybrid({**MAMBA, "expand": 1.5}, SEEING), "expand 1.5 .* choices: 2.0"),
        (hybrid(MAMBA, {**SEEING, "window": 4}), "window 4"),
        (hybrid(MAMBA, "attention"), "bias True"),
        (hybrid(MAMBA, SEEING, SEEING), "layers.2.name 'attention' .* choices: 'mamba'"),
        (hybrid(MAMBA, "gla"), "mixer 'gla' .* choices: attention, mamba"),
        ({"position": "rope"}, "position"),
        ({"ffn": "mlp"}, "ffn 'mlp' .* choices: swiglu"),
        ({"ffn": "moe"}, "ffn.normalise True .* choices: False"),
        ({"residual": "sandwich"}, "residual.name 'sandwich' .* choices: 'pre'"),
    ],
    ids=str,
)
def test_what_their_class_cannot_hold_is_refused(choices: dict[str, Any], message: str | None, tmp_path: Path) -> None:
    model = zoo.create_model("gpt", **{**SMALL, **choices})
    if message is None:
        to_hf(model, tmp_path)
        ids = torch.randint(9, (2, 7))
        loaded = hf.AutoModelForCausalLM.from_pretrained(tmp_path)
        expected = loaded(ids, use_cache=False).logits  # their cache needs an attention layer
        torch.testing.assert_close(model(ids), expected, rtol=0, atol=1e-5)
        return
    with pytest.raises(ConfigError, match=message) as caught:
        to_hf(model, tmp_path / "folder")
    assert "\n" not in str(caught.value) and not (tmp_path / "folder").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' .* choices: 'silu'"),
        ({"mamba_d_conv": 0}, "mamba_d_conv 0 .* choices: 1 or more"),
        ({"mamba_inner_layernorms": False}, "mamba_inner_layernorms False .* choices: True"),
        ({"attn_layer_offset": 3}, "attn_layer_offset 3 .* choices: less than attn_layer_period 3"),
        ({"head_dim": 12}, "head_dim 12 .* choices: 8"),
        ({"sliding_window": 4}, "sliding_window 4 is unknown"),
    ],
)
def test_what_has_no_counterpart_here_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        FAMILIES["jamba"].config_from(build("jamba").config.to_dict() | changes)
