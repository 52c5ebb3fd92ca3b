"""From an image file of any kind to the tensor a model was trained on."""

from __future__ import annotations

import json
import os
import warnings
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from zoo.registry import Config, ConfigError, decode, encode, register

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["Preprocess", "open_image"]


@register("preprocess", "image")
class Preprocess(Config):
    """Size, channels and normalisation of a model's images, and the names of its classes.

    Saved as JSON beside an exported model, so that `predict` treats a user's file as training treated its images.

    image_size: (height, width) in pixels. channels: 1 (grey) or 3 (RGB). mean, std: per channel, of pixels in 0..1.
    background: grey level 0..255 behind transparent pixels and padding.
    fit: how another shape is brought to `image_size`: "crop" the middle, "pad" to see all, or "stretch".
    crop_fraction: share of the shorter side that "crop" keeps.
    """

    image_size: tuple[int, int]
    channels: Literal[1, 3]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    background: int = Field(default=0, ge=0, le=255)
    fit: Literal["crop", "pad", "stretch"] = "crop"
    crop_fraction: float = Field(default=1.0, gt=0, le=1)
    classes: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _fits(self) -> Preprocess:
        for field, values in (("mean", self.mean), ("std", self.std)):
            if len(values) != self.channels:
                raise ConfigError([((field,), f"should have {self.channels} values, one a channel, got {values}")])
        if min(self.std) <= 0:
            raise ConfigError([(("std",), f"should be above 0, got {self.std}")])
        if min(self.image_size) < 1:
            raise ConfigError([(("image_size",), f"should be at least 1 x 1, got {self.image_size}")])
        return self

    def open(self, path: str | Path) -> Tensor:
        """(C, H, W) float32, normalised, of a user's file. Raises ConfigError that names a file it cannot read."""
        image = open_image(path)
        try:
            return self(image)
        except (ValueError, MemoryError) as error:  # a mode that PIL opens but cannot convert
            raise ConfigError(
                f"{path}: cannot be brought to the model's size and colours: {_first_line(error)}"
            ) from None

    def __call__(self, image: Image.Image) -> Tensor:
        """(C, H, W) float32, normalised, of a PIL image."""
        return self.normalise(self.pixels(image)[None])[0]

    def pixels(self, image: Image.Image) -> Tensor:
        """(C, H, W) uint8 at `image_size`."""
        return to_tensor(self.resized(image))

    def resized(self, image: Image.Image, box: tuple[float, float, float, float] | None = None) -> Image.Image:
        """PIL image of mode L or RGB at `image_size`; `box` (left, top, right, bottom) cuts that part out first."""
        from PIL import Image

        image = plain(image, "L" if self.channels == 1 else "RGB", self.background)
        height, width = self.image_size
        if box is None and image.size == (width, height):
            return image
        if box is None and self.fit == "pad":
            ratio = min(width / image.width, height / image.height)
            inner = max(1, round(image.width * ratio)), max(1, round(image.height * ratio))
            fill = self.background if self.channels == 1 else (self.background,) * 3
            canvas = Image.new(image.mode, (width, height), fill)
            canvas.paste(
                image.resize(inner, Image.Resampling.BICUBIC), ((width - inner[0]) // 2, (height - inner[1]) // 2)
            )
            return canvas
        if box is None and self.fit == "crop":
            # Cutting and resizing in one step: a strip of 1 x 10,000 never becomes a giant in between.
            ratio = min(image.width / width, image.height / height) * self.crop_fraction
            left, top = (image.width - width * ratio) / 2, (image.height - height * ratio) / 2
            box = (left, top, left + width * ratio, top + height * ratio)
        if box is not None:  # rounding must not leave the image
            box = (max(0.0, box[0]), max(0.0, box[1]), min(image.width, box[2]), min(image.height, box[3]))
        return image.resize((width, height), Image.Resampling.BICUBIC, box=box)

    def normalise(self, pixels: Tensor) -> Tensor:
        """(B, C, H, W) float32, normalised, of pixels that are uint8 0..255 or float 0..1. New memory."""
        scale, shift = self._affine  # (C, 1, 1)
        pixels = unit(pixels)
        # Two roundings rather than a fused one, which would depend on the place in the batch.
        return (pixels * scale).add_(shift)

    def save(self, path: str | Path) -> None:
        """Write as JSON."""
        Path(path).write_text(json.dumps(encode(self), indent=2) + "\n", encoding="utf-8")

    @staticmethod
    def load(path: str | Path) -> Preprocess:
        """Read what `save` wrote. Raises ConfigError that names the file."""
        try:
            value = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"cannot read {path}: {_first_line(error)}") from None
        return decode("preprocess", value, str(path))

    @cached_property
    def _affine(self) -> tuple[Tensor, Tensor]:
        """Factor and summand (C, 1, 1) that normalise pixels in 0..1."""
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (self.mean, self.std))
        return 1 / std, -mean / std


