"""How much of the signal is left after each noising step: alpha_bar_t, t = 0 ... T - 1, in fp64.

linear   beta_t from 1e-4 to 0.02 at T = 1000, scaled by 1000 / T for other T (Ho et al. 2020, arXiv:2006.11239)
cosine   f(t) = cos^2(pi/2 (t / T + s) / (1 + s)), s = 0.008, alpha_bar = f(t) / f(0), beta <= 0.999
         (Nichol & Dhariwal 2021, arXiv:2102.09672, equation 17)
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["cosine_alpha_bar", "linear_alpha_bar"]


def linear_alpha_bar(steps: int, first: float = 1e-4, last: float = 0.02) -> Tensor:
    """(T,) fp64. `first` and `last` are those of 1000 steps."""
    scale = 1000.0 / steps
    beta = torch.linspace(scale * first, scale * last, steps, dtype=torch.float64).clamp(max=0.999)  # (T,)
    return (1.0 - beta).cumprod(0)


def cosine_alpha_bar(steps: int, offset: float = 0.008, most: float = 0.999) -> Tensor:
    """(T,) fp64. No single step takes more than `most` of the variance away."""
    t = torch.arange(steps + 1, dtype=torch.float64) / steps
    f = torch.cos((t + offset) / (1 + offset) * (math.pi / 2)).square()  # (T + 1,)
    beta = (1.0 - f[1:] / f[:-1]).clamp(max=most)  # (T,)
    return (1.0 - beta).cumprod(0)
