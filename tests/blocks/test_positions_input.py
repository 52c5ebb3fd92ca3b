"""Positions added at the input, and counting them (known faults 3, 11)."""

from __future__ import annotations

import copy
import math
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from zoo.blocks.api import Context, PositionConfig, Slot
from zoo.blocks.positions import (
    LearnedPositions,
    document_index,
    naive_token_positions,
    sincos2d_table,
    sinusoid,
    token_positions,
)
from zoo.registry import ConfigError, decode

SLOT = Slot(dim=16, heads=2, max_len=12, where="test")
INPUTS = ("learned", "sinusoidal", "sincos2d", "none")


def build(name: str, slot: Slot = SLOT, **choices: Any) -> Any:
    config: PositionConfig = decode("position", {"name": name, **choices})
    torch.manual_seed(0)
    return config.build(slot)


# --- counting -------------------------------------------------------------------------------------------------------


def test_left_padding_never_counts() -> None:
    """Fault 3: prompts of 3 and 7 tokens in one left-padded batch."""
    mask = torch.arange(7) >= torch.tensor([[4], [0]])
    assert token_positions(7, Context(token_mask=mask)).tolist() == [[0, 0, 0, 0, 0, 1, 2], list(range(7))]
    step = token_positions(1, Context(token_mask=torch.ones(2, 1, dtype=torch.bool)), offset=torch.tensor([3, 7]))
    assert step.tolist() == [[3], [7]]
    assert token_positions(2, Context(), offset=torch.tensor([3, 7])).tolist() == [[3, 4], [7, 8]]
    assert token_positions(3, Context(), offset=4).tolist() == [4, 5, 6]


@pytest.mark.parametrize("with_documents", [False, True])
@pytest.mark.parametrize("with_mask", [False, True])
@pytest.mark.parametrize("with_offset", [False, True])
def test_counting_equals_the_loop(with_documents: bool, with_mask: bool, with_offset: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    for _ in range(30):
        mask = torch.rand(3, 11, generator=generator) < 0.6
        documents = (torch.rand(3, 11, generator=generator) < 0.3).cumsum(-1) * 7
        documents = torch.where(mask, documents, -1) if with_mask else documents  # a pad may carry any id
        context = Context(token_mask=mask if with_mask else None, documents=documents if with_documents else None)
        offset = torch.tensor([0, 2, 5]) if with_offset else None
        got = token_positions(11, context, offset=offset).expand(3, -1)
        assert torch.equal(got, naive_token_positions(context, 3, 11, [0, 2, 5] if with_offset else None))


def test_packed_documents_restart_whatever_their_ids() -> None:
    documents = torch.tensor([[5, 5, 5, 1, 1, 5, 5, 0]])
    assert token_positions(8, Context(documents=documents)).tolist() == [[0, 1, 2, 0, 1, 0, 1, 0]]
    mask = torch.tensor([[False, True, True, True, False, True, True, True]])
    ids = torch.tensor([[9, 5, 5, 1, 0, 1, 1, 1]])  # the pad inside the second document does not split it
    assert token_positions(8, Context(documents=ids, token_mask=mask)).tolist() == [[0, 0, 1, 0, 0, 1, 2, 3]]
    assert document_index(ids, mask).tolist() == [[0, 0, 0, 1, 1, 1, 1, 1]]


def test_given_positions_win_and_layers_share_the_count() -> None:
    given = torch.tensor([4, 2, 9])
    assert token_positions(3, Context(positions=given, token_mask=torch.zeros(1, 3, dtype=torch.bool))) is given
    context = Context(token_mask=torch.ones(1, 3, dtype=torch.bool))
    first = token_positions(3, context)
    assert token_positions(3, context) is first
    context.token_mask = torch.tensor([[False, True, True]])  # another mask in the same pass is another count
    assert token_positions(3, context).tolist() == [[0, 0, 1]]


@pytest.mark.parametrize("name", ["learned", "sinusoidal"])
def test_a_padded_row_gets_the_positions_it_has_alone(name: str) -> None:
    module = build(name).double()
    x = torch.randn(2, 7, 16, dtype=torch.float64)
    mask = torch.arange(7) >= torch.tensor([[4], [0]])
    got = module(x, Context(token_mask=mask))
    torch.testing.assert_close(got[:1, 4:], module(x[:1, 4:], Context()), rtol=0, atol=1e-12)
    torch.testing.assert_close(got[1:], module(x[1:], Context()), rtol=0, atol=1e-12)
    again = module(torch.where(mask[..., None], x, 9.0), Context(token_mask=mask))
    assert torch.equal(again[mask], got[mask])


@pytest.mark.parametrize("name", ["learned", "sinusoidal"])
def test_packed_documents_equal_each_alone(name: str) -> None:
    module = build(name)
    x = torch.randn(1, 7, 16)
    got = module(x, Context(documents=torch.tensor([[0, 0, 0, 1, 1, 1, 1]])))
    assert torch.equal(got[:, 3:], module(x[:, 3:], Context()))


# --- learned --------------------------------------------------------------------------------------------------------


def test_learned_rows_are_those_of_the_positions() -> None:
    module = build("learned")
    x = torch.zeros(2, 5, 16)
    assert torch.equal(module(x, Context())[1], module.weight[:5])
    positions = torch.tensor([[0, 11, 3, 3, 1], [5, 4, 3, 2, 1]])
    assert torch.equal(module(x, Context(positions=positions)), module.weight[positions])
    assert torch.equal(module(x, Context(positions=positions[0]))[1], module.weight[positions[0]])


def test_learned_tells_which_position_has_no_row() -> None:
    module = build("learned")
    ok = Context(token_mask=torch.arange(14)[None] >= 2)  # 14 tokens, 12 of them real: they fit
    assert module(torch.zeros(1, 14, 16), ok).shape == (1, 14, 16)
    for context, told in (
        (Context(), "position 12 "),
        (Context(token_mask=torch.ones(1, 13, dtype=torch.bool)), "position 12 "),
        (Context(positions=torch.full((13,), 40)), "position 40 "),
        (Context(positions=torch.full((1, 13), -1)), "position -1 "),
    ):
        with pytest.raises(ConfigError) as caught:
            module(torch.zeros(1, 13, 16), context)
        assert told in str(caught.value)
        assert "12 rows" in str(caught.value)
        assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match="max_len"):
        build("learned", Slot(dim=16))


