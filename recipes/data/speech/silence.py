"""Clips in which nobody speaks, so that a model learns to write nothing for them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from zoo.ops.log_mel import SAMPLE_RATE

__all__ = ["SILENCES", "nobody_speaks"]

SILENCES = ("white", "brown", "hum", "clicks", "nothing")


def nobody_speaks(kind: str, draw: np.random.Generator) -> Tensor:
    """Samples (L,) of 0.2 to 2.5 seconds below 1: noise, a hum of the mains, clicks, or hardly anything."""
    size = int(draw.uniform(0.2, 2.5) * SAMPLE_RATE)
    white = draw.standard_normal(size)
    time = np.arange(size) / SAMPLE_RATE
    if kind == "brown":
        noise = np.cumsum(white)
        noise -= np.linspace(noise[0], noise[-1], size)
    elif kind == "hum":
        tones = [np.sin(2 * np.pi * draw.uniform(45, 65) * n * time) / n for n in range(1, 6)]
        noise = np.sum(tones, axis=0) + 0.02 * white
    elif kind == "clicks":
        noise = 0.01 * white
        noise[draw.integers(size, size=int(draw.integers(1, 6)))] += 1.0
    else:
        noise = white
    level = 1e-4 if kind == "nothing" else draw.uniform(0.02, 0.9)
    return torch.from_numpy(noise / max(float(np.abs(noise).max()), 1e-6) * level).float()
