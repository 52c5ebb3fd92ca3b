"""Our GPT of lightning attention, softmax attention and experts with the weights of transformers' MiniMax.

Only whole passes: their cache counts no tokens where layer 0 is lightning.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file
from torch import Tensor, nn

import zoo
import zoo.library  # registers the presets
from tests.interop.peers import STATE_DECODERS, build, ours, rows
from tests.interop.test_decoder_parity import assert_same
from zoo import registry
from zoo.blocks.api import Context
from zoo.interop.family import same_computation
from zoo.interop.hub import FAMILIES, from_hf, to_hf
from zoo.registry import ConfigError

NAMES = [name for name in STATE_DECODERS if name.startswith("minimax")]


@pytest.mark.parametrize("padding", ["none", "left", "right"])
@pytest.mark.parametrize("name", NAMES)
def test_logits_and_gradients_equal_transformers(name: str, padding: str) -> None:
    assert_same(build(name), padding)


@pytest.mark.parametrize("name", NAMES)
def test_a_text_in_pieces_gives_the_logits_of_their_whole_pass(name: str) -> None:
    peer = build(name)
    model, _ = ours(peer)
    ids, _ = rows("none")
    with torch.no_grad():
        state = model.init_state(len(ids), ids.shape[1])
        pieces = [model(part, state=state) for part in ids.split([3, 5, 1, 5], dim=1)]
        torch.testing.assert_close(torch.cat(pieces, 1), peer(ids).logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_goes_there_and_back(name: str, tmp_path: Path) -> None:
    peer = build(name)
    model, _ = ours(peer)
    to_hf(model, tmp_path / "ours")
    loaded, back = hf.AutoModelForCausalLM.from_pretrained(tmp_path / "ours"), from_hf(tmp_path / "ours")
    ids, _ = rows("none")
    torch.testing.assert_close(model(ids), loaded(ids).logits, rtol=0, atol=1e-5)
    pairs = zip(model.state_dict().items(), back.state_dict().items(), strict=True)
    assert all(a == b and torch.equal(x, y) for (a, x), (b, y) in pairs)
    peer.save_pretrained(tmp_path / "theirs")
    mine, its = (load_file(tmp_path / folder / "model.safetensors") for folder in ("ours", "theirs"))
    assert mine.keys() == its.keys()
    assert all(torch.equal(tensor, its[name]) for name, tensor in mine.items())


def published() -> Any:
    """The preset, as transformers' class computes it: decays of its own, and whole heads that rotate."""
    preset: Any = registry.decode("model", "minimax_01")
    lightning, *_, attention = (preset.mixer.at(layer, 80) for layer in range(8))
    pattern = [lightning.model_copy(update={"slopes": "transformers"})] * 7 + [attention]
    position = preset.position.model_copy(update={"fraction": 1.0})
    mixer = registry.decode("mixer", {"name": "hybrid", "pattern": pattern})
    return preset.model_copy(update={"mixer": mixer, "position": position})


PUBLISHED: dict[str, Any] = {
    "hidden_size": 6144,
    "intermediate_size": 9216,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 200064,
    "max_position_embeddings": 10240000,
    "rms_norm_eps": 1e-5,
    "num_local_experts": 32,
    "num_experts_per_tok": 2,
    "layer_types": (["linear_attention"] * 7 + ["full_attention"]) * 10,
    "tie_word_embeddings": False,
}
FACTORS = {f"{kind}_alpha_factor": 3.5565588200778455 for kind in ("full_attn", "linear_attn", "mlp")}


def test_the_preset_has_the_facts_and_the_parameters_of_their_class() -> None:
    plain = FAMILIES["minimax"].config_to(published())
    assert {key: plain[key] for key in PUBLISHED} == PUBLISHED
    assert {key: plain[key] for key in FACTORS} == pytest.approx(FACTORS)
    values = {key: value for key, value in plain.items() if key not in ("model_type", "architectures")}
    with torch.device("meta"):
        peer = hf.MiniMaxForCausalLM(hf.MiniMaxConfig(**values))
    assert sum(parameter.numel() for parameter in peer.parameters()) == 456_089_655_296


def test_the_published_rotation_and_factors_are_read() -> None:
    preset: Any = registry.decode("model", "minimax_01")
    more = {"rotary_dim": 64, "rope_theta": 1e7, "postnorm": True, "attn_type_list": ([0] * 7 + [1]) * 10}
    config: Any = FAMILIES["minimax"].config_from({"model_type": "minimax", **PUBLISHED, **FACTORS, **more})
    same_computation(config.model_copy(update={"mixer": preset.mixer}), preset, "the preset")
    assert config.mixer.at(0, 80).slopes == "transformers"
    with pytest.raises(ConfigError, match=r"fraction 0\.5 has no counterpart"):
        FAMILIES["minimax"].config_to(config)


