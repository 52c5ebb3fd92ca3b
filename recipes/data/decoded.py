"""Sets of image files: decoded into memory when they are small, and image by image when they are not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from recipes.data.augment import Augment
from recipes.data.images import ImageData, ImageDataConfig, ImageExamples, TensorImages, digest, statistics
from recipes.data.preprocess import Preprocess, to_tensor
from recipes.data.splitting import hold_out
from zoo.registry import ConfigError

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["DecodedDataConfig", "DecodedImages", "Part", "build"]

MEMORY = 2**28  # bytes of pixels up to which a set is decoded once and kept
SAMPLE = 1024  # images that mean and deviation are taken from where not all are decoded
PLAIN_SIZE = 128  # images up to this side keep their own size unless `image_size` is set
GREY = ("1", "L", "LA", "La", "I", "F", "I;16", "I;16B", "I;16L", "I;16N")


class DecodedDataConfig(ImageDataConfig):
    """Base of sets of image files.

    image_size: (height, width); by default that of the first training image, which must be small. channels: 1 or 3; by
    default those of the first training image. mean, std: per channel on the scale 0..1; by default measured on the
    training images (on 1,024 of them where the set is not held in memory). background, fit, crop_fraction: see
    Preprocess. in_memory: decode once and keep; by default up to 256 MB of pixels and when images are not cropped.
    """

    image_size: tuple[int, int] | None = None
    channels: Literal[1, 3] | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    background: int = Field(default=255, ge=0, le=255)
    fit: Literal["crop", "pad", "stretch"] = "crop"
    crop_fraction: float = Field(default=1.0, gt=0, le=1)
    in_memory: bool | None = None


@dataclass(frozen=True)
class Part:
    """The images of one split. `decode(source row)` returns a PIL image, or raises ConfigError that names it.

    labels: (N,) int64. ids: a name each. rows: (N,) int64, each image's row in the source.
    """

    decode: Callable[[int], Image.Image]
    labels: Tensor
    ids: Sequence[int] | Sequence[str]
    rows: Tensor

    def __getitem__(self, keep: Tensor) -> Part:
        """The images `keep` (M,) of this part."""
        ids: Any = [self.ids[i] for i in keep.tolist()]
        return replace(self, labels=self.labels[keep], ids=ids, rows=self.rows[keep])

    def __len__(self) -> int:
        return len(self.labels)

    def image(self, index: int) -> Image.Image:
        """The PIL image number `index` of this part."""
        return self.decode(int(self.rows[index]))


class DecodedImages(ImageExamples):
    """Images decoded when they are asked for."""

    def __init__(self, part: Part, preprocess: Preprocess, augment: Augment) -> None:
        super().__init__(part.labels, part.ids, preprocess, augment)
        self.part = part

    def pixels(self, rows: Tensor, key: tuple[int, ...] | None) -> Tensor:
        made = torch.empty(len(rows), self.preprocess.channels, *self.preprocess.image_size, dtype=torch.uint8)
        for place, row in enumerate(rows.tolist()):
            image = self.part.image(row)
            if key is not None and self.augment.one_by_one:
                made[place] = to_tensor(self.augmenter.image(image, row, key))
            else:
                made[place] = self.preprocess.pixels(image)
        return made


def build(
    config: DecodedDataConfig, train: Part, val: Part | None, test: Part, classes: tuple[str, ...], source: str
) -> ImageData:
    """ImageData of the parts; validation images are held out of `train` where there is no part for them.

    The content hash covers labels, names and all pixels of a set in memory; of another, 64 of the training images.
    Raises ConfigError when a part is empty, an image is broken, or the settings do not fit the images.
    """
    keep, held = hold_out(train.labels, config.validation if val is None else 0.0, config.limit)
    train, val = train[keep], train[held] if val is None else val
    for name, part in (("training", train), ("test", test)):
        if not len(part):
            raise ConfigError([(("data",), f"{source} leaves no images for the {name} split")])
    parts = (train, val, test)
    prepare = _prepare(config, train.image(0), classes)
    plain = [DecodedImages(part, prepare, Augment()) for part in parts]
    kept: list[Tensor] = []
    if _fits_in_memory(config, sum(map(len, parts)), prepare):
        kept = [images.pixels(torch.arange(len(images)), None) for images in plain]
    sample = torch.arange(len(train))[:: -(-len(train) // SAMPLE)]
    if config.mean is None or config.std is None:
        mean, std = statistics(kept[0] if kept else plain[0].pixels(sample, None))
        known = {name: getattr(prepare, name) for name in Preprocess.model_fields}
        prepare = Preprocess(**known | {"mean": config.mean or mean, "std": config.std or std})
    splits: list[ImageExamples] = [
        TensorImages(kept[place], part.labels, part.ids, prepare, config.augment)
        if kept
        else DecodedImages(part, prepare, config.augment)
        for place, part in enumerate(parts)
    ]
    names = [item for part in parts for item in (part.labels, *map(str, part.ids))]
    pixels = kept or [plain[0].pixels(sample[:64], None)]
    return ImageData(splits[0], splits[1], splits[2], classes, prepare, source, digest(*names, *pixels))


def _fits_in_memory(config: DecodedDataConfig, images: int, prepare: Preprocess) -> bool:
    if config.in_memory is not None:
        return config.in_memory
    height, width = prepare.image_size
    return images * prepare.channels * height * width <= MEMORY and not config.augment.crop


def _prepare(config: DecodedDataConfig, first: Image.Image, classes: tuple[str, ...]) -> Preprocess:
    """Preprocess as configured, filled up from the first training image; unknown statistics stand as 0 and 1."""
    size = config.image_size
    if size is None:
        if max(first.size) > PLAIN_SIZE:
            found = f"the first image is {first.height} x {first.width}"
            raise ConfigError([(("data", "image_size"), f"is required for images as large as these ({found})")])
        size = (first.height, first.width)
    channels = config.channels or (1 if first.mode in GREY else 3)
    try:
        return Preprocess(
            image_size=size,
            channels=channels,
            mean=config.mean or (0.0,) * channels,
            std=config.std or (1.0,) * channels,
            background=config.background,
            fit=config.fit,
            crop_fraction=config.crop_fraction,
            classes=classes,
        )
    except ConfigError as error:
        raise ConfigError(error.problems, "data") from None