def test_learned_starts_with_the_familys_deviation_and_is_not_decayed() -> None:
    module: LearnedPositions = build("learned", Slot(dim=256, max_len=512, init_std=0.05))
    assert module.weight.std().item() == pytest.approx(0.05, rel=0.05)
    assert module.undecayed == ("weight",)


@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize("prefix", [0, 1, 3])
@pytest.mark.parametrize(
    ("old", "new"), [((3, 5), (5, 3)), ((3, 5), (4, 8)), ((2, 8), (4, 4)), ((4, 4), (2, 8)), ((6, 10), (3, 5))]
)
def test_a_ramp_keeps_its_axis_when_resampled(
    old: tuple[int, int], new: tuple[int, int], prefix: int, antialias: bool
) -> None:
    """Fault 11: half of the channels hold the row index, half the column index, on non-square and equal-count grids."""
    module = build("learned", Slot(dim=8, grid=old, prefix=prefix), antialias=antialias)
    row, column = torch.meshgrid(*[torch.arange(n, dtype=torch.float32) for n in old], indexing="ij")
    with torch.no_grad():
        module.weight[prefix:, :4] = row.reshape(-1, 1)
        module.weight[prefix:, 4:] = column.reshape(-1, 1)
    count = prefix + math.prod(new)
    got = module(torch.zeros(1, count, 8), Context(grid=new, prefix=prefix))[0]
    assert torch.equal(got[:prefix], module.weight[:prefix])
    cells = got[prefix:].view(*new, 8)
    rows, columns = cells[..., :4], cells[..., 4:]
    assert (rows - rows[:, :1]).abs().max() < 1e-5  # constant along the other axis; bicubic weights sum to 1 in fp32
    assert (columns - columns[:1]).abs().max() < 1e-5
    assert (rows.diff(dim=0) > 0).all()
    assert (columns.diff(dim=1) > 0).all()


