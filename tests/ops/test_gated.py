"""The gate of a gated feed-forward against its formula: values, both derivatives, and what it keeps."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from zoo.blocks.api import Context, Slot
from zoo.blocks.ffn.glu import GLUConfig
from zoo.ops.gated import GATED, gated, naive_gated


def draw() -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    gate, up = (torch.randn(3, 5, generator=g, dtype=torch.float64) for _ in range(2))
    return (3 * gate).requires_grad_(), up.requires_grad_()


@pytest.mark.parametrize("activation", GATED)
def test_value_and_gradients_equal_the_formula(activation: str) -> None:
    gate, up = draw()
    got, want = gated(activation, gate, up), naive_gated(activation, gate, up)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-10)
    weight = torch.linspace(-1, 1, got.numel(), dtype=torch.float64).view_as(got)
    for mine, theirs in zip(
        torch.autograd.grad((got * weight).sum(), (gate, up)),
        torch.autograd.grad((want * weight).sum(), (gate, up)),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-10)
    with torch.no_grad():
        torch.testing.assert_close(gated(activation, gate.clone(), up), want, rtol=0, atol=1e-10)


@pytest.mark.parametrize("activation", GATED)
def test_the_second_derivative_is_right(activation: str) -> None:
    gate, up = draw()
    assert torch.autograd.gradgradcheck(lambda g, u: gated(activation, g, u), (gate, up))


@pytest.mark.parametrize("activation", GATED)
@pytest.mark.parametrize("frozen", [0, 1])
def test_a_frozen_side_gets_no_gradient(activation: str, frozen: int) -> None:
    sides = list(draw())
    sides[frozen] = sides[frozen].detach()
    gated(activation, *sides).sum().backward()
    assert sides[frozen].grad is None
    assert sides[1 - frozen].grad is not None


def test_only_gate_up_and_the_result_are_kept() -> None:
    width = 24
    layer = GLUConfig(hidden=width).build(Slot(dim=8))
    kept: set[int] = set()

    def pack(x: Tensor) -> Tensor:
        if x.shape[-1] == width and x.dim() == 3:
            kept.add(x.data_ptr())
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        layer(torch.randn(2, 7, 8), Context()).sum()
    # the product for the last matrix is kept as (B T, F), so that only gate and up are three-dimensional here
    assert len(kept) <= 3
