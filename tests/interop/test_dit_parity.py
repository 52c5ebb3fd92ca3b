"""Our DiT with another library's weights gives that library's outputs and gradients."""

from __future__ import annotations

import pytest
import torch
from diffusers.models.transformers.dit_transformer_2d import DiTTransformer2DModel
from torch import Tensor, nn

import zoo
from benchmarks.speed.original_dit import OriginalDiT
from zoo.interop.dit import from_original, to_original

SIZES = {"depth": 3, "dim": 48, "heads": 3}
T, LABELS = torch.tensor([0.0, 317.0, 999.0]), torch.tensor([4, 0, 7])
X = torch.randn(3, 4, 16, 16, generator=torch.Generator().manual_seed(0))


def randomised(model: nn.Module, std: float = 0.1) -> nn.Module:
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * std)
    return model.eval()


def ours(**choices) -> nn.Module:
    return zoo.create_model("dit", image_size=16, num_classes=7, **SIZES, **choices).eval()


def close(actual: Tensor, expected: Tensor, message: str = "") -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5, msg=lambda text: f"{message}: {text}")


@pytest.mark.parametrize("patch", [2, 4])
def test_outputs_and_gradients_equal_the_original(patch: int) -> None:
    peer = randomised(OriginalDiT(size=16, patch=patch, classes=7, **SIZES))
    model = ours(patch_size=patch)
    model.load_state_dict(from_original(peer.state_dict(), model.config))
    expected, actual = peer(X, T, LABELS), model(X, T, LABELS)
    assert expected.std() > 0.1
    close(actual, expected)
    weight = torch.randn(expected.shape, generator=torch.Generator().manual_seed(2))
    (expected * weight).mean().backward()
    (actual * weight).mean().backward()
    grads = {name: p.grad for name, p in peer.named_parameters() if p.grad is not None}
    found = from_original(grads, model.config)
    assert set(found) == {name for name, _ in model.named_parameters()}
    for name, grad in found.items():
        close(model.get_parameter(name).grad, grad, name)


def test_weights_go_to_the_original_and_back_without_a_change() -> None:
    model = randomised(ours())
    peer = OriginalDiT(size=16, classes=7, **SIZES).eval()
    peer.load_state_dict(to_original(model))
    close(peer(X, T, LABELS), model(X, T, LABELS))
    back = from_original(peer.state_dict(), model.config)
    assert back.keys() == model.state_dict().keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in model.state_dict().items())


def test_the_last_label_is_no_class_in_both() -> None:
    peer = randomised(OriginalDiT(size=16, classes=7, **SIZES))
    model = ours()
    model.load_state_dict(from_original(peer.state_dict(), model.config))
    close(model(X, T), peer(X, T, torch.full((3,), 7)))


def test_blocks_equal_those_of_diffusers() -> None:
    """Where they agree: diffusers spaces the times' frequencies otherwise and has an embedder in every block."""
    peer = randomised(
        DiTTransformer2DModel(
            num_attention_heads=3, attention_head_dim=16, in_channels=4, out_channels=8, num_layers=3, sample_size=16,
            num_embeds_ada_norm=7, norm_eps=1e-6,
        )
    )  # fmt: skip
    model = ours()
    state = peer.state_dict()
    mapped = {"x_embedder.proj": "pos_embed.proj", "final_layer.linear": "proj_out_2"}
    mapped["final_layer.adaLN_modulation.1"] = "proj_out_1"
    first = "transformer_blocks.0.norm1.emb."
    mapped |= {"t_embedder.mlp.0": f"{first}timestep_embedder.linear_1"}
    mapped |= {"t_embedder.mlp.2": f"{first}timestep_embedder.linear_2"}
    for i in range(3):
        theirs = f"transformer_blocks.{i}"
        mapped[f"blocks.{i}.adaLN_modulation.1"] = f"{theirs}.norm1.linear"
        mapped[f"blocks.{i}.attn.proj"] = f"{theirs}.attn1.to_out.0"
        mapped[f"blocks.{i}.mlp.fc1"] = f"{theirs}.ff.net.0.proj"
        mapped[f"blocks.{i}.mlp.fc2"] = f"{theirs}.ff.net.2"
    original = {f"{a}.{kind}": state[f"{b}.{kind}"] for a, b in mapped.items() for kind in ("weight", "bias")}
    for i in range(3):
        for kind in ("weight", "bias"):
            rows = [state[f"transformer_blocks.{i}.attn1.to_{name}.{kind}"] for name in "qkv"]
            original[f"blocks.{i}.attn.qkv.{kind}"] = torch.cat(rows)
    original["y_embedder.embedding_table.weight"] = state[f"{first}class_embedder.embedding_table.weight"]
    model.load_state_dict(from_original(original, model.config))

    class Told(nn.Module):
        def forward(self, t: Tensor, labels: Tensor, hidden_dtype: torch.dtype | None = None) -> Tensor:
            return model.time(t) + model.label(labels, len(t))

    for block in peer.transformer_blocks:
        block.norm1.emb = Told()
    expected = peer(X, T, LABELS).sample
    assert expected.std() > 0.1
    close(model(X, T, LABELS), expected)


def test_other_positions_than_the_fixed_ones_are_refused() -> None:
    state = OriginalDiT(size=16, classes=7, **SIZES).state_dict()
    state["pos_embed"] = state["pos_embed"] + 0.1
    with pytest.raises(zoo.ConfigError, match="not the fixed table"):
        from_original(state, ours().config)
    with pytest.raises(zoo.ConfigError, match=r"'extra.weight' has no counterpart"):
        from_original({"extra.weight": X}, ours().config)
    with pytest.raises(zoo.ConfigError, match="adaln_zero"):
        to_original(ours(conditioning="adaln"))