def test_the_same_grid_is_untouched_and_gradients_reach_the_table() -> None:
    module = build("learned", Slot(dim=8, grid=(3, 5), prefix=1))
    assert module.resampled((3, 5)) is module.weight
    assert torch.equal(module(torch.zeros(1, 16, 8), Context(grid=(3, 5), prefix=1))[0], module.weight)
    assert torch.equal(module(torch.zeros(1, 16, 8), Context())[0], module.weight)
    module(torch.zeros(1, 33, 8), Context(grid=(4, 8), prefix=1)).sum().backward()
    assert (module.weight.grad.abs().sum(-1) > 0).all()


def test_a_grid_table_takes_a_subset_and_ignores_the_mask() -> None:
    module = build("learned", Slot(dim=8, grid=(3, 5), prefix=1))
    kept = torch.tensor([[0, 2, 15], [0, 7, 8]])
    assert torch.equal(module(torch.zeros(2, 3, 8), Context(positions=kept)), module.weight[kept])
    mask = torch.arange(16)[None] != 4
    assert torch.equal(module(torch.zeros(1, 16, 8), Context(token_mask=mask))[0], module.weight)
    for context in (Context(grid=(3, 4), prefix=1), Context(grid=(4, 5), prefix=1)):
        with pytest.raises(ConfigError, match="do not fit the grid"):
            module(torch.zeros(1, 16, 8), context)


# --- sinusoidal -----------------------------------------------------------------------------------------------------


def test_sinusoids_equal_the_papers_formula() -> None:
    table = sinusoid(torch.tensor([0, 1, 7, 5000]), 16, dtype=torch.float64)
    for row, p in enumerate((0, 1, 7, 5000)):
        for i in range(8):
            angle = p / 10000 ** (2 * i / 16)
            assert table[row, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-10)
            assert table[row, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-10)


