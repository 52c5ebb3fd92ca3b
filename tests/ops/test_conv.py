"""The short convolution against its naive twin: outputs, tails and gradients, at any split and with documents."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from zoo.ops import conv as op
from zoo.ops.conv import causal_conv, naive_causal_conv

B, C = 2, 3
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def inputs(length: int, width: int, dilation: int, seed: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """x, weight, bias and tail."""
    shapes = [(B, length, C), (C, width), (C,), (B, (width - 1) * dilation, C)]
    return [draw(*shape, seed=seed + n, dtype=dtype).requires_grad_() for n, shape in enumerate(shapes)]


def compare(leaves: list[torch.Tensor], use_bias: bool, use_tail: bool, **choices) -> None:
    x, weight, bias, tail = leaves
    choices |= {"bias": bias if use_bias else None, "tail": tail if use_tail else None}
    used = [x, weight, *[leaf for leaf, use in ((bias, use_bias), (tail, use_tail)) if use and leaf.numel()]]
    results = []
    for conv in (causal_conv, naive_causal_conv):
        y, new_tail = conv(x, weight, **choices)
        if (lengths := choices.get("lengths")) is not None:
            y = y * (torch.arange(x.shape[1]) < lengths[:, None])[..., None]  # what masked tokens say is nobody's
        total = (y * draw(*y.shape, seed=90)).sum() + (new_tail * draw(*new_tail.shape, seed=91)).sum()
        results.append([y, new_tail, *torch.autograd.grad(total, used, allow_unused=True, materialize_grads=True)])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=TOLERANCE[x.dtype])


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    length=st.integers(1, 9),
    width=st.integers(1, 4),
    dilation=st.integers(1, 3),
    use_bias=st.booleans(),
    use_tail=st.booleans(),
    padded=st.booleans(),
    packed=st.booleans(),
    seed=st.integers(0, 9),
    dtype=st.sampled_from(list(TOLERANCE)),
)
def test_outputs_tails_and_gradients_equal_the_naive_twin(
    length, width, dilation, use_bias, use_tail, padded, packed, seed, dtype
) -> None:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, length + 1, (B,), generator=generator) if padded else None
    starts = torch.rand(B, length, generator=generator) < 0.3 if packed else None
    leaves = inputs(length, width, dilation, seed, dtype)
    compare(leaves, use_bias, use_tail, lengths=lengths, starts=starts, dilation=dilation)


@pytest.mark.parametrize("packed", [False, True])
def test_blocks_of_tokens_change_nothing(packed: bool, monkeypatch) -> None:
    monkeypatch.setattr(op, "BLOCK", 3 * B * C)
    starts = torch.tensor([[False] * 4 + [True] + [False] * 5, [True] + [False] * 7 + [True] * 2])
    for width, dilation in ((4, 1), (3, 2)):
        leaves = inputs(10, width, dilation, 0, torch.float64)
        compare(leaves, True, True, starts=starts if packed else None, dilation=dilation)


@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("packed", [False, True])
def test_the_tail_carries_on_at_any_split(dilation: int, packed: bool) -> None:
    """Known fault 7. Pieces shorter than the tail, and documents that begin in an earlier piece."""
    x, weight = draw(B, 9, C), draw(C, 4, seed=1)
    starts = torch.zeros(B, 9, dtype=torch.bool)
    starts[0, 4] = starts[1, 0] = starts[1, 7] = packed
    full, last = causal_conv(x, weight, starts=starts, dilation=dilation)
    for splits in ([1] * 9, [5, 1, 3], [4, 5], [8, 1]):
        tail, pieces = None, []
        for piece, begins in zip(x.split(splits, 1), starts.split(splits, 1), strict=True):
            y, tail = causal_conv(piece, weight, tail=tail, starts=begins, dilation=dilation)
            pieces.append(y)
        torch.testing.assert_close(torch.cat(pieces, 1), full, rtol=0, atol=1e-12)
        torch.testing.assert_close(tail, last, rtol=0, atol=0)


def test_nothing_crosses_into_the_next_document_not_even_infinity() -> None:
    x, weight = draw(1, 6, C), draw(C, 3, seed=1)
    starts = torch.tensor([[False, False, False, True, False, False]])
    expected, tail = causal_conv(x, weight, starts=starts)
    x[:, 2] = torch.inf
    y, new_tail = causal_conv(x, weight, starts=starts)
    assert torch.equal(y[:, 3:], expected[:, 3:]) and torch.equal(new_tail, tail)


def test_masked_tokens_change_no_bit_of_the_tail() -> None:
    x, weight, lengths = draw(B, 6, C), draw(C, 3, seed=1), torch.tensor([4, 1])
    _, tail = causal_conv(x, weight, lengths=lengths)
    x[0, 4:] = x[1, 1:] = 100.0
    assert torch.equal(causal_conv(x, weight, lengths=lengths)[1], tail)


def test_the_taps_run_from_the_oldest_token_to_the_newest() -> None:
    """Worked by hand: weights 1, 10, 100 over tokens 1 to 4, and with every second token."""
    x, weight = torch.arange(1.0, 5.0).view(1, 4, 1), torch.tensor([[1.0, 10.0, 100.0]])
    assert causal_conv(x, weight)[0].flatten().tolist() == [100, 210, 321, 432]
    assert causal_conv(x, weight, dilation=2)[0].flatten().tolist() == [100, 200, 310, 420]
    assert causal_conv(x, weight)[1].flatten().tolist() == [3, 4]


def test_second_derivatives() -> None:
    """Through the Function and through torch's own convolution."""
    x, weight, bias = draw(B, 5, C).requires_grad_(), draw(C, 3, seed=1).requires_grad_(), draw(C, seed=2)
    bias.requires_grad_()
    starts = torch.tensor([[False, False, True, False, False]] * B)
    torch.autograd.gradgradcheck(lambda *args: causal_conv(*args)[0], (x, weight, bias))
    torch.autograd.gradgradcheck(lambda *args: causal_conv(*args, starts=starts)[0], (x, weight, bias))


def test_half_precision_is_summed_in_fp32() -> None:
    """1 + 1/256 + 1/256 rounds to 1 in bf16 when each sum is rounded, and to 1 + 1/128 when only the last is."""
    x = torch.ones(1, 3, 1, dtype=torch.bfloat16)
    weight = torch.tensor([[1.0, 1 / 256, 1 / 256]])
    assert causal_conv(x, weight)[0][0, 2].item() == 1 + 1 / 128
    assert causal_conv(x.requires_grad_(), weight)[0].dtype == torch.bfloat16
