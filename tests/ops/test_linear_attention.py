"""Sums over a row, over its documents and over a memory, against loops: values and gradients."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from zoo.ops.linear_attention import key_value_sums, naive_row_attention, read_sums, row_attention


def inputs(length: int, dtype: torch.dtype, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(2, length, 2, width, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
        for width in (3, 3, 4)
    ]


def with_gradients(function, tensors: list[Tensor], **options) -> list[Tensor]:
    y = function(*tensors, **options)
    return [y, *torch.autograd.grad(y.sin().sum(), tensors, materialize_grads=True)]


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
@settings(max_examples=25, deadline=None, derandomize=True)
@given(length=st.integers(1, 11), masked=st.booleans(), packed=st.booleans(), seed=st.integers(0, 99))
def test_a_row_is_read_as_the_loop_reads_it(
    dtype: torch.dtype, atol: float, length: int, masked: bool, packed: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    real = torch.randint(0, length + 1, (2, 1), generator=generator)
    mask = torch.arange(length) < real if masked else None
    starts = torch.rand(2, length, generator=generator) < 0.4 if packed else None
    if starts is not None and mask is not None:
        starts = starts & mask
    fast = with_gradients(row_attention, inputs(length, dtype, seed), mask=mask, starts=starts, chunk=4)
    naive = with_gradients(naive_row_attention, inputs(length, dtype, seed), mask=mask, starts=starts)
    for found, expected in zip(fast, naive, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=atol * length)


def test_sums_over_a_memory_ignore_masked_tokens_and_are_read_by_any_number_of_queries() -> None:
    q, k, v = inputs(6, torch.float64, 0)
    mask = torch.tensor([[1, 0, 1, 1, 0, 0], [0, 0, 0, 0, 0, 0]], dtype=torch.bool)
    y = read_sums(q[:, :2], key_value_sums(k, v, mask))  # (B, 2, H, V)
    expected = naive_row_attention(q, k, v, mask)[:, :2]
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-10)
    assert torch.equal(y[1], torch.zeros_like(y[1]))


def test_half_precision_is_summed_in_fp32() -> None:
    ones = torch.ones(1, 600, 1, 1, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        sums = key_value_sums(ones, ones)
        assert read_sums(ones, sums).dtype == torch.float32
    assert sums.item() == 600.0  # bf16 cannot count beyond 256
