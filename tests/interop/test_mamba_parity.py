"""Our GPT of Mamba layers with the weights of transformers' Mamba and Mamba-2: what other tests leave open.

Logits, gradients, padding and folders of the plain forms are compared with those of the other decoders
(test_decoder_parity.py, test_hub.py). transformers' Mamba is wrong where a cache is given several tokens at once, so
its own generation reads a prompt in one piece and then one token at a time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file

import zoo
from tests.interop.peers import build, gradients, ours, rows
from zoo import registry
from zoo.interop.hub import FAMILIES, from_hf, to_hf
from zoo.registry import ConfigError

both = pytest.mark.parametrize("kind", ["mamba", "mamba2"])
NEW = 12


@pytest.mark.parametrize("padding", ["none", "left"])
@pytest.mark.parametrize("name", ["mamba", "mamba wide steps, no bias of the convolution", "mamba2", "mamba2 groups"])
def test_greedy_tokens_equal_transformers_own_token_by_token(name: str, padding: str) -> None:
    peer = build(name)
    model, _ = ours(peer)
    ids, mask = rows(padding)
    with torch.no_grad():
        expected = peer.generate(
            ids, attention_mask=mask.long(), do_sample=False, max_new_tokens=NEW, pad_token_id=0, eos_token_id=None
        )[:, ids.shape[1] :]
        state = model.init_state(len(ids), ids.shape[1] + NEW)
        found = [model(ids, token_mask=mask, state=state)[:, -1].argmax(-1, keepdim=True)]
        while len(found) < NEW:
            found.append(model(found[-1], state=state)[:, -1].argmax(-1, keepdim=True))
    assert torch.equal(torch.cat(found, 1), expected)
    prompts = [row[real] for row, real in zip(ids, mask, strict=True)]
    assert torch.equal(torch.stack(zoo.generate(model, prompts, max_new_tokens=NEW).new), expected)


def with_biases(kind: str) -> Any:
    """Their model with a bias of both projections. Their padding on the left then leaks: in_proj's bias is no zero."""
    torch.manual_seed(0)
    plain: dict[str, Any] = build(kind).config.to_dict() | {"use_bias": True, "initializer_range": 0.2}
    peer = {"mamba": hf.MambaForCausalLM, "mamba2": hf.Mamba2ForCausalLM}[kind](
        hf.AutoConfig.for_model(**{key: value for key, value in plain.items() if key != "transformers_version"})
    ).eval()
    with torch.no_grad():
        for parameter in peer.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return peer


@both
@pytest.mark.parametrize("padding", ["none", "right"])
def test_projections_with_biases_equal_transformers(kind: str, padding: str) -> None:
    peer = with_biases(kind)
    model, family = ours(peer)
    ids, mask = rows(padding)
    expected = peer(ids, attention_mask=mask.long()).logits[mask]
    found = model(ids, token_mask=mask)[mask]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    expected.square().mean().backward()
    found.square().mean().backward()
    theirs = family.from_huggingface(gradients(peer), model.config)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, theirs[name], rtol=0, atol=1e-4, msg=lambda t, n=name: f"{n}: {t}")


@both
def test_a_padded_row_is_the_row_alone_whatever_the_biases(kind: str) -> None:
    model, _ = ours(with_biases(kind))
    ids, mask = rows("left")
    for row, real in enumerate(mask):
        torch.testing.assert_close(
            model(ids, token_mask=mask)[row, real], model(ids[row : row + 1, real])[0], rtol=0, atol=1e-5
        )