def test_sinusoids_of_whisper_equal_its_code() -> None:
    increment = np.log(10000) / (16 // 2 - 1)
    time = np.arange(30)[:, None] * np.exp(-increment * np.arange(8))[None]
    want = np.concatenate([np.sin(time), np.cos(time)], axis=1)
    got = sinusoid(torch.arange(30), 16, convention="whisper", dtype=torch.float64)
    np.testing.assert_allclose(got.numpy(), want, rtol=0, atol=1e-12)


@pytest.mark.parametrize("convention", ["vaswani", "whisper"])
@pytest.mark.parametrize("k", [1, 5, 100])
def test_a_shift_is_one_linear_map(convention: str, k: int) -> None:
    """PE(p + k) = M PE(p) with M fitted on 40 positions and tried on others."""
    table = sinusoid(torch.arange(4000), 8, convention=cast(Any, convention), dtype=torch.float64)
    shift = torch.linalg.lstsq(table[: 40 * 50 : 50], table[k : 40 * 50 + k : 50]).solution
    torch.testing.assert_close(table[2000:3500] @ shift, table[2000 + k : 3500 + k], rtol=0, atol=1e-8)
    torch.testing.assert_close(shift @ shift.T, torch.eye(8, dtype=torch.float64), rtol=0, atol=1e-8)  # a rotation


def test_sinusoids_take_any_length_and_stay_exact_in_half_precision() -> None:
    module = build("sinusoidal")
    positions = torch.tensor([257, 1000, 4095, 8191])
    want = sinusoid(positions, 16, dtype=torch.float64)
    for dtype in (torch.float32, torch.bfloat16):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            got = nn.Sequential(module).to(dtype)[0](torch.zeros(1, 4, 16, dtype=dtype), Context(positions=positions))
        assert got.dtype == dtype
        assert (got[0].double() - want).abs().max() < (1e-3 if dtype == torch.float32 else 0.004)
    assert module(torch.zeros(1, 100, 16), Context()).shape == (1, 100, 16)
    for dim, choices in ((15, {}), (2, {"convention": "whisper"})):
        with pytest.raises(ConfigError, match="even dim"):
            build("sinusoidal", Slot(dim=dim), **choices)


# --- sincos2d -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("grid", [(3, 5), (4, 4), (1, 7)])
def test_sincos2d_equals_maes_code(grid: tuple[int, int]) -> None:
    """get_2d_sincos_pos_embed of facebookresearch/mae, for a grid of any shape."""

    def axis(dim: int, pos: np.ndarray) -> np.ndarray:
        omega = 1.0 / 10000 ** (np.arange(dim // 2, dtype=np.float64) / (dim / 2.0))
        out = np.einsum("m,d->md", pos.reshape(-1), omega)
        return np.concatenate([np.sin(out), np.cos(out)], axis=1)

    h, w = grid
    mesh = np.stack(np.meshgrid(np.arange(w, dtype=np.float64), np.arange(h, dtype=np.float64)))  # w goes first
    want = np.concatenate([axis(8, mesh[0]), axis(8, mesh[1])], axis=1)
    np.testing.assert_allclose(sincos2d_table(grid, 16, dtype=torch.float64).numpy(), want, rtol=0, atol=1e-12)


@pytest.mark.parametrize("grid", [(3, 5), (4, 4)])
def test_sincos2d_equals_big_visions_code(grid: tuple[int, int]) -> None:
    """posemb_sincos_2d of google-research/big_vision, models/vit.py."""
    y, x = np.mgrid[: grid[0], : grid[1]]
    omega = 1.0 / 10000 ** (np.arange(4) / 3)
    y, x = np.einsum("m,d->md", y.flatten(), omega), np.einsum("m,d->md", x.flatten(), omega)
    want = np.concatenate([np.sin(x), np.cos(x), np.sin(y), np.cos(y)], axis=1)
    got = sincos2d_table(grid, 16, convention="big_vision", dtype=torch.float64)
    np.testing.assert_allclose(got.numpy(), want, rtol=0, atol=1e-12)


def test_sincos2d_leaves_the_prefix_and_takes_any_grid() -> None:
    module = build("sincos2d", SLOT.at(grid=(2, 2), prefix=1))
    x = torch.randn(2, 16, 16)
    got = module(x, Context(grid=(3, 5), prefix=1))
    assert torch.equal(got[:, :1], x[:, :1])
    assert torch.equal(got[:, 1:], x[:, 1:] + sincos2d_table((3, 5), 16))
    kept = torch.tensor([0, 4, 9])
    assert torch.equal(module(x[:, kept], Context(grid=(3, 5), prefix=1, positions=kept)), got[:, kept])
    assert module(x[:, :5], Context()).shape == (2, 5, 16)
    assert module(x.bfloat16(), Context(grid=(3, 5), prefix=1)).dtype == torch.bfloat16
    for context in (Context(grid=(3, 4), prefix=1), Context(grid=(16,)), Context(grid=(2, 2, 4))):
        with pytest.raises(ConfigError, match="grid"):
            module(x, context)
    for dim, choices in ((18, {}), (4, {"convention": "big_vision"})):
        with pytest.raises(ConfigError, match="multiple of 4"):
            build("sincos2d", Slot(dim=dim, grid=(2, 2)), **choices)


# --- all ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("grid", [(3, 4), (4, 6)])
def test_exports_copies_and_builds_on_meta(name: str, grid: tuple[int, int]) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.position = build(
                name, SLOT.at(grid=(3, 4)) if name in ("learned", "sincos2d") else SLOT.at(max_len=24)
            )

        def forward(self, x: Tensor) -> Tensor:
            return self.position(x, Context(grid=grid))

    model, x = Model(), torch.randn(2, math.prod(grid), 16)
    want = model(x)
    torch.testing.assert_close(torch.export.export(model, (x,)).module()(x), want, rtol=0, atol=1e-6)
    assert torch.equal(copy.deepcopy(model)(x), want)
    assert model.to(torch.bfloat16)(x.bfloat16()).dtype == torch.bfloat16
    with torch.device("meta"):
        built = Model()
        assert built(torch.empty(2, math.prod(grid), 16)).shape == want.shape
    built.to_empty(device="cpu")
    torch.manual_seed(0)
    for module in built.modules():
        if hasattr(module, "reset_parameters"):
            cast(Any, module).reset_parameters()
    assert torch.equal(built(x), want)


def test_none_is_the_identity() -> None:
    x = torch.randn(1, 3, 16)
    assert build("none")(x, Context()) is x
