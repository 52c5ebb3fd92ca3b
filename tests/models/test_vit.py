"""The ViT family: published sizes, any image, pooling, registers, distillation, features and maps."""

from __future__ import annotations

import pytest
import torch

import zoo
from zoo.blocks.init import materialise
from zoo.inspection import count

PUBLISHED = {
    "vit_tiny_patch16_224": 5_717_416,
    "vit_small_patch16_224": 22_050_664,
    "vit_small_patch32_224": 22_878_952,
    "vit_base_patch16_224": 86_567_656,
    "vit_base_patch32_224": 88_224_232,
    "vit_large_patch16_224": 304_326_632,
    "vit_large_patch32_224": 306_535_400,
    "deit_tiny_patch16_224": 5_717_416,
    "deit_small_patch16_224": 22_050_664,
    "deit_base_patch16_224": 86_567_656,
    "deit_tiny_distilled_patch16_224": 5_910_800,
    "deit_small_distilled_patch16_224": 22_436_432,
    "deit_base_distilled_patch16_224": 87_338_192,
}
SMALL = {"image_size": 16, "patch_size": 4, "channels": 1, "num_classes": 5, "dim": 16, "depth": 2, "heads": 2}


def small(**choices) -> torch.nn.Module:
    torch.manual_seed(0)
    return zoo.create_model("vit", **{**SMALL, "init_std": 0.2, **choices}).eval()


@pytest.mark.parametrize("name", PUBLISHED)
def test_presets_have_the_published_number_of_parameters(name: str) -> None:
    with torch.device("meta"):
        model = zoo.create_model(name)
    assert sum(parameter.numel() for parameter in model.parameters()) == PUBLISHED[name]


def test_every_vit_preset_is_checked_above() -> None:
    presets = {name for name in zoo.list_models() if name.startswith(("vit_", "deit_"))}
    assert presets == {*PUBLISHED, "vit_digits"}


def test_digits_preset_is_its_parts_added_up() -> None:
    block = 2 * 2 * 64 + (3 * 64 * 64 + 3 * 64) + (64 * 64 + 64) + (64 * 128 + 128) + (128 * 64 + 64)
    expected = (4 * 64 + 64) + 16 * 64 + 4 * block + 2 * 64 + (64 * 10 + 10)  # patches, positions, blocks, norm, head
    assert sum(p.numel() for p in zoo.create_model("vit_digits").parameters()) == expected == 136_010


def test_base_takes_17_56_giga_multiply_adds() -> None:
    with torch.device("meta"):
        model = zoo.create_model("vit_base_patch16_224")
        counted = count(model, torch.empty(1, 3, 224, 224))
    assert counted.params == 86_567_656
    assert round(counted.flops_forward / 2e9, 2) == 17.56  # attention scores included: 0.71 of it


@pytest.mark.parametrize("size", [(16, 16), (12, 20), (20, 12), (8, 32), (4, 4)])
@pytest.mark.parametrize(
    "position", ["learned", "sincos2d", "rope", "rope2d", "alibi", "t5_bias", "sinusoidal", "none"]
)
def test_any_image_size_that_the_patches_divide(size: tuple[int, int], position: str) -> None:
    model = small(position=position, dim=32, registers=1)
    assert model(torch.randn(2, 1, *size)).shape == (2, 5)


def test_an_image_that_does_not_divide_is_told_what_fits() -> None:
    with pytest.raises(zoo.ConfigError, match=r"18 x 16 does not divide into patches of 4 x 4.*20 x 16"):
        small()(torch.randn(1, 1, 18, 16))
    with pytest.raises(zoo.ConfigError, match="3 channels does not fit channels=1"):
        small()(torch.randn(1, 3, 16, 16))


def test_features_hold_prefix_tokens_then_patches() -> None:
    model = small(registers=3)
    assert model.forward_features(torch.randn(2, 1, 16, 16)).shape == (2, 1 + 3 + 16, 16)
    assert small(pool="mean").forward_features(torch.randn(2, 1, 16, 16)).shape == (2, 16, 16)


def test_without_classes_the_pooled_features_come_out() -> None:
    assert small(num_classes=0)(torch.randn(2, 1, 16, 16)).shape == (2, 16)


def test_without_classes_a_distilled_model_gives_features_too() -> None:
    assert small(num_classes=0, distilled=True)(torch.randn(2, 1, 16, 16)).shape == (2, 16)


def test_registers_are_not_pooled() -> None:
    model, images = small(pool="mean", registers=2), torch.randn(2, 1, 16, 16)
    features = model.forward_features(images)
    expected = model.head.linear(features[:, 2:].mean(1))
    torch.testing.assert_close(model(images), expected)


def test_distilled_model_gives_both_heads_in_training_and_their_mean_after() -> None:
    model, images = small(distilled=True), torch.randn(2, 1, 16, 16)
    both = model.train()(images)
    assert isinstance(both, tuple) and both[0].shape == both[1].shape == (2, 5)
    torch.testing.assert_close(model.eval()(images), (both[0] + both[1]) / 2)