def open_image(file: str | Path | IO[bytes], name: str = "") -> Image.Image:
    """The (first) picture of a file, wholly decoded and turned upright by its EXIF orientation.

    Raises ConfigError that names the file, or `name`, when it is missing, empty, broken, too large or no image.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    name = name or str(file)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # large images and odd EXIF blocks are fine as long as they decode
            with Image.open(file) as image:
                image.load()
                try:
                    upright = ImageOps.exif_transpose(image)
                except Exception:  # a broken EXIF block says nothing of the picture
                    upright = None
                return image.copy() if upright is None else upright
    except FileNotFoundError:
        problem = "no such file"
    except IsADirectoryError:
        problem = "is a folder, not an image"
    except PermissionError:
        problem = "may not be read (permission denied)"
    except UnidentifiedImageError:
        empty = isinstance(file, (str, Path)) and os.path.getsize(file) == 0
        problem = "is empty" if empty else "is not an image that can be read"
    except Image.DecompressionBombError as error:
        problem = f"is too large: {_first_line(error)}"
    except MemoryError:
        problem = "is too large for the memory"
    except Exception as error:  # PIL's decoders raise OSError, SyntaxError, ValueError, struct.error and more
        problem = f"is a broken image: {_first_line(error)}"
    raise ConfigError(f"{name}: {problem}")


def plain(image: Image.Image, mode: Literal["L", "RGB"], background: int) -> Image.Image:
    """The image in 8 bit grey or RGB, transparency laid over the grey level `background`."""
    from PIL import Image

    if image.mode == mode and "transparency" not in image.info:
        return image
    if image.mode.startswith("I") or image.mode == "F":
        image = _eight_bit(image)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        canvas = Image.new("RGBA", image.size, (background,) * 3 + (255,))
        image = Image.alpha_composite(canvas, image)
    if image.mode not in ("1", "L", "P", "RGB", "RGBA"):  # the other colour spaces lead to grey by way of RGB only
        image = image.convert("RGB")
    return image if image.mode == mode else image.convert(mode)


def to_tensor(image: Image.Image) -> Tensor:
    """(C, H, W) uint8 of a PIL image of mode L or RGB."""
    channels = len(image.getbands())
    flat = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    return flat.view(image.height, image.width, channels).permute(2, 0, 1).contiguous()


def unit(pixels: Tensor) -> Tensor:
    """Float 0..1 of pixels that are uint8 or float 0..1 already."""
    return pixels.float().div_(255) if pixels.dtype == torch.uint8 else pixels


def to_image(pixels: Tensor) -> Image.Image:
    """PIL image of mode L or RGB of pixels (C, H, W), uint8 or float 0..1."""
    from PIL import Image

    if pixels.dtype != torch.uint8:
        pixels = (pixels * 255).round().clamp(0, 255).to(torch.uint8)
    channels, height, width = pixels.shape
    data = pixels.permute(1, 2, 0).contiguous().numpy().tobytes()
    return Image.frombytes("L" if channels == 1 else "RGB", (width, height), data)


def _eight_bit(image: Image.Image) -> Image.Image:
    """Grey of 16 bit, 32 bit or floating point as 8 bit. Integers count as 16 bit, floats as 0..1 or 0..255."""
    import numpy as np
    from PIL import Image

    values = np.nan_to_num(np.asarray(image).astype(np.float64))
    scale = 255 / 65535 if image.mode != "F" else (255.0 if values.max(initial=0) <= 1 else 1.0)
    return Image.fromarray(np.clip(np.round(values * scale), 0, 255).astype(np.uint8))


def _first_line(error: Any) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
