"""`image_folder`: pictures in one folder a class."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from pydantic import Field

from recipes.data.decoded import DecodedDataConfig, Part, build
from recipes.data.images import ImageData
from recipes.data.preprocess import open_image
from recipes.data.splitting import by_name, stratified
from zoo.registry import ConfigError, register

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["ImageFolder"]

SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
SPLITS = {"train": ("train", "training"), "val": ("val", "valid", "validation"), "test": ("test", "testing")}


@register("data", "image_folder")
class ImageFolder(DecodedDataConfig):
    """Your own pictures: `path`/train|val|test/CLASS/*.png, or `path`/CLASS/*.png. Source and licence are yours.

    With class folders alone, and with train/ alone, the share `test` of the images is the test split, by the sha1 of
    each image's path below `path`, so it stays what it is when images are added (a handful of images is split by class
    instead). With train/ and val/ but no test/, val/ is the test split and validation images are held out of train/, so
    that what is reported is never what was chosen by.
    """

    path: str
    test: float = Field(default=0.2, gt=0, lt=1)

    def load(self, seed: int = 0) -> ImageData:
        root = Path(self.path).expanduser()
        if not root.is_dir():
            raise ConfigError([(("data", "path"), f"no such folder '{self.path}'")])
        folders = {split: _first_folder(root, names) for split, names in SPLITS.items()}
        if folders["train"] is None:
            found = {"train": _images(root, root)}
        else:
            found = {split: _images(root, folder) for split, folder in folders.items() if folder is not None}
        classes = tuple(sorted({name for name, _ in found["train"]}))
        if len(classes) < 2:
            expected = "folders of images, one a class, or train/ and test/ with these inside"
            raise ConfigError([(("data", "path"), f"'{self.path}' should hold {expected}; classes found: {classes}")])
        parts = {split: _part(root, files, classes) for split, files in found.items()}
        train, val, test = parts["train"], parts.get("val"), parts.get("test")
        if test is None and val is not None:
            test, val = val, None
        elif test is None:
            is_test = torch.tensor([by_name(str(path)) < self.test for path in train.ids])
            if is_test.all() or not is_test.any():  # a handful of images: take them by class instead
                is_test = torch.zeros(len(train), dtype=torch.bool)
                is_test[stratified(train.labels, max(1, round(self.test * len(train))), "test")] = True
            train, test = train[(~is_test).nonzero().flatten()], train[is_test.nonzero().flatten()]
        return build(self, train, val, test, classes, str(root))


class _Files:
    """Decodes by number; an object rather than a closure, so that workers may be spawned with it."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths

    def __call__(self, row: int) -> Image.Image:
        return open_image(self.paths[row])


def _first_folder(root: Path, names: tuple[str, ...]) -> Path | None:
    return next((root / name for name in names if (root / name).is_dir()), None)


def _images(root: Path, folder: Path) -> list[tuple[str, str]]:
    """(class, path below `root`) of each image below `folder`, sorted; names that start with a dot are left out."""
    found = []
    for path in folder.rglob("*"):
        inner = path.relative_to(folder).parts
        if len(inner) > 1 and path.suffix.lower() in SUFFIXES and not any(name.startswith(".") for name in inner):
            found.append((inner[0], path.relative_to(root).as_posix()))
    return sorted(found)


def _part(root: Path, files: list[tuple[str, str]], classes: tuple[str, ...]) -> Part:
    strange = sorted({name for name, _ in files} - set(classes))
    if strange:
        problem = f"class '{strange[0]}' has images outside train/ only; classes: {', '.join(classes)}"
        raise ConfigError([(("data", "path"), problem)])
    number = {name: place for place, name in enumerate(classes)}
    labels = torch.tensor([number[name] for name, _ in files], dtype=torch.int64)
    decode = _Files([root / path for _, path in files])
    return Part(decode, labels, [path for _, path in files], torch.arange(len(files)))
