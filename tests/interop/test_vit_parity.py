"""Our ViT with another library's weights gives that library's outputs and gradients."""

from __future__ import annotations

import pytest
import timm
import torch
from transformers import ViTConfig as HFConfig
from transformers import ViTForImageClassification

import zoo
from zoo.interop.hf_vit import from_huggingface, to_huggingface
from zoo.interop.timm_vit import from_timm, to_timm

IMAGES = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))
MODELS = [
    ("vit_tiny_patch16_224", "vit_tiny_patch16_224", {}),
    ("deit_tiny_distilled_patch16_224", "deit_tiny_distilled_patch16_224", {}),
    ("vit_tiny_patch16_224", "vit_tiny_patch16_224", {"num_classes": 7, "pool": "mean"}),
]


def randomised(model: torch.nn.Module) -> torch.nn.Module:
    """Random weights everywhere, norms and biases included, so that no term can hide behind a zero or a one."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.02)
    return model.eval()


@pytest.mark.parametrize(("ours", "theirs", "choices"), MODELS, ids=lambda value: str(value))
def test_logits_and_gradients_equal_timm(ours: str, theirs: str, choices: dict) -> None:
    options = {"num_classes": choices.get("num_classes", 1000)}
    if choices.get("pool") == "mean":  # timm then has no class token and a norm before the pool
        options |= {"global_pool": "avg", "class_token": False, "fc_norm": False}
    peer = randomised(timm.create_model(theirs, **options))
    model = zoo.create_model(ours, **choices).eval()
    model.load_state_dict(from_timm(peer.state_dict(), model.config))
    expected = peer(IMAGES)
    torch.testing.assert_close(model(IMAGES), expected, rtol=0, atol=1e-5)
    weight = torch.randn(expected.shape, generator=torch.Generator().manual_seed(2))
    (model(IMAGES) * weight).mean().backward()
    (expected * weight).mean().backward()
    grads = {name: parameter.grad for name, parameter in peer.named_parameters()}
    for name, grad in from_timm(grads, model.config).items():
        torch.testing.assert_close(model.get_parameter(name).grad, grad, rtol=0, atol=1e-5, msg=name)


@pytest.mark.parametrize(("ours", "theirs", "choices"), MODELS[:2], ids=lambda value: str(value))
def test_weights_go_to_timm_and_back_without_a_change(ours: str, theirs: str, choices: dict) -> None:
    model = randomised(zoo.create_model(ours))
    peer = timm.create_model(theirs)
    peer.load_state_dict(to_timm(model))
    back = from_timm(peer.state_dict(), model.config)
    assert back.keys() == model.state_dict().keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in model.state_dict().items())


def test_registers_equal_timm() -> None:
    peer = randomised(timm.create_model("vit_tiny_patch16_224", reg_tokens=3, num_classes=5))
    model = zoo.create_model("vit_tiny_patch16_224", registers=3, num_classes=5).eval()
    model.load_state_dict(from_timm(peer.state_dict(), model.config))
    torch.testing.assert_close(model(IMAGES), peer(IMAGES), rtol=0, atol=1e-5)
    torch.testing.assert_close(model.forward_features(IMAGES), peer.forward_features(IMAGES), rtol=0, atol=1e-5)
    assert all(torch.equal(to_timm(model)[name], tensor) for name, tensor in peer.state_dict().items())


def test_a_table_without_prefix_rows_equals_timm() -> None:
    peer = randomised(timm.create_model("vit_tiny_patch16_224", reg_tokens=2, num_classes=5, no_embed_class=True))
    model = zoo.create_model("vit_tiny_patch16_224", registers=2, num_classes=5).eval()
    model.load_state_dict(from_timm(peer.state_dict(), model.config))
    torch.testing.assert_close(model(IMAGES), peer(IMAGES), rtol=0, atol=1e-5)


@pytest.mark.parametrize("version", [4, 5])
def test_logits_and_gradients_equal_transformers(version: int) -> None:
    config = HFConfig(
        hidden_size=48, num_hidden_layers=3, num_attention_heads=3, intermediate_size=192, image_size=32, patch_size=8,
        num_labels=5, layer_norm_eps=1e-6,
    )  # fmt: skip
    peer = randomised(ViTForImageClassification(config))
    model = zoo.create_model("vit", image_size=32, patch_size=8, dim=48, depth=3, heads=3, num_classes=5).eval()
    state = peer.state_dict()
    if version == 4:
        old = {".q_proj.": ".attention.query.", ".k_proj.": ".attention.key.", ".v_proj.": ".attention.value."}
        old |= {"attention.o_proj.": "attention.output.dense.", "mlp.fc1.": "intermediate.dense."}
        old |= {"mlp.fc2.": "output.dense.", "vit.layers.": "vit.encoder.layer."}
        for new_name, old_name in old.items():
            state = {name.replace(new_name, old_name): tensor for name, tensor in state.items()}
    model.load_state_dict(from_huggingface(state))
    images = IMAGES[:, :, :32, :32]
    torch.testing.assert_close(model(images), peer(images).logits, rtol=0, atol=1e-5)
    model(images).square().mean().backward()
    peer(images).logits.square().mean().backward()
    grads = {name: parameter.grad for name, parameter in peer.named_parameters()}
    for name, grad in from_huggingface(grads).items():
        torch.testing.assert_close(model.get_parameter(name).grad, grad, rtol=0, atol=1e-5, msg=name)
    fresh = ViTForImageClassification(config).eval()
    fresh.load_state_dict(to_huggingface(model))
    torch.testing.assert_close(fresh(images).logits, model(images), rtol=0, atol=1e-5)


def test_a_weight_without_counterpart_is_named() -> None:
    model = zoo.create_model("vit_tiny_patch16_224")
    with pytest.raises(zoo.ConfigError, match=r"'blocks.0.ls1.gamma' has no counterpart"):
        from_timm({"blocks.0.ls1.gamma": torch.ones(192)}, model.config)
    with pytest.raises(zoo.ConfigError, match="one class token"):
        to_huggingface(zoo.create_model("vit", image_size=8, patch_size=4, dim=8, depth=1, heads=1, pool="mean"))