class Authors(nn.Module):
    """One layer after another as the authors have it: a norm first, and the stream goes by the branch behind it."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        stack, alpha = self.model.stack, (2 * self.model.config.depth) ** 0.25
        x, norm = self.model.embed(ids), stack.input_norm  # (B, T, D)
        for block in stack.blocks:
            for place, branch in (("mixer", block.mixer), ("ffn", block.ffn)):
                x = norm(x)
                x = alpha * x + branch(x, Context())
                norm = block.residuals[place].norm
        return self.model.head(norm(x))


def test_deepnorm_behind_an_input_norm_is_the_authors_layer() -> None:
    model = zoo.create_model("gpt", **SMALL).double()
    ids = torch.randint(9, (2, 7), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(model(ids), Authors(model)(ids), rtol=0, atol=1e-10)


LIGHTNING: dict[str, Any] = {"name": "lightning", "slopes": "transformers"}
SEEING: dict[str, Any] = {"name": "attention", "bias": False, "out_bias": False}
MOE: dict[str, Any] = {"name": "moe", "experts": 4, "expert": {"name": "swiglu", "hidden": 8}}
SMALL: dict[str, Any] = {
    "dim": 32,
    "depth": 4,
    "vocab_size": 9,
    "position": "rope",
    "norm": {"name": "rmsnorm", "eps": 1e-5},
    "residual": "deepnorm",
    "input_norm": True,
    "ffn": MOE,
    "mixer": {"name": "hybrid", "pattern": [LIGHTNING, SEEING]},
}


def hybrid(*pattern: Any) -> dict[str, Any]:
    return {"mixer": {"name": "hybrid", "pattern": list(pattern)}}


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({}, None),
        (hybrid({**LIGHTNING, "heads": 4, "head_dim": 8, "chunk": 16}, LIGHTNING, SEEING), None),
        ({"residual": {"name": "deepnorm", "alpha": 8**0.25}}, None),
        (hybrid({**LIGHTNING, "slopes": "minimax"}, SEEING), "slopes 'minimax' .* choices: 'transformers'"),
        (hybrid({**LIGHTNING, "heads": 2}, SEEING), "heads 2|head_dim"),
        (hybrid({**LIGHTNING, "gate": "silu"}, SEEING), "gate 'silu' .* choices: 'sigmoid'"),
        (hybrid({**LIGHTNING, "norm": "head"}, SEEING), "norm 'head' .* choices: 'all'"),
        (hybrid(LIGHTNING, "retention"), "mixer 'retention' .* choices: attention, lightning"),
        ({"input_norm": False}, "input_norm False .* choices: True"),
        ({"residual": "pre"}, "residual 'pre' .* choices: deepnorm"),
        ({"position": {"name": "rope", "fraction": 0.5}}, "fraction 0.5"),
        ({"ffn": "swiglu"}, "ffn 'swiglu' .* choices: moe"),
        ({"ffn": {**MOE, "normalise": False}}, "ffn.normalise False .* choices: True"),
    ],
    ids=str,
)
def test_what_their_class_cannot_hold_is_refused(choices: dict[str, Any], message: str | None, tmp_path: Path) -> None:
    model = zoo.create_model("gpt", **{**SMALL, **choices})
    if message is None:
        to_hf(model, tmp_path)
        ids = torch.randint(9, (2, 7))
        loaded = hf.AutoModelForCausalLM.from_pretrained(tmp_path)
        torch.testing.assert_close(model(ids), loaded(ids).logits, rtol=0, atol=1e-5)
        return
    with pytest.raises(ConfigError, match=message) as caught:
        to_hf(model, tmp_path / "folder")
    assert "\n" not in str(caught.value) and not (tmp_path / "folder").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' .* choices: 'silu'"),
        ({"layer_types": ["linear_attention"]}, "layer_types .* choices: 4 of full_attention, linear_attention"),
        ({"linear_attn_alpha_factor": 3.0}, "linear_attn_alpha_factor 3.0 .* choices: mlp_alpha_factor"),
        ({"full_attn_beta_factor": 0.5}, "full_attn_beta_factor 0.5 .* choices: mlp_beta_factor 1"),
        ({"postnorm": False}, "postnorm False .* choices: True"),
        ({"shared_intermediate_size": 8}, "shared_intermediate_size 8 is unknown"),
    ],
    ids=str,
)
def test_what_has_no_counterpart_here_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        FAMILIES["minimax"].config_from(build("minimax").config.to_dict() | changes)
