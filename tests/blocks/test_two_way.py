"""A causal mixer in a two-sided place: both directions, the orders of a grid, padding, positions and cost."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import zoo
from zoo.blocks import Context, Slot
from zoo.blocks.fixed_state import FixedState
from zoo.blocks.recurrent_mixer import RecurrentConfig, RecurrentMixer, Tokens
from zoo.blocks.two_way import TwoWay, scan_order
from zoo.registry import ConfigError

D = 3


class Distance(RecurrentMixer):
    """y_t = W sum_{s <= t} 0.8^(p_t - p_s) x_s with positions p, given or counted."""

    def __init__(self, slot: Slot) -> None:
        super().__init__()
        self.where = slot.where
        self.out = nn.Linear(D, D, bias=False, dtype=torch.float64)

    def mix(self, x: Tensor, tokens: Tokens, state: FixedState | None) -> Tensor:
        batch, length = x.shape[:2]
        positions = torch.arange(length) if tokens.positions is None else tokens.positions
        positions = positions.expand(batch, length)
        weight = (0.8 ** (positions[:, :, None] - positions[:, None]).double()).tril()  # (B, T, T)
        real = torch.ones(batch, length, dtype=torch.bool) if tokens.mask is None else tokens.mask
        return self.out((weight * real[:, None]) @ x)

    def core_flops(self, batch: int, length: int, memory_length: int = 0) -> int:
        return 100 * batch * length


class DistanceConfig(RecurrentConfig):
    def build_causal(self, slot: Slot) -> Distance:
        return Distance(slot)


def build(grid: tuple[int, ...] | None = None, **choices) -> TwoWay:
    torch.manual_seed(0)
    mixer = DistanceConfig(**choices).build(Slot(dim=D, grid=grid, where="vit.0.mixer"))
    assert isinstance(mixer, TwoWay)
    return mixer


def rows(length: int = 6, batch: int = 2) -> Tensor:
    return torch.randn(batch, length, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("tied", [False, True])
def test_the_output_is_the_mean_of_both_directions(tied: bool) -> None:
    mixer, x = build(tied=tied), rows()
    backwards = mixer.forwards if tied else mixer.backwards
    assert backwards is not None and (mixer.backwards is None) == tied
    expected = (mixer.forwards(x, Context()) + backwards(x.flip(1), Context()).flip(1)) / 2
    close(mixer(x, Context()), expected)


def test_tied_directions_have_one_set_of_weights_and_mirror_each_other() -> None:
    mixer, x = build(tied=True), rows()
    assert 2 * sum(p.numel() for p in mixer.parameters()) == sum(p.numel() for p in build().parameters())
    close(mixer(x.flip(1), Context()), mixer(x, Context()).flip(1))


def test_a_causal_place_gets_one_direction() -> None:
    assert isinstance(DistanceConfig(tied=True).build(Slot(dim=D, causal=True)), Distance)


def test_orders_of_a_grid() -> None:
    """Height 2, width 3, one class token before and one token behind."""
    orders = {scan: scan_order(scan, (2, 3), 1, 8, torch.device("cpu")).tolist() for scan in ("row", "column", "snake")}
    assert orders == {
        "row": [0, 1, 2, 3, 4, 5, 6, 7],
        "column": [0, 1, 4, 2, 5, 3, 6, 7],
        "snake": [0, 1, 2, 3, 6, 5, 4, 7],
    }


@pytest.mark.parametrize("scan", ["column", "snake"])
def test_a_scan_reads_in_its_order_and_writes_in_the_image_s(scan: str) -> None:
    grid, prefix = (3, 4), 2
    mixer, x = build(grid, scan=scan), rows(14)
    order = scan_order(scan, grid, prefix, 14, x.device)
    y = mixer(x, Context(grid=grid, prefix=prefix))
    close(y[:, order], build(grid)(x[:, order], Context(grid=grid, prefix=prefix)))


def test_columns_of_an_image_are_rows_of_its_transpose() -> None:
    x = rows(12)
    turned = x.view(2, 3, 4, D).transpose(1, 2).flatten(1, 2)
    y = build((3, 4), scan="column")(x, Context(grid=(3, 4)))
    close(y.view(2, 3, 4, D).transpose(1, 2).flatten(1, 2), build()(turned, Context()))


@pytest.mark.parametrize("scan", ["row", "column", "snake"])
def test_masked_tokens_of_a_grid_never_count(scan: str) -> None:
    grid = (2, 3)
    mixer, x = build(grid, scan=scan), rows()
    mask = torch.tensor([[1, 0, 1, 1, 1, 0], [0, 0, 1, 0, 1, 1]]).bool()
    context = Context(grid=grid, token_mask=mask)
    y = mixer(x, context)
    assert torch.equal(mixer(torch.where(mask[..., None], x, 50.0), context)[mask], y[mask])
    order = scan_order(scan, grid, 0, 6, x.device)
    for row in range(2):
        kept = order[mask[row, order]]
        close(y[row, kept], build(grid)(x[row : row + 1, kept], Context())[0])


@pytest.mark.parametrize("padded", [False, True])
def test_positions_that_are_given_count_distances_in_both_directions(padded: bool) -> None:
    mixer, x = build(), rows()
    mask = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0]]).bool() if padded else None
    counted = torch.tensor([[0, 0, 0, 1, 2, 3], [0, 1, 2, 3, 4, 5]]) if padded else torch.arange(6)
    keep = torch.ones(2, 6, dtype=torch.bool) if mask is None else mask
    given = mixer(x, Context(positions=counted + 7, token_mask=mask))
    close(given[keep], mixer(x, Context(token_mask=mask))[keep])


def test_documents_stay_apart_in_both_directions() -> None:
    from zoo.blocks.mixers.gated_delta import GatedDeltaConfig

    torch.manual_seed(0)
    mixer = GatedDeltaConfig().build(Slot(dim=8, heads=2)).double()
    x = torch.randn(1, 7, 8, dtype=torch.float64)
    y = mixer(x, Context(documents=torch.tensor([[0, 0, 0, 1, 1, 1, 1]])))
    close(y[:, :3], mixer(x[:, :3], Context()))
    close(y[:, 3:], mixer(x[:, 3:], Context()))


def test_the_doubled_cost_shows() -> None:
    mixer = build()
    assert mixer.core_flops(2, 5) == 2 * mixer.forwards.core_flops(2, 5) == 2000


def test_an_order_without_a_grid_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"vit.0.mixer.scan: 'snake' needs a grid of tokens, .* choices: row"):
        build(scan="snake")
    with pytest.raises(ValueError, match=r"vit.0.mixer: scan 'snake' needs context.grid \(height, width\)"):
        build((2, 3), scan="snake")(rows(), Context())


@pytest.mark.parametrize("scan", ["column", "snake"])
def test_an_order_for_images_is_refused_where_tokens_are_read_one_way(scan: str) -> None:
    with pytest.raises(ConfigError, match=rf"scan: '{scan}' is an order for both directions.*choices: row"):
        zoo.create_mixer({"name": "gated_delta", "scan": scan}, dim=16, heads=2, causal=True)