@both
def test_a_prompt_read_in_pieces_gives_the_logits_of_one(kind: str) -> None:
    """The trap of transformers' Mamba: a cache and several new tokens."""
    peer = build(kind)
    model, _ = ours(peer)
    ids, _ = rows("none")
    with torch.no_grad():
        state = model.init_state(len(ids), ids.shape[1])
        pieces = [model(part, state=state) for part in ids.split([3, 5, 1, 5], dim=1)]
        torch.testing.assert_close(torch.cat(pieces, 1), peer(ids).logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", [f"mamba_{s}" for s in ("130m", "2_8b")] + [f"mamba2_{s}" for s in ("130m", "2_7b")])
def test_a_preset_goes_to_their_config_and_back(name: str) -> None:
    family = FAMILIES[name.partition("_")[0]]
    plain = family.config_to(registry.decode("model", name))
    theirs = hf.AutoConfig.for_model(plain["model_type"], **{k: v for k, v in plain.items() if k != "model_type"})
    again = family.config_to(family.config_from(theirs.to_dict()))
    assert {key: again[key] for key in plain} == plain


SMALL: dict[str, Any] = {
    "dim": 32,
    "depth": 2,
    "vocab_size": 9,
    "position": "none",
    "layout": "mixer_only",
    "norm": {"name": "rmsnorm", "eps": 1e-5},
}


@both
def test_what_the_stack_never_uses_is_no_hindrance(kind: str, tmp_path: Path) -> None:
    model = zoo.create_model("gpt", **SMALL, mixer=kind, heads=8, max_len=77, ffn="swiglu")
    to_hf(model, tmp_path)
    ids = torch.randint(9, (2, 7))
    loaded = hf.AutoModelForCausalLM.from_pretrained(tmp_path)
    torch.testing.assert_close(from_hf(tmp_path)(ids), loaded(ids).logits, rtol=0, atol=1e-5)
    torch.testing.assert_close(model(ids), loaded(ids).logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"mixer": {"name": "mamba", "selective": False}}, "selective False .* choices: True"),
        ({"mixer": {"name": "mamba", "inner_norm": "rmsnorm"}}, "inner_norm"),
        ({"mixer": {"name": "mamba", "expand": 1.5}}, "expand 1.5 .* choices: 2.0"),
        ({"mixer": {"name": "mamba", "conv": 0}}, "conv_kernel 0 .* choices: 1 or more"),
        ({"mixer": "mamba", "layout": "sequential"}, "layout 'sequential' .* choices: 'mixer_only'"),
        ({"mixer": "mamba", "norm": "layernorm"}, "norm.name 'layernorm'"),
        ({"mixer": {"name": "mamba2", "norm": False}}, "norm False .* choices: True"),
        ({"mixer": {"name": "mamba2", "norm_before_gate": True}}, "norm_before_gate True .* choices: False"),
    ],
    ids=str,
)
def test_what_their_class_cannot_hold_is_refused(choices: dict[str, Any], message: str, tmp_path: Path) -> None:
    model = zoo.create_model("gpt", **{**SMALL, **choices})
    with pytest.raises(ConfigError, match=message) as caught:
        to_hf(model, tmp_path / "folder")
    assert "\n" not in str(caught.value) and not (tmp_path / "folder").exists()


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("mamba", {"hidden_act": "gelu"}, "hidden_act 'gelu' .* choices: 'silu'"),
        ("mamba", {"conv_kernel": 0}, "conv_kernel 0"),
        ("mamba", {"intermediate_size": 100}, "intermediate_size 100 .* choices: 64"),
        ("mamba2", {"num_heads": 3}, "num_heads 3 .* choices: 8"),
        ("mamba2", {"time_step_limit": [0.0, 0.1]}, r"time_step_limit \[0.0, 0.1\]"),
    ],
)
def test_what_has_no_counterpart_here_is_refused(kind: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        FAMILIES[kind].config_from(build(kind).config.to_dict() | changes)


def test_a_config_of_the_first_conversion_is_read() -> None:
    """The fields of the config.json of mamba-130m-hf, written from memory."""
    config = FAMILIES["mamba"].config_from(
        {
            "model_type": "mamba", "architectures": ["MambaForCausalLM"], "bos_token_id": 0, "conv_kernel": 4,
            "d_inner": 1536, "d_model": 768, "eos_token_id": 0, "expand": 2, "fused_add_norm": True,
            "hidden_act": "silu", "hidden_size": 768, "initializer_range": 0.1, "intermediate_size": 1536,
            "layer_norm_epsilon": 1e-05, "n_layer": 24, "num_hidden_layers": 24, "pad_token_id": 0,
            "pad_vocab_size_multiple": 8, "rescale_prenorm_residual": False, "residual_in_fp32": True,
            "rms_norm": True, "ssm_cfg": {}, "state_size": 16, "time_step_floor": 0.0001,
            "time_step_init_scheme": "random", "time_step_max": 0.1, "time_step_min": 0.001, "time_step_rank": 48,
            "time_step_scale": 1.0, "torch_dtype": "float32", "use_bias": False, "use_cache": True,
            "use_conv_bias": True, "vocab_size": 50280,
        }
    )  # fmt: skip
    preset = registry.decode("model", "mamba_130m")
    assert config == preset.model_copy(update={"init_std": 0.1})


def test_the_first_name_of_the_embedding_is_read(tmp_path: Path) -> None:
    peer = build("mamba")
    peer.save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    state["backbone.embedding.weight"] = state.pop("backbone.embeddings.weight")
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    ids, _ = rows("none")
    torch.testing.assert_close(from_hf(tmp_path)(ids), peer(ids).logits, rtol=0, atol=1e-5)
