"""One seed for every global random stream."""

from __future__ import annotations

import random

import numpy
import torch


def seed_all(seed: int) -> None:
    """Seed Python, numpy and torch on all devices. Data order and augmentation have streams of their own."""
    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)
