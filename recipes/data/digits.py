"""`digits`: the embedded default of the image recipes."""

from __future__ import annotations

from recipes.data.augment import Augment
from recipes.data.embedded import load_embedded
from recipes.data.images import ImageData, ImageDataConfig
from zoo.registry import register

__all__ = ["Digits"]


@register("data", "digits")
class Digits(ImageDataConfig):
    """1,797 handwritten digits, 8 x 8 grey (UCI optdigits, CC BY 4.0), in scikit-learn (BSD-3), split 1,437 / 360.

    Alpaydin and Kaynak 1998, doi:10.24432/C50P49. Grey levels 0..16 are scaled to 0..1.
    """

    augment: Augment = Augment(shift=0.5, rotation=8.6, scale=0.1)

    def load(self, seed: int = 0) -> ImageData:
        return load_embedded(
            self,
            "digits",
            package="sklearn",
            file="datasets/data/digits.csv.gz",
            side=8,
            levels=16,
            sha256="87ff0c9e40dc7e2c0e34e7257799c2e3f3aec1a016363bb11cad869ec428a826",
            install="scikit-learn",
        )