def test_attention_maps_are_recorded_beside_the_fused_path() -> None:
    model, images = small(), torch.randn(2, 1, 16, 16)
    recorder = zoo.Recorder(only="attention")
    assert torch.equal(model(images, record=recorder), model(images))
    assert list(recorder.taps) == ["vit.0.mixer.attention", "vit.1.mixer.attention"]
    for maps in recorder.taps.values():
        assert maps.shape == (2, 2, 17, 17)
        torch.testing.assert_close(maps.sum(-1), torch.ones(2, 2, 17))


@pytest.mark.parametrize(
    "choices",
    [
        {"norm": "rmsnorm", "ffn": "swiglu", "position": "rope", "residual": "sandwich"},
        {"layout": "parallel"},
        {"layout": "macaron", "residual": "layerscale"},
        {"layout": "mixer_only", "residual": "post"},
        {"residual": "deepnorm", "drop_path": 0.2, "dropout": 0.1},
        {"mixer": {"window": 3, "sinks": 1}, "position": "rope2d", "dim": 32},
        {"checkpointing": True},
        {"position": "t5_bias"},
    ],
    ids=str,
)
def test_combinations_train_save_and_load(choices: dict, tmp_path) -> None:
    torch.manual_seed(0)
    model = zoo.create_model("vit", **{**SMALL, **choices}).train()
    images, labels = torch.randn(8, 1, 16, 16), torch.randint(5, (8,))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(30):
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]
    zoo.save_pretrained(model, tmp_path)
    again = zoo.load_pretrained(tmp_path)
    assert again.config == model.config
    torch.testing.assert_close(again(images), model.eval()(images), rtol=0, atol=0)


@pytest.mark.parametrize("choices", [{}, {"pool": "mean"}, {"distilled": True, "registers": 2}], ids=str)
def test_gradients_reach_every_parameter(choices: dict) -> None:
    """A parameter without a gradient is dead weight, and stops DistributedDataParallel."""
    model = small(**choices).train()
    made = model(torch.randn(4, 1, 16, 16))
    sum(part.square().sum() for part in (made if isinstance(made, tuple) else (made,))).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


def test_activation_checkpointing_changes_no_gradient() -> None:
    images = torch.randn(2, 1, 16, 16)
    plain, saving = small().train(), small(checkpointing=True).train()
    for model in (plain, saving):
        model(images).square().sum().backward()
    for a, b in zip(plain.parameters(), saving.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=0, atol=0)


def test_a_block_starts_the_same_alone_and_in_a_model() -> None:
    """Initial values belong to the block: same standard deviations in a stack as for `create_mixer` with its slot."""
    model = zoo.create_model("vit", **{**SMALL, "dim": 64, "depth": 4, "scale_branches": True})
    alone = zoo.create_mixer("attention", dim=64, heads=2, branches=8)
    for name in ("qkv.weight", "out.weight"):
        inside = torch.stack([block.mixer.get_parameter(name).std() for block in model.stack.blocks]).mean()
        torch.testing.assert_close(inside, alone.get_parameter(name).std(), rtol=0.05, atol=0)
    # a normal cut at two deviations has 0.88 of its deviation; 8 branches divide the output's by sqrt(8)
    torch.testing.assert_close(alone.qkv.weight.std().item(), 0.0176, rtol=0.05, atol=0)
    torch.testing.assert_close(alone.out.weight.std().item(), 0.0176 / 8**0.5, rtol=0.05, atol=0)


def test_residual_stream_stays_level_with_scaled_branches() -> None:
    """Radford et al. 2019: without the factor the stream's variance grows with depth."""

    def growth(depth: int, scaled: bool) -> float:
        torch.manual_seed(0)
        model = small(depth=depth, scale_branches=scaled, final_norm=False, dim=64, init_std=0.15, position="none")
        x = torch.randn(4, 1, 16, 16)
        first = model.prefix(model.patches(x)[0]).var()
        return (model.forward_features(x).var() / first).item()

    assert growth(64, True) <= 3 * growth(4, True)
    assert growth(64, False) >= 8 * growth(4, False)


def test_meta_build_then_materialise_gives_a_working_model() -> None:
    with torch.device("meta"):
        model = zoo.create_model("vit", **SMALL)
    materialise(model)
    assert model(torch.randn(1, 1, 16, 16)).isfinite().all()


def test_exported_program_equals_the_model() -> None:
    model, images = small(position="rope2d", dim=32), torch.randn(2, 1, 16, 16)
    with torch.no_grad():
        program = torch.export.export(model, (images,))
    torch.testing.assert_close(program.module()(images), model(images), rtol=0, atol=1e-5)


def test_timm_models_are_a_family_of_their_own(tmp_path) -> None:
    model = zoo.create_model({"family": "timm", "name": "resnet10t", "num_classes": 4, "channels": 1}).eval()
    images = torch.randn(2, 1, 32, 32)
    assert model(images).shape == (2, 4)
    zoo.save_pretrained(model, tmp_path)
    torch.testing.assert_close(zoo.load_pretrained(tmp_path)(images), model(images), rtol=0, atol=0)
    sized = {"family": "timm", "name": "vit_tiny_patch16_224", "num_classes": 4, "image_size": 32}
    assert zoo.create_model(sized)(torch.randn(1, 3, 32, 32)).shape == (1, 4)
    with pytest.raises(zoo.ConfigError, match=r"model.name: timm has no model 'resnet10'.*did you mean"):
        zoo.create_model({"family": "timm", "name": "resnet10"})
