"""Feature maps: the kernels that they stand for, and Performer's error, which falls with its features."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from zoo.ops.features import (
    elu_features,
    naive_positive_random_features,
    naive_taylor_features,
    orthogonal_gaussian,
    positive_random_features,
    taylor_features,
    unit,
)

K = 5


def vectors(count: int, width: int = K, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def test_unit_has_length_one_and_leaves_zero_alone() -> None:
    x = torch.cat([vectors(4), torch.zeros(1, K, dtype=torch.float64)])
    lengths = unit(x, eps=0.0)[:4].norm(dim=-1)
    torch.testing.assert_close(lengths, torch.ones_like(lengths), rtol=0, atol=1e-12)
    assert torch.equal(unit(x)[4], x[4])
    assert unit(x.bfloat16()).dtype == torch.bfloat16


def test_elu_features_are_positive_with_value_one_at_zero() -> None:
    x = torch.tensor([-3.0, 0.0, 2.0], dtype=torch.float64)
    torch.testing.assert_close(
        elu_features(x), torch.tensor([-3.0, 0.0, 1.0], dtype=torch.float64).exp().where(x <= 0, x + 1)
    )


def test_taylor_features_have_the_papers_kernel_and_gradients_with_half_of_its_features() -> None:
    def kernel(features, q: Tensor, k: Tensor) -> Tensor:
        return torch.stack([features(a) @ features(b) for a, b in zip(q, k, strict=True)])

    results = []
    for features in (taylor_features, naive_taylor_features):
        q, k = vectors(6, seed=1).requires_grad_(), vectors(6, seed=2).requires_grad_()
        value = kernel(features, q, k)
        results.append((value, *torch.autograd.grad(value.sin().sum(), (q, k))))
    for fast, naive in zip(*results, strict=True):
        torch.testing.assert_close(fast, naive, rtol=0, atol=1e-10)
    s = (vectors(6, seed=1) * vectors(6, seed=2)).sum(-1) / K**0.5
    torch.testing.assert_close(results[0][0], 1 + s + s**2 / 2, rtol=0, atol=1e-10)
    assert results[0][0].min() >= 0.5
    assert taylor_features(vectors(1)).shape[-1] == 21 and naive_taylor_features(vectors(1)[0]).shape[-1] == 31


def test_random_features_equal_their_naive_twin_in_values_and_gradients() -> None:
    w = orthogonal_gaussian(7, K, seed=3)
    results = []
    for many in (True, False):
        x = vectors(6).requires_grad_()
        y = (
            positive_random_features(x, w)
            if many
            else torch.stack([naive_positive_random_features(row, w) for row in x])
        )
        results.append((y, *torch.autograd.grad(y.sin().sum(), x)))
    for fast, naive in zip(*results, strict=True):
        torch.testing.assert_close(fast, naive, rtol=0, atol=1e-10)
    assert results[0][0].min() > 0


def kernel_errors(features: int, draw, seeds: int = 40) -> float:
    """Root mean square of the relative error of phi(q)' phi(k) against exp(q' k / sqrt K)."""
    q, k = 0.3 * vectors(8, 8, seed=1), 0.3 * vectors(8, 8, seed=2)  # larger ones have errors with heavy tails
    exact = (q @ k.mT / 8**0.5).exp()
    found = [
        positive_random_features(q, w) @ positive_random_features(k, w).mT
        for w in (draw(features, 8, seed) for seed in range(seeds))
    ]
    return (torch.stack(found) / exact - 1).square().mean().sqrt().item()


def test_the_error_of_the_softmax_kernel_falls_as_features_grow() -> None:
    errors = [kernel_errors(features, orthogonal_gaussian) for features in (8, 32, 128, 512)]
    for fewer, more in pairwise(errors):
        assert more < 0.6 * fewer  # 1 / sqrt(4) is the law for independent features


def test_orthogonal_features_err_less_than_independent_ones() -> None:
    def independent(features: int, width: int, seed: int) -> Tensor:
        return torch.randn(features, width, generator=torch.Generator().manual_seed(seed))

    assert kernel_errors(8, orthogonal_gaussian, 400) < kernel_errors(8, independent, 400)


def test_the_random_directions_favour_none_and_those_of_a_block_are_orthogonal() -> None:
    w = orthogonal_gaussian(5000 * K, K, seed=0).double()
    block = w[:K] @ w[:K].mT
    torch.testing.assert_close(block, block.diagonal().diag(), rtol=0, atol=1e-6)
    assert w.mean(0).abs().max() < 5 / (5000 * K) ** 0.5  # five standard deviations of a mean of unit normals
    torch.testing.assert_close(w.square().mean(0), torch.ones(K).double(), rtol=0, atol=0.05)


def test_a_shift_of_the_query_is_one_factor_for_all_its_features() -> None:
    x, w = 5 * vectors(6), orthogonal_gaussian(7, K, seed=0)
    ratio = positive_random_features(x, w) / positive_random_features(x, w, shift=True)
    torch.testing.assert_close(ratio, ratio[:, :1].expand_as(ratio), rtol=1e-10, atol=0)
    assert positive_random_features(x, w, shift=True).amax(-1) == pytest.approx(7**-0.5)


def test_a_seed_decides_the_random_features() -> None:
    assert torch.equal(orthogonal_gaussian(7, K, 1), orthogonal_gaussian(7, K, 1))
    assert not torch.equal(orthogonal_gaussian(7, K, 1), orthogonal_gaussian(7, K, 2))
