"""Root-mean-square norm: every path gives the formula."""

from __future__ import annotations

import pytest
import torch

from zoo.blocks.norms import RMSNormConfig
from zoo.ops.rms_norm import FEW, naive_rms_norm, rms_norm


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("shape", [(1, 16), (3, 1, 16), (FEW // 16 + 1, 16)], ids=str)
def test_few_and_many_rows_give_the_formula(shape: tuple[int, ...], grad: bool) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(shape, dtype=torch.float64) * 3, torch.randn(16, dtype=torch.float64)
    x.requires_grad_(grad)
    before = x.detach().clone()
    with torch.set_grad_enabled(grad):
        got = rms_norm(x, weight, 1e-3)
    torch.testing.assert_close(got, naive_rms_norm(x, weight, 1e-3), rtol=0, atol=1e-12)
    assert torch.equal(x.detach(), before)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_a_norm_without_scale_is_one_whose_scale_is_1(dtype: torch.dtype) -> None:
    x = torch.randn(3, 5, 16, dtype=dtype, generator=torch.Generator().manual_seed(0))
    bare, plain = (RMSNormConfig(affine=affine).build(16).to(dtype) for affine in (False, True))
    assert not list(bare.parameters())
    torch.testing.assert_close(bare(x), plain(x))
