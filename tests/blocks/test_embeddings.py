"""Token and patch embeddings, prefix tokens, resampled grids (known fault 11)."""

from __future__ import annotations

import copy

import pytest
import torch
from timm.layers.patch_embed import PatchEmbed
from timm.layers.pos_embed import resample_abs_pos_embed
from torch import nn

from zoo.blocks.embeddings import PatchEmbedding, PrefixTokens, TokenEmbedding, resample_grid
from zoo.registry import ConfigError


def test_token_embedding_scales_and_starts_as_documented() -> None:
    torch.manual_seed(0)
    plain, scaled = TokenEmbedding(500, 64), TokenEmbedding(500, 64, scale=True)
    ids = torch.tensor([[0, 3, 499]])
    assert torch.equal(plain(ids)[0], plain.weight[ids[0]])
    assert torch.equal(scaled(ids)[0], scaled.weight[ids[0]] * 8)
    assert plain.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert scaled(torch.arange(500)[None]).std().item() == pytest.approx(1.0, rel=0.05)
    assert (plain.weight[0] != 0).all()  # a padding row is random like any other
    assert plain.undecayed == ("weight",)


@pytest.mark.parametrize("patch", [(2, 2), (4, 2), (8, 16), (16, 12)])
@pytest.mark.parametrize("channels", [1, 3, 5])
def test_patches_equal_the_convolution_and_a_loop(patch: tuple[int, int], channels: int) -> None:
    torch.manual_seed(0)
    module = PatchEmbedding(channels, patch, 6).double()
    assert module.bias is not None
    nn.init.normal_(module.bias)
    images = torch.randn(2, channels, 3 * patch[0], 2 * patch[1], dtype=torch.float64)
    tokens, grid = module(images)
    assert grid == (3, 2)
    assert tokens.shape == (2, 6, 6)
    want = nn.functional.conv2d(images, module.weight, module.bias, stride=patch).flatten(2).transpose(1, 2)
    torch.testing.assert_close(tokens, want, rtol=0, atol=1e-10)
    for row in range(3):
        for column in range(2):
            cut = images[:, :, row * patch[0] : (row + 1) * patch[0], column * patch[1] : (column + 1) * patch[1]]
            one = cut.flatten(1) @ module.weight.flatten(1).T + module.bias
            torch.testing.assert_close(tokens[:, 2 * row + column], one, rtol=0, atol=1e-10)


def test_patches_equal_timm() -> None:
    torch.manual_seed(0)
    theirs = PatchEmbed(img_size=32, patch_size=4, in_chans=3, embed_dim=24)
    ours = PatchEmbedding(3, 4, 24)
    ours.load_state_dict({name.removeprefix("proj."): value for name, value in theirs.state_dict().items()})
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(ours(images)[0], theirs(images), rtol=0, atol=1e-5)


def test_an_image_that_does_not_divide_is_told_in_one_line() -> None:
    module = PatchEmbedding(3, (8, 6), 4)
    for size, told in (((25, 36), "25 x 36"), ((24, 40), "24 x 42")):
        with pytest.raises(ConfigError) as caught:
            module(torch.zeros(1, 3, *size))
        assert "does not divide into patches of 8 x 6" in str(caught.value)
        assert told in str(caught.value)
        assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match="1 channels does not fit channels=3"):
        module(torch.zeros(1, 1, 24, 36))


@pytest.mark.parametrize("patch", [4, 16])
def test_patches_start_with_unit_gain(patch: int) -> None:
    torch.manual_seed(0)
    tokens, _ = PatchEmbedding(3, patch, 256)(torch.randn(2, 3, 8 * patch, 8 * patch))
    assert tokens.std().item() == pytest.approx(0.88, rel=0.05)  # a normal cut at two deviations keeps 0.88 of its own


def test_prefix_tokens_come_first_and_equal_for_all_rows() -> None:
    torch.manual_seed(0)
    module = PrefixTokens(8, distilled=True, registers=4)
    x = torch.randn(3, 5, 8)
    got = module(x)
    assert module.count == 6
    assert torch.equal(got[:, 6:], x)
    assert torch.equal(got[:, :6], module.weight.expand(3, -1, -1))
    assert module(x.bfloat16()).dtype == torch.bfloat16
    assert module.undecayed == ("weight",)
    none = PrefixTokens(8, class_token=False)
    assert none.count == 0
    assert none(x) is x
    with pytest.raises(ConfigError, match="distillation"):
        PrefixTokens(8, class_token=False, distilled=True)


def test_resampling_takes_equal_counts_for_different_grids() -> None:
    table = torch.randn(16, 6)
    assert resample_grid(table, (2, 8), (2, 8)) is table
    assert not torch.equal(resample_grid(table, (2, 8), (4, 4)), table)
    with_batch = resample_grid(table[None], (2, 8), (4, 4))
    assert torch.equal(with_batch[0], resample_grid(table, (2, 8), (4, 4)))
    for old, new in (((4, 5), (2, 8)), ((2, 8), (16,)), ((2, 2, 4), (4, 2, 2))):
        with pytest.raises(ConfigError):
            resample_grid(table, old, new)


@pytest.mark.parametrize("antialias", [True, False])
def test_resampling_equals_timm_on_square_grids(antialias: bool) -> None:
    table = torch.randn(1, 49, 6)
    for new in ((5, 5), (14, 9)):
        want = resample_abs_pos_embed(table, list(new), [7, 7], num_prefix_tokens=0, antialias=antialias)
        torch.testing.assert_close(resample_grid(table, (7, 7), new, antialias=antialias), want, rtol=0, atol=1e-6)


def test_resampling_keeps_constants_dtypes_and_one_axis() -> None:
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        table = torch.full((15, 4), 0.5, dtype=dtype)
        got = resample_grid(table, (3, 5), (6, 2))
        assert got.dtype == dtype
        torch.testing.assert_close(got, torch.full((12, 4), 0.5, dtype=dtype), rtol=0, atol=1e-6)
    line = resample_grid(torch.arange(8.0)[:, None], (8,), (16,))[:, 0]
    assert line.shape == (16,)
    assert (line.diff() > 0).all()


def test_exports_copies_and_builds_on_meta() -> None:
    class Stem(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches, self.prefix = PatchEmbedding(3, 4, 16), PrefixTokens(16, registers=2)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.prefix(self.patches(images)[0])

    torch.manual_seed(0)
    model, images = Stem(), torch.randn(2, 3, 12, 8)
    want = model(images)
    torch.testing.assert_close(torch.export.export(model, (images,)).module()(images), want, rtol=0, atol=1e-6)
    assert torch.equal(copy.deepcopy(model)(images), want)
    with torch.device("meta"):
        built = Stem()
        assert built(torch.empty(2, 3, 12, 8)).shape == want.shape
    built.to_empty(device="cpu")
    torch.manual_seed(0)
    for part in (built.patches, built.prefix):
        part.reset_parameters()
    assert torch.equal(built(images), want)
