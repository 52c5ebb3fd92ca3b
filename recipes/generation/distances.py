"""Distances between sets of images, or of features of them.

Frechet distance of two normal distributions (Dowson & Landau 1982; Heusel et al. 2017, arXiv:1706.08500, for images):

    d = |m - m'|^2 + tr C + tr C' - 2 tr (C^1/2 C' C^1/2)^1/2

The last root is of a symmetric matrix, so it comes from eigenvalues alone and stays real where the usual root of C C'
does not; a small ridge keeps covariances of few or dead features from being singular. Means and covariances of fewer
samples give larger distances, so only those of equally many compare.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Moments", "frechet_distance", "moments", "nearest_distances"]

RIDGE = 1e-6


class Moments(NamedTuple):
    """Mean (F,) and covariance (F, F), fp64."""

    mean: Tensor
    covariance: Tensor


def moments(features: Tensor) -> Moments:
    """Of features (N, F), N >= 2."""
    features = features.double()
    return Moments(features.mean(0), features.T.cov())


def frechet_distance(ours: Moments, theirs: Moments, ridge: float = RIDGE) -> float:
    """d >= 0 of the module docstring, with `ridge` added to the variances."""
    identity = torch.eye(len(ours.mean), dtype=torch.float64)
    one, other = ours.covariance + ridge * identity, theirs.covariance + ridge * identity  # (F, F)
    values, vectors = torch.linalg.eigh(one)  # (F,), (F, F)
    root = (vectors * values.clamp(min=0).sqrt()) @ vectors.T  # (F, F)
    shared = torch.linalg.eigvalsh(root @ other @ root).clamp(min=0).sqrt().sum()
    apart = (ours.mean - theirs.mean).square().sum()
    return max(0.0, float(apart + one.trace() + other.trace() - 2 * shared))


def nearest_distances(images: Tensor, known: Tensor, chunk: int = 256) -> Tensor:
    """Euclidean distance (N,) from each of images (N, C, H, W) to the nearest of known (M, C, H, W)."""
    known = known.flatten(1)
    exact = "donot_use_mm_for_euclid_dist"  # a copy is at 0
    return torch.cat([torch.cdist(part, known, compute_mode=exact).amin(1) for part in images.flatten(1).split(chunk)])
