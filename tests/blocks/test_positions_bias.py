"""Biases of the scores: ALiBi's slopes and T5's buckets, against loops and against transformers."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.models.t5.modeling_t5 import T5Attention

from zoo.blocks.api import PositionConfig, Slot
from zoo.blocks.positions import AlibiConfig, T5BiasConfig, alibi_slopes, naive_alibi, naive_t5_bucket, t5_bucket
from zoo.registry import ConfigError, decode

SETTINGS = [(32, 128), (16, 64), (8, 20), (32, 1000), (64, 128)]


def test_alibi_slopes_are_those_of_the_paper() -> None:
    assert alibi_slopes(8, dtype=torch.float64).tolist() == [2.0**-h for h in range(1, 9)]
    rest = [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]
    assert alibi_slopes(12, dtype=torch.float64).tolist() == pytest.approx([2.0**-h for h in range(1, 9)] + rest)
    assert alibi_slopes(6, dtype=torch.float64).tolist() == pytest.approx([2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3])
    assert alibi_slopes(1).tolist() == [2.0**-8]


@pytest.mark.parametrize("heads", range(1, 21))
def test_alibi_equals_the_loop_for_any_number_of_heads(heads: int) -> None:
    positions = torch.arange(9)
    got = AlibiConfig().build(Slot(dim=heads, heads=heads))(positions, positions, dtype=torch.float64)
    torch.testing.assert_close(got, naive_alibi(heads, 9), rtol=0, atol=1e-10)


def test_alibi_stays_exact_at_long_distances() -> None:
    module = AlibiConfig().build(Slot(dim=8, heads=8)).to(torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        bias = module(torch.tensor([8191]), torch.tensor([0, 1, 8190]))
    assert bias.dtype == torch.float32
    assert bias[0, 0].tolist() == [-8191 / 2, -8190 / 2, -1 / 2]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("buckets", "max_distance"), SETTINGS)
def test_t5_buckets_equal_transformers(causal: bool, buckets: int, max_distance: int) -> None:
    relative = torch.arange(-3000, 3001)
    got = t5_bucket(relative, causal=causal, buckets=buckets, max_distance=max_distance)
    want = T5Attention._relative_position_bucket(
        relative, bidirectional=not causal, num_buckets=buckets, max_distance=max_distance
    )
    assert torch.equal(got, want)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (16, 64), (8, 20)])
def test_t5_buckets_equal_the_loop_in_whole_numbers(causal: bool, buckets: int, max_distance: int) -> None:
    got = t5_bucket(torch.arange(-200, 201), causal=causal, buckets=buckets, max_distance=max_distance)
    want = [naive_t5_bucket(r, causal=causal, buckets=buckets, max_distance=max_distance) for r in range(-200, 201)]
    assert got.tolist() == want


def test_t5_buckets_read_as_documented() -> None:
    both = t5_bucket(torch.tensor([0, -1, -7, -8, -127, -128, -9999, 1, 7, 9999]), causal=False)
    assert both.tolist() == [0, 1, 7, 8, 15, 15, 15, 17, 23, 31]
    past = t5_bucket(torch.tensor([5, 0, -1, -15, -16, -9999]), causal=True)
    assert past.tolist() == [0, 0, 1, 15, 16, 31]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("batched", [True, False])
def test_t5_bias_looks_up_the_bucket_of_key_minus_query(causal: bool, batched: bool) -> None:
    torch.manual_seed(0)
    module = T5BiasConfig(max_distance=20, num_buckets=8).build(Slot(dim=16, heads=3, causal=causal))
    q, k = torch.arange(5) * 11, torch.arange(9) * 7
    if batched:
        q, k = torch.stack((q, q + 2)), torch.stack((k, k))
    got = module(q, k)
    assert got.shape == ((2, 3, 5, 9) if batched else (3, 5, 9))
    for t in range(5):
        for s in range(9):
            r = int((k[..., s] - q[..., t]).flatten()[-1])
            want = module.weight[naive_t5_bucket(r, causal=causal, buckets=8, max_distance=20)]
            assert torch.equal(got[..., t, s].reshape(-1, 3)[-1], want)


def test_t5_layers_of_a_stack_share_one_table() -> None:
    slot = Slot(dim=64, heads=4)
    first, second = (T5BiasConfig().build(slot.at(layer=layer)) for layer in (0, 1))
    assert first is second
    assert T5BiasConfig().build(slot.at(causal=True)) is not first  # a decoder's direction needs its own
    assert T5BiasConfig().build(slot.at(heads=8)) is not first
    assert T5BiasConfig().build(Slot(dim=64, heads=4)) is not first  # another stack
    stack = nn.ModuleList([first, second])
    copied = copy.deepcopy(stack)
    assert copied[0] is copied[1]
    assert sum(p.numel() for p in stack.parameters()) == 32 * 4


def test_t5_table_starts_with_the_documented_deviation() -> None:
    torch.manual_seed(0)
    assert T5BiasConfig().build(Slot(dim=64, heads=256)).weight.std().item() == pytest.approx(64**-0.5, rel=0.05)
    table = T5BiasConfig(init_std=0.3).build(Slot(dim=64, heads=256))
    assert table.weight.std().item() == pytest.approx(0.3, rel=0.05)
    assert table.undecayed == ("weight",)
    assert table.to(torch.bfloat16)(torch.arange(3), torch.arange(3)).dtype == torch.bfloat16


def test_t5_gradients_count_each_bucket() -> None:
    module = T5BiasConfig(num_buckets=8, max_distance=20).build(Slot(dim=16, heads=2))
    module(torch.arange(6), torch.arange(6)).sum().backward()
    counts = torch.zeros(8)
    for q in range(6):
        for k in range(6):
            counts[naive_t5_bucket(k - q, causal=False, buckets=8, max_distance=20)] += 1
    assert module.weight.grad is not None
    assert torch.equal(module.weight.grad, counts[:, None].expand(-1, 2))


@pytest.mark.parametrize(
    ("choices", "told"),
    [({"num_buckets": 6}, "num_buckets"), ({"num_buckets": 32, "max_distance": 16}, "should exceed half")],
)
def test_t5_refuses_settings_without_meaning(choices: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        T5BiasConfig(**choices)


@pytest.mark.parametrize("name", ["alibi", "t5_bias"])
def test_exports_copies_and_builds_on_meta(name: str) -> None:
    class Scores(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            config: PositionConfig = decode("position", name)
            self.bias = config.build(Slot(dim=24, heads=6))

        def forward(self, x: Tensor) -> Tensor:
            positions = torch.arange(x.shape[-1], device=x.device)
            return x + self.bias(positions, positions)

    torch.manual_seed(0)
    model, x = Scores(), torch.randn(2, 6, 7, 7)
    want = model(x)
    assert torch.equal(torch.export.export(model, (x,)).module()(x), want)
    assert torch.equal(copy.deepcopy(model)(x), want)
    with torch.device("meta"):
        built = Scores()
        assert built(torch.empty(2, 6, 7, 7)).shape == want.shape
    built.to_empty(device="cpu")
    torch.manual_seed(0)
    if name == "t5_bias":
        built.bias.reset_parameters()  # type: ignore[operator]
    assert torch.equal(built(x), want)
