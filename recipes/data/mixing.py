"""Mixup and CutMix over a batch, drawn by key.

The law of timm's `Mixup(mode="batch")`: one coefficient a batch from Beta(alpha, alpha), partners by reversing the
batch. Ours takes its draws from a key instead of numpy's global stream, and batches of odd size.
"""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor
from torch.nn import functional as F

from recipes.data.augment import Augment
from recipes.data.keys import seed_of

__all__ = ["cutmix", "mix", "mixup"]


def mix(images: Tensor, labels: Tensor, classes: int, augment: Augment, key: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Mixed images (B, C, H, W) and their class weights (B, classes); with both kinds on, each takes half the batches.

    Args:
        images: (B, C, H, W) float32.
        labels: (B,) int64.
        classes: number of classes.
        augment: `mixup`, `cutmix` and `mix_probability` are read.
        key: (seed, epoch, the batch's example numbers): the draw depends on nothing else.
    """
    draws = np.random.RandomState(seed_of("mix", *key))  # RandomState: its streams are the same in every numpy
    share = 1.0
    if draws.random_sample() < augment.mix_probability:
        if augment.cutmix and (not augment.mixup or draws.random_sample() < 0.5):
            row, column = draws.randint(images.shape[-2]), draws.randint(images.shape[-1])
            images, share = cutmix(images, draws.beta(augment.cutmix, augment.cutmix), row, column)
        else:
            share = draws.beta(augment.mixup, augment.mixup)
            images = mixup(images, share)
    one_hot = F.one_hot(labels, classes).to(images.dtype)  # (B, classes)
    return images, one_hot * share + one_hot.flip(0) * (1 - share)


def mixup(images: Tensor, share: float) -> Tensor:
    """`share` of each image plus the rest of its partner (Zhang et al. 2017, arXiv:1710.09412)."""
    return images * share + images.flip(0) * (1 - share)


def cutmix(images: Tensor, share: float, row: int, column: int) -> tuple[Tensor, float]:
    """A box around (row, column) from the partner, and the share that is left (Yun et al. 2019, arXiv:1905.04899).

    The box has 1 - `share` of the area before it is cut off at the border; the share that comes back counts after.
    """
    height, width = images.shape[-2:]
    ratio = math.sqrt(1 - share)
    tall, wide = int(height * ratio), int(width * ratio)
    top, bottom = max(row - tall // 2, 0), min(row + (tall + 1) // 2, height)
    left, right = max(column - wide // 2, 0), min(column + (wide + 1) // 2, width)
    mixed = images.clone()
    mixed[..., top:bottom, left:right] = images.flip(0)[..., top:bottom, left:right]
    return mixed, 1 - (bottom - top) * (right - left) / (height * width)
