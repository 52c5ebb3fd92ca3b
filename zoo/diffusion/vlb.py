"""Terms of the variational bound: a KL of normals, and the likelihood of a pixel under one. In nats, elementwise.

Ho et al. 2020, arXiv:2006.11239, sections 3.1 and 3.3.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["normal_kl", "pixel_log_likelihood"]


def normal_kl(mean: Tensor, log_variance: Tensor, other_mean: Tensor, other_log_variance: Tensor) -> Tensor:
    """KL(N(mean, e^log_variance) | N(other_mean, e^other_log_variance)), elementwise."""
    ratio = log_variance - other_log_variance
    distance = (mean - other_mean).square() * torch.exp(-other_log_variance)
    return 0.5 * (ratio.exp() - 1.0 - ratio + distance)


def pixel_log_likelihood(x: Tensor, mean: Tensor, log_variance: Tensor, levels: int = 256) -> Tensor:
    """log of the mass that N(mean, e^log_variance) puts on each pixel's bin; x holds `levels` values from -1 to 1.

    Bins are 2 / (levels - 1) wide, and the outer ones reach to infinity. Masses below 1e-12 count as 1e-12. The normal
    distribution is exact here; openai/guided-diffusion approximates it by a tanh.
    """
    inverse = torch.exp(-0.5 * log_variance)
    half = 1.0 / (levels - 1)
    above = torch.special.ndtr((x - mean + half) * inverse).masked_fill(x > 1.0 - half, 1.0)
    below = torch.special.ndtr((x - mean - half) * inverse).masked_fill(x < half - 1.0, 0.0)
    return (above - below).clamp(min=1e-12).log()
