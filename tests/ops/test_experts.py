"""Experts on sorted pairs against the token-by-token formula: values, gradients, nobody's pairs, counting, tracing."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from zoo.ops.experts import (
    add_up,
    grouped_linear,
    naive_experts,
    naive_grouped_linear,
    sort_pairs,
    take,
    take_weights,
)

ATOL = {torch.float64: 1e-10, torch.float32: 1e-5}


def draw(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def choices(seed: int, tokens: int, k: int, experts: int, nobody: bool) -> Tensor:
    """Different experts for each token; with `nobody` some choices are E."""
    g = torch.Generator().manual_seed(seed)
    found = torch.rand(tokens, experts, generator=g).argsort(-1)[:, :k]
    return torch.where(torch.rand(tokens, k, generator=g) < 0.3, experts, found) if nobody else found


def mixture(x: Tensor, experts: Tensor, weights: Tensor, matrices: Tensor, biases: Tensor) -> Tensor:
    pairs = sort_pairs(experts, len(matrices))
    y = grouped_linear(take(x, pairs), matrices, pairs.ends, biases)
    return add_up(y * take_weights(weights, pairs), pairs, len(x))


@settings(deadline=None, max_examples=30)
@given(
    tokens=st.integers(1, 9),
    count=st.integers(1, 5),
    k=st.integers(1, 3),
    nobody=st.booleans(),
    dtype=st.sampled_from([torch.float64, torch.float32]),
    seed=st.integers(0, 99),
)
def test_a_mixture_equals_its_formula_in_value_and_gradients(
    tokens: int, count: int, k: int, nobody: bool, dtype: torch.dtype, seed: int
) -> None:
    k = min(k, count)
    experts = choices(seed, tokens, k, count, nobody)
    inputs = [draw(seed, tokens, 3, dtype=dtype), draw(seed + 1, tokens, k, dtype=dtype)]
    inputs += [draw(seed + 2, count, 5, 3, dtype=dtype), draw(seed + 3, count, 5, dtype=dtype)]
    x, weights, matrices, biases = (value.requires_grad_() for value in inputs)

    def naive() -> Tensor:
        # the formula has outputs as wide as its inputs: pad x to the outputs' width and cut it again inside
        functions = [lambda h, e=e: matrices[e] @ h[:3] + biases[e] for e in range(count)]
        y = naive_experts(torch.cat([x, x.new_zeros(tokens, 2)], 1), experts, weights, functions)
        return y + 0 * sum(value.sum() for value in (x, weights, matrices, biases))  # where nobody serves any token

    ours, theirs = mixture(x, experts, weights, matrices, biases), naive()
    torch.testing.assert_close(ours, theirs, rtol=0, atol=ATOL[dtype])
    out = draw(seed + 4, tokens, 5, dtype=dtype)
    for name, a, b in zip(
        ("x", "weights", "matrices", "biases"),
        torch.autograd.grad((ours * out).sum(), (x, weights, matrices, biases)),
        torch.autograd.grad((theirs * out).sum(), (x, weights, matrices, biases)),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=0, atol=10 * ATOL[dtype], msg=name)
    with torch.no_grad():
        torch.testing.assert_close(mixture(x, experts, weights, matrices, biases), theirs, rtol=0, atol=ATOL[dtype])


def test_a_grouped_product_equals_its_naive_twin_with_empty_groups_and_rows_of_nobody() -> None:
    x, weight, bias = draw(0, 7, 3), draw(1, 4, 5, 3), draw(2, 4, 5)
    ends = torch.tensor([2, 2, 5, 5], dtype=torch.int32)
    for b in (None, bias):
        got = grouped_linear(x, weight, ends, b)
        torch.testing.assert_close(got, naive_grouped_linear(x, weight, ends, b), rtol=0, atol=1e-10)
        assert got[5:].abs().max() == 0


def test_pairs_are_sorted_by_expert_then_token_and_nobody_comes_last() -> None:
    pairs = sort_pairs(torch.tensor([[2, 0], [3, 2], [0, 3]]), 3)
    assert pairs.token.tolist() == [0, 2, 0, 1, 1, 2]
    assert pairs.ends.tolist() == [2, 2, 4]
    assert pairs.place is not None and pairs.place.tolist() == [[2, 0], [4, 3], [1, 5]]


def test_second_derivatives_are_right() -> None:
    experts = choices(0, 4, 2, 3, True)
    inputs = [draw(0, 4, 2), draw(1, 4, 2), draw(2, 3, 2, 2), draw(3, 3, 2)]
    x, *rest = (value.requires_grad_() for value in inputs)
    assert torch.autograd.gradgradcheck(lambda *given: mixture(given[0], experts, *given[1:]), (x, *rest))


@pytest.mark.parametrize("frozen", [0, 1])
def test_a_frozen_side_gets_no_gradient(frozen: int) -> None:
    sides = [draw(0, 4, 3), draw(1, 2, 3, 3)]
    sides[1 - frozen].requires_grad_()
    grouped_linear(*sides, torch.tensor([1, 4], dtype=torch.int32)).sum().backward()
    assert sides[frozen].grad is None and sides[1 - frozen].grad is not None


def test_flops_are_counted_on_the_meta_device_as_on_the_cpu() -> None:
    for device in ("cpu", "meta"):
        x, weight = torch.empty(11, 8, device=device), torch.empty(3, 16, 8, device=device)
        ends = torch.tensor([4, 4, 11], dtype=torch.int32).to(device)
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            grouped_linear(x, weight, ends)
        assert counter.get_total_flops() == 2 * 11 * 8 * 16, device


def test_autocast_multiplies_in_its_own_dtype() -> None:
    x, weight = draw(0, 5, 4, dtype=torch.float32), draw(1, 2, 3, 4, dtype=torch.float32)
    ends = torch.tensor([2, 5], dtype=torch.int32)
    with torch.autocast("cpu", torch.bfloat16):
        assert grouped_linear(x, weight, ends).dtype == torch.bfloat16


def test_tracing_sees_no_break() -> None:
    experts = choices(0, 6, 2, 3, False)
    inputs = (draw(0, 6, 2), draw(1, 6, 2), draw(2, 3, 2, 2), draw(3, 3, 2))
    traced = torch.compile(lambda *given: mixture(given[0], experts, *given[1:]), backend="eager", fullgraph=True)
    torch.testing.assert_close(traced(*inputs), mixture(inputs[0], experts, *inputs[1:]), rtol=0, atol=1e-10)
