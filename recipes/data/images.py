"""Image sets: what every one of them offers, and sets held in memory.

A batch is {"image": float32 (B, C, H, W) normalised, "label": int64 (B,)}, and "soft_label" float32 (B, classes) in
training when mixup or CutMix is on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from recipes.data.augment import Augment, Augmenter
from recipes.data.mixing import mix
from recipes.data.preprocess import Preprocess, unit
from recipes.data.splitting import hold_out
from zoo.registry import Config, ConfigError

__all__ = ["ImageData", "ImageDataConfig", "ImageExamples", "TensorImages", "in_memory"]


class ImageDataConfig(Config):
    """Base of every image set, kind "data".

    validation: share of the training images that is held out for validation, by class, and the same whatever the run's
    seed; used where the set brings no validation split of its own. limit: cap on the training images that remain.
    """

    validation: float = Field(default=0.1, ge=0, lt=1)
    limit: int | None = Field(default=None, ge=1)
    augment: Augment = Augment()

    def load(self, seed: int = 0) -> ImageData:
        """Read, check and split the set. `seed` is the run's; splits and statistics do not depend on it.

        Raises ConfigError, in one line, when the data is missing or is not what it should be.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class ImageData:
    """A set in three splits without overlap, and how its images are prepared."""

    train: ImageExamples
    val: ImageExamples
    test: ImageExamples
    classes: tuple[str, ...]
    preprocess: Preprocess
    source: str
    content_hash: str


class ImageExamples:
    """Examples (see recipes.data.loader) of one split.

    labels: (N,) int64. ids: name of each example in its source (row numbers or paths).
    """

    def __init__(self, labels: Tensor, ids: Sequence[int] | Sequence[str], preprocess: Preprocess, augment: Augment):
        self.labels = labels.long()
        self.ids = ids
        self.preprocess = preprocess
        self.augment = augment
        self.classes = len(preprocess.classes)
        self.augmenter = Augmenter(augment, preprocess, len(labels))

    def __len__(self) -> int:
        return len(self.labels)

    def count_targets(self, indices: Sequence[int], key: tuple[int, ...] | None) -> int:
        """One target an image."""
        return len(indices)

    def targets(self, batch: dict[str, Tensor]) -> int:
        """One target an image."""
        return len(batch["label"])

    def batch(self, indices: Sequence[int], key: tuple[int, ...] | None) -> dict[str, Tensor]:
        """The images `indices`; augmented when a `key` = (seed, epoch) is given."""
        rows = torch.from_numpy(np.array(indices, dtype=np.int64))  # (B,); by way of numpy, which is 10 times as fast
        labels = self.labels.index_select(0, rows)
        pixels = self.pixels(rows, key)  # (B, C, H, W) uint8, or float 0..1
        if key is None:
            return {"image": self.preprocess.normalise(pixels), "label": labels}
        if self.augment.moves:
            pixels = self.augmenter.move(unit(pixels), rows, key)
        images = self.augmenter.erase(self.preprocess.normalise(pixels), rows, key)
        if not (self.augment.mixup or self.augment.cutmix):
            return {"image": images, "label": labels}
        images, soft = mix(images, labels, self.classes, self.augment, (*key, *indices))
        return {"image": images, "label": labels, "soft_label": soft}

    def pixels(self, rows: Tensor, key: tuple[int, ...] | None) -> Tensor:
        """(B, C, H, W) uint8, or float 0..1; cropped and RandAugmented when the key is given and these are on."""
        raise NotImplementedError


class TensorImages(ImageExamples):
    """Images held in memory: `images` (N, C, H, W), uint8 or float32 0..1."""

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        ids: Sequence[int] | Sequence[str],
        preprocess: Preprocess,
        augment: Augment,
    ) -> None:
        super().__init__(labels, ids, preprocess, augment)
        # A small set is kept as float, which spares a conversion in each batch.
        self.images = unit(images) if images.numel() <= 2**25 else images

    def pixels(self, rows: Tensor, key: tuple[int, ...] | None) -> Tensor:
        pixels = self.images.index_select(0, rows)
        if key is None or not self.augment.one_by_one or not len(rows):
            return pixels
        changed = [self.augmenter.tensor(image, row, key) for image, row in zip(pixels, rows.tolist(), strict=True)]
        return torch.stack(changed)


def in_memory(
    config: ImageDataConfig,
    train: tuple[Tensor, Tensor, Tensor],
    test: tuple[Tensor, Tensor, Tensor],
    classes: tuple[str, ...],
    source: str,
    **preprocess: Any,
) -> ImageData:
    """ImageData of two splits, each (images (N, C, H, W) uint8 or float 0..1, labels (N,), row numbers (N,)).

    Validation images are held out of the first; mean and deviation are those of the training images that remain.
    """
    images, labels, rows = train
    keep, held = hold_out(labels, config.validation, config.limit)
    mean, std = statistics(images[keep])
    prepare = Preprocess(
        image_size=(images.shape[2], images.shape[3]),
        channels=images.shape[1],
        mean=mean,
        std=std,
        classes=classes,
        **preprocess,
    )

    def part(images: Tensor, labels: Tensor, rows: Tensor) -> TensorImages:
        return TensorImages(images, labels, rows.tolist(), prepare, config.augment)

    return ImageData(
        train=part(images[keep], labels[keep], rows[keep]),
        val=part(images[held], labels[held], rows[held]),
        test=part(*test),
        classes=classes,
        preprocess=prepare,
        source=source,
        content_hash=digest(images, labels, *test[:2]),
    )


def statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel of images (N, C, H, W), on the scale 0..1. Raises ConfigError if flat."""
    pixels = images.transpose(0, 1).flatten(1)  # (C, N * H * W)
    unit = 255 if pixels.dtype == torch.uint8 else 1
    mean, std = [], []
    for channel in pixels:  # one channel at a time: the fp64 copy is large
        values = channel.double() / unit
        mean.append(round(values.mean().item(), 6))
        std.append(round(values.std(unbiased=False).item(), 6))
    if min(std) <= 0:
        raise ConfigError([(("data",), "the training images hold a single colour, so they cannot be normalised")])
    return tuple(mean), tuple(std)


def digest(*parts: Tensor | str) -> str:
    """sha256 of the bytes of tensors and strings, in hexadecimal."""
    total = hashlib.sha256()
    for piece in parts:
        total.update(piece.encode() if isinstance(piece, str) else piece.contiguous().numpy().tobytes())
    return total.hexdigest()
