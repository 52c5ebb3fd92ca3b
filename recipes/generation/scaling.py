"""Images for a generator: pixels from -1 to 1 whatever the set's mean and deviation."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import Any

from recipes.data.augment import Augmenter
from recipes.data.images import ImageData, ImageExamples
from recipes.data.preprocess import Preprocess

__all__ = ["centred"]


def centred(data: ImageData) -> ImageData:
    """The same set with a mean and deviation of 1/2, which bring pixels of 0..1 to -1..1."""
    known: dict[str, Any] = {name: getattr(data.preprocess, name) for name in Preprocess.model_fields}
    half = (0.5,) * data.preprocess.channels
    prepare = Preprocess(**known | {"mean": half, "std": half})
    train, val, test = (_prepared(part, prepare) for part in (data.train, data.val, data.test))
    return replace(data, train=train, val=val, test=test, preprocess=prepare)


def _prepared(examples: ImageExamples, prepare: Preprocess) -> ImageExamples:
    made = copy(examples)
    made.preprocess = prepare
    made.augmenter = Augmenter(made.augment, prepare, len(made))
    return made
