"""What generated images are measured by, against the training images and beside held-out ones.

frechet_distance    of the features of `recipes/generation/features.py` to those of the training images
frechet_distance@N  the same from the first N images, to compare with that of as many held-out ones, the floor: the
                    distance depends on the number of images
heldout_distance    of the features to those of the split's own images
class_fidelity      share of the images that the classifier takes for the class that was asked for
nearest_neighbour   mean distance in pixels of -1..1 to the nearest training image; much below that of held-out images
                    says that training images are repeated
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from recipes.data.images import ImageData, ImageExamples
from recipes.generation.distances import frechet_distance, moments, nearest_distances
from recipes.generation.features import train_classifier
from recipes.recipe import Metrics

__all__ = ["MOST", "Images", "Ruler", "images_of"]

MOST = 10_000
"""Training and held-out images that count; of a larger set a random part."""


class Images(NamedTuple):
    """images (N, C, H, W) in -1..1 and labels (N,) int64."""

    images: Tensor
    labels: Tensor


def images_of(examples: ImageExamples, most: int = MOST) -> Images:
    """The examples, or `most` of them, not augmented and in a random order, the same in every run."""
    rows = torch.randperm(len(examples), generator=torch.Generator().manual_seed(0))[:most]
    parts = [examples.batch(part.tolist(), None)["image"] for part in rows.split(500)]
    return Images(torch.cat(parts), examples.labels[rows])


class Ruler:
    """The classifier and the images that a set is measured with. samples: how many images will be made. steps: of the
    classifier's training."""

    def __init__(self, data: ImageData, samples: int, steps: int) -> None:
        self.samples = samples
        self.known = images_of(data.train)
        self.heldout = {split: images_of(part) for split in ("val", "test") if len(part := getattr(data, split))}
        self.classifier = train_classifier(data.train, steps)
        self.classifier.set_scale(self.known.images)
        self.moments = moments(self.classifier.look(self.known.images)[0])

    def common(self, split: str) -> int:
        """N: how many images there are both made and held out."""
        return min(self.samples, len(self.heldout[split].images))

    def measure(self, found: Images, split: str) -> Metrics:
        """Metrics named `<split>/<name>` of images made for labels."""
        features, answers = self.classifier.look(found.images)  # (N, F), (N,)
        metrics = {
            "frechet_distance": frechet_distance(moments(features), self.moments),
            "class_fidelity": (answers == found.labels).double().mean().item(),
            "nearest_neighbour": nearest_distances(found.images, self.known.images).double().mean().item(),
        }
        count, heldout = self.common(split), self.heldout[split]
        metrics[f"frechet_distance@{count}"] = frechet_distance(moments(features[:count]), self.moments)
        if found is not heldout:
            theirs = moments(self.classifier.look(heldout.images)[0])
            metrics["heldout_distance"] = frechet_distance(moments(features), theirs)
        return {f"{split}/{name}": value for name, value in metrics.items()}
