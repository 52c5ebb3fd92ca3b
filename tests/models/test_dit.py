"""The DiT family: published sizes, four ways of conditioning, the start as zero, label dropout, precision."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import zoo
from benchmarks.speed.original_dit import OriginalDiT
from zoo.blocks.init import materialise
from zoo.inspection import count
from zoo.models.dit import unpatchify

TABLES = {2: 256, 4: 64, 8: 16}  # tokens of a 32 x 32 latent, rows of the original's fixed table
SIZES = {"s": (384, 12, 6), "b": (768, 12, 12), "l": (1024, 24, 16), "xl": (1152, 28, 16)}
WAYS = ["adaln_zero", "adaln", "cross_attention", "in_context"]
SMALL = {"image_size": 8, "channels": 1, "num_classes": 5, "dim": 16, "depth": 2, "heads": 2}
X = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
T, LABELS = torch.tensor([0.0, 400, 999]), [1, 4, 0]


def small(**choices) -> nn.Module:
    torch.manual_seed(0)
    return zoo.create_model("dit", **{**SMALL, **choices}).eval()


def moved(model: nn.Module) -> nn.Module:
    """Off its zeros, so that everything has an effect."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return model


def run(model: nn.Module, x: torch.Tensor = X, t: torch.Tensor = T, labels: list[int] = LABELS) -> torch.Tensor:
    return model(x, t, torch.tensor(labels))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("patch", TABLES)
def test_presets_have_the_originals_number_of_parameters(size: str, patch: int) -> None:
    dim, depth, heads = SIZES[size]
    with torch.device("meta"):
        model = zoo.create_model(f"dit_{size}_{patch}")
        original = OriginalDiT(patch=patch, dim=dim, depth=depth, heads=heads)
    table = TABLES[patch] * dim
    assert sum(p.numel() for p in model.parameters()) + table == sum(p.numel() for p in original.parameters())


def test_xl_2_has_the_published_size_and_cost() -> None:
    with torch.device("meta"):
        model = zoo.create_model("dit_xl_2")
        inputs = torch.empty(1, 4, 32, 32), torch.empty(1), torch.empty(1, dtype=torch.long)
        counted = count(model.eval(), *inputs)
    assert counted.params + 294_912 == 675_129_632
    assert round(counted.flops_forward / 2e9, 2) == 118.62  # the paper's "Gflops" are multiply-adds


@pytest.mark.parametrize("way", WAYS)
def test_a_new_model_answers_zero(way: str) -> None:
    assert torch.equal(run(small(conditioning=way)), torch.zeros(3, 2, 8, 8))


def test_the_blocks_of_a_new_adaln_zero_model_are_the_identity() -> None:
    model = small()
    seen = []
    model.stack.blocks[0].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    model.stack.blocks[1].register_forward_hook(lambda _, args, out: seen.append(out))
    run(model)
    assert torch.equal(seen[0], seen[1])


@pytest.mark.parametrize("way", WAYS)
def test_time_and_class_both_matter_and_only_to_their_row(way: str) -> None:
    model = moved(small(conditioning=way)).double()
    x, base = X.double(), run(model, X.double())
    for other in (run(model, x, torch.tensor([7.0, 400, 999])), run(model, x, T, [2, 4, 0])):
        difference = (other - base).abs().flatten(1).amax(1)
        assert difference[0] > 1e-3 and difference[1:].max() < 1e-12


@pytest.mark.parametrize("way", WAYS)
def test_a_gradient_reaches_every_parameter(way: str) -> None:
    model = moved(small(conditioning=way))
    run(model).square().mean().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in model.parameters())


@pytest.mark.parametrize("way", WAYS)
def test_checkpointing_changes_nothing(way: str) -> None:
    grads = []
    for checkpointing in (False, True):
        model = moved(small(conditioning=way, checkpointing=checkpointing, label_dropout=0.0)).train()
        run(model).square().mean().backward()
        grads.append([p.grad for p in model.parameters()])
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)


@pytest.mark.parametrize("way", WAYS)
def test_without_classes_the_time_is_told_alone(way: str) -> None:
    model = moved(small(conditioning=way, num_classes=0))
    assert model.label is None and model(X, T).shape == (3, 2, 8, 8)
    assert not torch.allclose(model(X, T), model(X, T + 5))
    with pytest.raises(zoo.ConfigError, match="num_classes"):
        _ = model.null_label


def test_labels_are_dropped_at_their_rate_while_training_only() -> None:
    label = small(label_dropout=0.3).label
    labels = torch.zeros(4000, dtype=torch.long)
    torch.manual_seed(0)
    dropped = (label.train()(labels, 4000) == label.weight[5]).all(-1)
    assert abs(dropped.double().mean() - 0.3) < 5 * (0.3 * 0.7 / 4000) ** 0.5
    assert torch.equal(label.eval()(labels, 4000), label.weight[0].expand(4000, -1))


def test_no_label_is_the_null_label_and_needs_dropout() -> None:
    model = moved(small())
    assert model.null_label == 5
    assert torch.equal(model(X, T), run(model, labels=[5, 5, 5]))
    bare = small(label_dropout=0.0)
    assert bare.label.weight.shape == (5, 16)
    with pytest.raises(zoo.ConfigError, match="label_dropout"):
        bare(X, T)


def test_other_sizes_than_the_built_one_run_and_patches_find_their_place() -> None:
    model = moved(small(patch_size=[2, 4]))
    assert model(torch.randn(2, 1, 4, 16), T[:2]).shape == (2, 2, 4, 16)
    with pytest.raises(zoo.ConfigError, match="does not divide"):
        model(torch.randn(2, 1, 5, 16), T[:2])


def test_unpatchify_undoes_patches() -> None:
    image = torch.arange(2 * 3 * 4 * 6).view(2, 3, 4, 6)
    tokens = image.view(2, 3, 2, 2, 2, 3).permute(0, 2, 4, 3, 5, 1).reshape(2, 4, 18)  # rows of (ph, pw, C)
    assert torch.equal(unpatchify(tokens, (2, 2), (2, 3)), image)


def test_neighbouring_times_stay_apart_under_autocast() -> None:
    model = small()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        told = model.time(torch.tensor([998.0, 999.0]))
        assert told.dtype == torch.float32
        assert run(moved(model)).isfinite().all()
    torch.testing.assert_close(told, small().time(torch.tensor([998.0, 999.0])), rtol=0, atol=0)
    double = small().double().time(torch.tensor([998.5]))
    assert double.dtype == torch.float64


def test_meta_builds_start_alike() -> None:
    with torch.device("meta"):
        late = zoo.create_model("dit", **SMALL)
    materialise(late)
    for (name, a), b in zip(small().named_parameters(), late.parameters(), strict=True):
        torch.testing.assert_close(a.std(), b.std(), rtol=0.3, atol=1e-6, msg=name)


def test_a_saved_model_is_the_same_after_loading(tmp_path) -> None:
    for way in WAYS:
        model = moved(small(conditioning=way))
        zoo.save_pretrained(model, tmp_path / way)
        assert torch.equal(run(zoo.load_pretrained(tmp_path / way)), run(model))


def test_residuals_go_with_the_conditioning_or_are_refused_in_one_line() -> None:
    assert run(small(conditioning="in_context", residual="sandwich")).shape == (3, 2, 8, 8)
    with pytest.raises(zoo.ConfigError, match=r"^dit.residual: 'sandwich' does not fit .*choices"):
        small(residual="sandwich")
    with pytest.raises(zoo.ConfigError, match="needs a condition"):
        small(conditioning="cross_attention", residual="adaln_zero")
