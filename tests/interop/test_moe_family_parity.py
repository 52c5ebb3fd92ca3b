"""Decoders and encoder-decoders with experts give transformers' logits and gradients, whole, padded and token by token.

fp32: logits to 1e-5, gradients of O(1) to 1e-4, those of every parameter through the same weight map.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file

import zoo
from tests.interop.peers import (
    EXPERT_DECODERS,
    EXPERT_ENCODER_DECODERS,
    build,
    gradients,
    ours,
    positions,
    rows,
)
from zoo.blocks.api import Context
from zoo.interop.hub import FAMILIES, from_hf, to_hf
from zoo.registry import ConfigError

LEFT = [name for name in EXPERT_DECODERS if "temperature" not in name]  # theirs counts padding as positions there
CASES = [(name, padding) for name in EXPERT_DECODERS for padding in ("none", "left", "right")]
CASES = [(name, padding) for name, padding in CASES if padding != "left" or name in LEFT]


def compare_gradients(peer: Any, model: Any, family: Any, floor: float = 1e-3) -> None:
    theirs = family.from_huggingface(gradients(peer), model.config)
    for name, parameter in model.named_parameters():
        grad = theirs.pop(name)
        assert grad.abs().max() > floor, f"{name} has no gradient to compare"
        torch.testing.assert_close(parameter.grad, grad, rtol=0, atol=1e-4, msg=lambda text, n=name: f"{n}: {text}")
    assert theirs.keys() <= dict(model.named_buffers()).keys()


@pytest.mark.parametrize(("name", "padding"), CASES)
def test_logits_and_gradients_equal_transformers(name: str, padding: str) -> None:
    peer = build(name)
    model, family = ours(peer)
    ids, mask = rows(padding)
    expected = peer(ids, attention_mask=mask.long(), position_ids=positions(mask)).logits[mask]  # (N, V)
    found = model(ids, token_mask=None if padding == "none" else mask)[mask]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    weight = torch.randn(expected.shape, generator=torch.Generator().manual_seed(2)) / len(expected) ** 0.5
    (expected * weight).sum().backward()
    (found * weight).sum().backward()
    compare_gradients(peer, model, family)


@pytest.mark.parametrize("padding", ["none", "left", "right"])
@pytest.mark.parametrize("name", EXPERT_ENCODER_DECODERS)
def test_switch_logits_and_gradients_equal_transformers(name: str, padding: str) -> None:
    peer = build(name)
    model, family = ours(peer)
    source, mask = rows(padding)
    target, target_mask = rows("right", length=13)
    theirs = {"attention_mask": mask.long(), "decoder_attention_mask": target_mask.long()}
    expected = peer(source, decoder_input_ids=target, **theirs, use_cache=False).logits[target_mask]
    mine = None if padding == "none" else mask
    found = model(source, target, source_mask=mine, target_mask=target_mask)[target_mask]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    weight = torch.randn(expected.shape, generator=torch.Generator().manual_seed(2)) / len(expected) ** 0.5
    (expected * weight).sum().backward()
    (found * weight).sum().backward()
    compare_gradients(peer, model, family, floor=1e-4)


@pytest.mark.parametrize("name", EXPERT_DECODERS)
def test_greedy_tokens_from_a_state_equal_those_of_transformers_cache(name: str) -> None:
    peer = build(name)
    model, _ = ours(peer)
    padding = "left" if name in LEFT else "none"
    ids, mask = rows(padding)
    with torch.no_grad():
        expected = peer.generate(
            ids, attention_mask=mask.long(), do_sample=False, max_new_tokens=8, pad_token_id=0, eos_token_id=None
        )[:, ids.shape[1] :]
        state = model.init_state(len(ids), ids.shape[1] + 8)
        found = [model(ids, token_mask=mask, state=state)[:, -1].argmax(-1, keepdim=True)]
        while len(found) < 8:
            found.append(model(found[-1], state=state)[:, -1].argmax(-1, keepdim=True))
    assert torch.equal(torch.cat(found, 1), expected)


@pytest.mark.parametrize("name", EXPERT_ENCODER_DECODERS)
def test_greedy_tokens_of_switch_equal_those_of_transformers_cache(name: str) -> None:
    peer = build(name)
    model, _ = ours(peer)
    source, mask = rows("right")
    options = {"do_sample": False, "max_new_tokens": 8, "pad_token_id": 1, "eos_token_id": None, "num_beams": 1}
    with torch.no_grad():
        expected = peer.generate(source, attention_mask=mask.long(), decoder_start_token_id=0, **options)
        context = Context(memory=model.encode(source, mask), memory_mask=mask)
        state, found = model.init_state(len(source), 9), [torch.zeros(len(source), 1, dtype=torch.long)]
        while len(found) < 9:
            logits = model.head(model.features(found[-1], context, state))
            found.append(logits[:, -1].argmax(-1, keepdim=True))
            context = Context()
    assert torch.equal(torch.cat(found, 1), expected)


AUTO = {
    "AutoModelForCausalLM": ["mixtral", "deepseek_v3", "qwen3_moe", "llama4_text temperature"],
    "AutoModelForSeq2SeqLM": ["switch_transformers"],
}


@pytest.mark.parametrize(("auto", "name"), [(auto, name) for auto, names in AUTO.items() for name in names])
def test_the_auto_classes_load_what_is_written_and_give_the_same_logits(auto: str, name: str, tmp_path: Path) -> None:
    model, _ = ours(build(name))
    to_hf(model, tmp_path)
    loaded = getattr(hf, auto).from_pretrained(tmp_path).eval()
    ids, _ = rows("none")
    two = auto == "AutoModelForSeq2SeqLM"
    expected = loaded(input_ids=ids, **({"decoder_input_ids": ids} if two else {})).logits
    torch.testing.assert_close(model(ids, ids) if two else model(ids), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["mixtral", "deepseek_v3", "qwen3_moe"])
def test_experts_are_written_one_by_one_and_read_in_both_layouts(name: str, tmp_path: Path) -> None:
    peer = build(name)
    peer.save_pretrained(tmp_path / "single")
    peer.save_pretrained(tmp_path / "stacked", save_original_format=False)
    single, stacked = (load_file(tmp_path / folder / "model.safetensors") for folder in ("single", "stacked"))
    assert any(".experts.3." in key for key in single) and any("gate_up_proj" in key for key in stacked)
    models = [from_hf(tmp_path / folder) for folder in ("single", "stacked")]
    pairs = zip(models[0].state_dict().items(), models[1].state_dict().items(), strict=True)
    assert all(a == b and torch.equal(x, y) for (a, x), (b, y) in pairs)
    to_hf(models[0], tmp_path / "ours")
    assert load_file(tmp_path / "ours" / "model.safetensors").keys() == single.keys()


def test_the_router_stays_in_fp32_where_half_precision_is_asked_for(tmp_path: Path) -> None:
    build("deepseek_v3").save_pretrained(tmp_path)
    model: Any = from_hf(tmp_path, dtype=torch.bfloat16)
    router = model.stack.blocks[1].ffn.router
    assert router.weight.dtype == router.bias.dtype == torch.float32
    assert torch.equal(router.weight, from_hf(tmp_path).stack.blocks[1].ffn.router.weight)  # type: ignore[union-attr]
    assert model.stack.blocks[1].ffn.experts.up.weight.dtype == torch.bfloat16


def test_the_layer_of_deepseek_that_predicts_a_second_token_is_left_aside(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    build("deepseek_v3").save_pretrained(tmp_path)
    expected = from_hf(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    more = {name.replace("layers.2.", "layers.3."): t.clone() for name, t in state.items() if "layers.2." in name}
    more |= {f"model.layers.3.{name}.weight": torch.ones(2) for name in ("enorm", "hnorm", "eh_proj", "embed_tokens")}
    more |= {f"model.layers.3.shared_head.{name}.weight": torch.ones(2) for name in ("norm", "head")}
    save_file(state | more, tmp_path / "model.safetensors")
    again = from_hf(tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), expected.parameters(), strict=True))


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("mixtral", {"hidden_act": "mish"}, "hidden_act 'mish'"),
    ("deepseek_v3", {"scoring_func": "softmax"}, "scoring_func 'softmax' .* choices: 'sigmoid'"),
    ("deepseek_v3", {"quantization_config": {"quant_method": "fp8"}}, "quantization_config .* is unknown"),
    (
        "deepseek_v3",
        {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 0.7}},
        "mscale 1.0 .* choices: mscale_all_dim 0.7",
    ),
    ("deepseek_v3", {"num_key_value_heads": 2}, "num_key_value_heads 2 .* choices: 4"),
    ("deepseek_v3", {"n_shared_experts": 0}, "n_shared_experts 0"),
    ("llama4_text", {"layer_types": ["sliding_attention"] * 4}, "layer_types"),
    ("llama4_text", {"no_rope_layers": [1, 0]}, "no_rope_layers"),
    ("switch_transformers", {"router_bias": True}, "router_bias True .* choices: False"),
    ("switch_transformers", {"tie_word_embeddings": False}, "tie_word_embeddings False .* choices: True"),
    ("switch_transformers", {"decoder_sparse_step": 1}, "decoder_sparse_step 1 .* choices: encoder_sparse_step 2"),
]


@pytest.mark.parametrize(("kind", "changes", "message"), WRONG, ids=lambda value: str(value)[:50])
def test_what_has_no_counterpart_is_refused_in_one_line(kind: str, changes: dict[str, Any], message: str) -> None:
    plain = build(kind).config.to_dict() | changes
    with pytest.raises(ConfigError, match=message) as caught:
        FAMILIES[kind].config_from(plain)
    assert "\n" not in str(caught.value)


SMALL: dict[str, Any] = {"vocab_size": 20, "dim": 16, "depth": 2, "heads": 2, "max_len": 16, "tie_embeddings": False}
SMALL |= {"norm": "rmsnorm", "position": "rope", "mixer": {"bias": False, "out_bias": False}}
MOE = {"name": "moe", "experts": 4, "expert": {"name": "swiglu", "hidden": 8}}


@pytest.mark.parametrize(
    ("ffn", "message"),
    [
        ({**MOE, "z_loss": 1e-3, "capacity": 1.25, "bias_rate": 0.0}, None),  # of the training alone
        ({**MOE, "bias_rate": 1e-3}, "ffn.has_bias True has no counterpart in transformers' 'mixtral'"),
        ({**MOE, "eval_capacity": 2.0}, "ffn.eval_capacity 2.0 has no counterpart"),
        ({**MOE, "scores": "sigmoid"}, "ffn.scores 'sigmoid' has no counterpart"),
        ({**MOE, "normalise": False}, "ffn.normalise False has no counterpart"),
        ({**MOE, "shared": {"name": "swiglu", "hidden": 8}}, "ffn.shared.* has no counterpart"),
        ({**MOE, "expert": {"name": "mlp", "hidden": 8}}, "expert 'mlp' has no counterpart .* choices: swiglu, geglu"),
        ({"name": "hybrid", "pattern": [MOE, {"name": "swiglu", "hidden": 8}]}, "has no counterpart"),
    ],
    ids=str,
)
def test_of_a_mixture_only_what_mixtral_has_is_written(ffn: Any, message: str | None, tmp_path: Path) -> None:
    model: Any = zoo.create_model("gpt", **SMALL, ffn=ffn)
    if message is None:
        to_hf(model, tmp_path / "out")
        assert json.loads((tmp_path / "out" / "config.json").read_text())["num_local_experts"] == 4
        return
    with pytest.raises(ConfigError, match=message):
        to_hf(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()
