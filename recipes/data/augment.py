"""Augmentation of images that depends on (seed, epoch, index) and on nothing else.

Whatever is drawn for an example stands in its row of a table of uniform numbers, one table an epoch. So the pixels are
the same in any batch, on any worker, and after a resume.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from recipes.data.keys import generator, python_random
from recipes.data.preprocess import Preprocess, to_image, to_tensor
from zoo.registry import Config, ConfigError

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["Augment", "Augmenter"]


class Augment(Config):
    """What varies in training images; everything off by default. Amounts are drawn uniformly up to the given one.

    probability: share of the images that are moved (shift, rotation, scale, shear, flip); the others stay sharp, as
    evaluation has them. shift: pixels to either side; whole_pixels: only by whole pixels, as in pad-and-crop.
    rotation, shear: degrees to either side. scale: relative, 0.1 is 0.9 to 1.1. flip: probability of a left-right
    flip. padding: what comes in from outside: "zeros" (black), "border" or "reflection".
    erase: probability of one erased rectangle of 2 to 33 percent of the image (Zhong et al. 2017, arXiv:1708.04896).
    crop: smallest share of the area of a random crop that is resized to the full size (Szegedy et al. 2014,
    arXiv:1409.4842), 0 is off. randaugment: timm's notation, such as "rand-m9-mstd0.5-inc1" (Cubuk et al. 2019,
    arXiv:1909.13719). Both work on one image at a time, and so cost more than all others together.
    mixup, cutmix: alpha of each (Zhang et al. 2017, arXiv:1710.09412; Yun et al. 2019, arXiv:1905.04899), 0 is off.
    mix_probability: share of the batches that are mixed.
    """

    probability: float = Field(default=1, ge=0, le=1)
    shift: float = Field(default=0, ge=0)
    whole_pixels: bool = False
    rotation: float = Field(default=0, ge=0, le=180)
    scale: float = Field(default=0, ge=0, lt=1)
    shear: float = Field(default=0, ge=0, lt=90)
    flip: float = Field(default=0, ge=0, le=1)
    padding: Literal["zeros", "border", "reflection"] = "zeros"
    erase: float = Field(default=0, ge=0, le=1)
    crop: float = Field(default=0, ge=0, le=1)
    randaugment: str | None = None
    mixup: float = Field(default=0, ge=0)
    cutmix: float = Field(default=0, ge=0)
    mix_probability: float = Field(default=1, ge=0, le=1)

    @property
    def moves(self) -> bool:
        """Whether pixels move: shift, rotation, scale, shear or flip."""
        return any((self.shift, self.rotation, self.scale, self.shear, self.flip))

    @property
    def one_by_one(self) -> bool:
        """Whether images must be treated one at a time: crop or RandAugment."""
        return bool(self.crop or self.randaugment)


class Augmenter:
    """The augmentations of one set of `size` images, for any epoch."""

    def __init__(self, augment: Augment, preprocess: Preprocess, size: int) -> None:
        self.augment = augment
        self.preprocess = preprocess
        self.size = size
        self._key: tuple[int, ...] | None = None
        self._moves = self._boxes = torch.empty(0)
        height, width = preprocess.image_size
        self._x = torch.arange(width) - (width - 1) / 2  # (W,) pixels from the middle
        self._y = (torch.arange(height) - (height - 1) / 2).view(-1, 1)  # (H, 1)
        self._policy: Any = None
        if augment.randaugment:
            _policy(augment.randaugment, preprocess)  # a misspelt policy is told now, not in a worker

    def move(self, pixels: Tensor, indices: Tensor, key: tuple[int, ...]) -> Tensor:
        """Moved float pixels (B, C, H, W) of the examples `indices` (B,), before normalisation."""
        if not self.augment.moves:
            return pixels
        self._draw(key)
        matrix = self._moves.index_select(0, indices).view(-1, 2, 3, 1, 1)  # (B, 2, 3, 1, 1)
        # Products and sums apart: a fused multiply-add would round by the place in the batch.
        grid = matrix[:, :, 0] * self._x + (matrix[:, :, 1] * self._y + matrix[:, :, 2])  # (B, 2, H, W)
        grid = grid.permute(0, 2, 3, 1)  # (B, H, W, 2)
        return F.grid_sample(pixels, grid, "bilinear", self.augment.padding, align_corners=False)

    def erase(self, images: Tensor, indices: Tensor, key: tuple[int, ...]) -> Tensor:
        """Normalised images (B, C, H, W) with a rectangle of some set to 0, the mean colour."""
        if not self.augment.erase:
            return images
        self._draw(key)
        top, left, bottom, right = self._boxes.index_select(0, indices).T.view(4, -1, 1, 1, 1)
        x = torch.arange(images.shape[-1])
        y = torch.arange(images.shape[-2]).view(-1, 1)
        return images.masked_fill_((y >= top) & (y < bottom) & (x >= left) & (x < right), 0)  # (B, 1, H, W)

    def image(self, image: Image.Image, index: int, key: tuple[int, ...]) -> Image.Image:
        """Cropped and RandAugmented PIL image, mode L or RGB, at the final size."""
        augment = self.augment
        with python_random("image", *key, index):
            box = _random_box(image, augment.crop) if augment.crop else None
            image = self.preprocess.resized(image, box)
            if augment.randaugment:
                if self._policy is None:
                    self._policy = _policy(augment.randaugment, self.preprocess)
                mode = image.mode
                image = self._policy(image.convert("RGB")).convert(mode)
        return image

    def tensor(self, pixels: Tensor, index: int, key: tuple[int, ...]) -> Tensor:
        """The same for pixels (C, H, W), uint8 or float 0..1; float32 0..1 comes back."""
        return to_tensor(self.image(to_image(pixels), index, key)).float().div_(255)

    def _draw(self, key: tuple[int, ...]) -> None:
        """Fill the tables of the key's epoch: each example's move (N, 2, 3) and erased box (N, 4)."""
        if self._key == key:
            return
        augment, (height, width) = self.augment, self.preprocess.image_size
        # fp64, because vectorised fp32 sines differ in the last bit with an element's place in memory.
        draw = torch.rand(self.size, 12, generator=generator("augment", *key), dtype=torch.float64)
        shift, (angle, scale, shear, flip) = draw[:, 0:2], draw[:, 2:6].T
        if augment.whole_pixels:
            shift = (shift * (2 * math.floor(augment.shift) + 1)).floor() - math.floor(augment.shift)
        else:
            shift = (2 * shift - 1) * augment.shift
        angle = (2 * angle - 1) * math.radians(augment.rotation)
        shear = ((2 * shear - 1) * math.radians(augment.shear)).tan()
        scale = 1 / (1 + (2 * scale - 1) * augment.scale)
        sign = 1 - 2 * (flip < augment.flip).double()
        cos, sin = angle.cos() * scale, angle.sin() * scale
        # From output to input pixels, both counted from the middle: flip, then shear, then turn and scale, then shift.
        rows = [cos * sign, cos * shear - sin, shift[:, 0], sin * sign, sin * shear + cos, shift[:, 1]]
        moves = torch.stack(rows, 1).view(-1, 2, 3)
        still = (draw[:, 11] >= augment.probability).view(-1, 1, 1)
        moves = torch.where(still, torch.eye(2, 3, dtype=torch.float64), moves)
        moves = moves * torch.tensor([2 / width, 2 / height], dtype=torch.float64).view(2, 1)  # to grid_sample's unit
        hit, area, aspect, down, across = draw[:, 6:11].T
        area = (0.02 + 0.31 * area) * height * width
        aspect = ((2 * aspect - 1) * math.log(1 / 0.3)).exp()
        tall = (area * aspect).sqrt().round().clamp(1, height)
        wide = (area / aspect).sqrt().round().clamp(1, width)
        top, left = (down * (height - tall + 1)).floor(), (across * (width - wide + 1)).floor()
        boxes = torch.stack([top, left, top + tall, left + wide], 1) * (hit < augment.erase).view(-1, 1)
        self._moves, self._boxes, self._key = moves.float(), boxes.long(), key


def _policy(text: str, preprocess: Preprocess) -> Any:
    """timm's RandAugment. Raises ConfigError when timm does not know the notation."""
    from timm.data.auto_augment import rand_augment_transform

    mean = tuple(min(255, round(255 * value)) for value in (preprocess.mean * 3)[:3])
    hints: dict[str, Any] = {"translate_const": int(min(preprocess.image_size) * 0.45), "img_mean": mean}
    try:
        return rand_augment_transform(text, hints)
    except (AssertionError, ValueError, KeyError) as error:
        problem = f"is not a policy of timm such as 'rand-m9-mstd0.5-inc1', got {text!r} ({error})"
        raise ConfigError([(("data", "augment", "randaugment"), problem)]) from None


def _random_box(image: Image.Image, least: float) -> tuple[float, float, float, float]:
    """(left, top, right, bottom) of timm's random crop: `least` to 1 of the area, aspect 3/4 to 4/3."""
    from timm.data.transforms import RandomResizedCropAndInterpolation

    top, left, height, width = RandomResizedCropAndInterpolation.get_params(image, (least, 1.0), (3 / 4, 4 / 3))
    return left, top, left + width, top + height
