"""Feature maps of queries and keys for linear attention: phi(q)' phi(k) in the place of exp(q' k / sqrt K).

    elu        elu(x) + 1                                Katharopoulos et al. 2020, arXiv:2006.16236
    relu       max(x, 0)                                 Cai et al. 2022, arXiv:2205.14756
    taylor     1, x_i / K^(1/4), x_i x_j / sqrt(2 K)     Arora et al. 2024, arXiv:2402.18668
    performer  exp(w_m' y - |y|^2 / 2) / sqrt(M)         Choromanski et al. 2020, arXiv:2009.14794, y = x / K^(1/4)
    unit       x / |x|, for the keys of the delta rules

Taylor's is exact: 1 + s + s^2 / 2 with s = q' k / sqrt K, at least 1/2. Performer's is exp(s) on average over its
random w (M, K), and the nearer to it the larger M.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from zoo.ops.recurrence import at_least_fp32

__all__ = [
    "elu_features",
    "naive_positive_random_features",
    "naive_taylor_features",
    "orthogonal_gaussian",
    "positive_random_features",
    "taylor_features",
    "unit",
]


def unit(x: Tensor, eps: float = 1e-6) -> Tensor:
    """x / sqrt(|x|^2 + eps) over the last axis, in fp32 or better: a vector of length 0 stays one."""
    wide = at_least_fp32(x)
    return (wide * (wide.square().sum(-1, keepdim=True) + eps).rsqrt()).to(x.dtype)


def elu_features(x: Tensor) -> Tensor:
    """elu(x) + 1: x + 1 above 0, exp(x) below."""
    return F.elu(x) + 1.0


def taylor_features(x: Tensor) -> Tensor:
    """(..., K) -> (..., 1 + K + K (K + 1) / 2).

    Each product x_i x_j with i < j is there once, times sqrt 2, where Based has it twice: the same kernel with about
    half of the features, so half of the state.
    """
    y = x * x.shape[-1] ** -0.25
    pairs = [y[..., i : i + 1] * y[..., i + 1 :] for i in range(y.shape[-1] - 1)]
    return torch.cat([torch.ones_like(y[..., :1]), y, y.square() * 0.5**0.5, *pairs], dim=-1)


def naive_taylor_features(x: Tensor) -> Tensor:
    """The features of one vector (K,) as the paper lists them, 1 + K + K^2 of them."""
    width = x.shape[0]
    squares = [x[i] * x[j] / (2 * width) ** 0.5 for i in range(width) for j in range(width)]
    return torch.stack([torch.ones_like(x[0]), *(x / width**0.25).unbind(0), *squares])


def orthogonal_gaussian(features: int, width: int, seed: int) -> Tensor:
    """w (M, K) fp32 on the CPU: Gaussian rows, each K of them at right angles to each other (section 2.4)."""
    generator = torch.Generator().manual_seed(seed)
    blocks = []
    for _ in range(0, features, width):
        q, r = torch.linalg.qr(torch.randn(width, width, generator=generator, dtype=torch.float64))
        blocks.append((q * r.diagonal().sign()).mT)  # without the signs some directions never come
    lengths = torch.randn(features, width, generator=generator, dtype=torch.float64).norm(dim=-1, keepdim=True)
    return (torch.cat(blocks)[:features] * lengths).float()


def positive_random_features(x: Tensor, w: Tensor, *, shift: bool = False) -> Tensor:
    """x (..., K), w (M, K) -> (..., M), all positive.

    `shift` divides each vector's features by the largest of them, which cancels where a query's weights are divided by
    their sum. Keys are not shifted by the largest of all, as in the authors' code: the future would change the past.
    They need no such care: no exponent is above |w|^2 / 2.
    """
    x = x * x.shape[-1] ** -0.25
    exponents = x @ w.to(x.dtype).mT - x.square().sum(-1, keepdim=True) / 2  # (..., M)
    if shift:
        exponents = exponents - exponents.amax(-1, keepdim=True)
    return exponents.exp() * w.shape[0] ** -0.5


def naive_positive_random_features(x: Tensor, w: Tensor) -> Tensor:
    """The features of one vector (K,), one at a time: equation 5 of the paper, first line of lemma 1."""
    y = x / x.shape[0] ** 0.25
    return torch.stack([(w_m.to(x.dtype) @ y - y @ y / 2).exp() / w.shape[0] ** 0.5 for w_m in w])
