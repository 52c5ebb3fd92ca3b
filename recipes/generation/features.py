"""A small convolutional classifier whose features tell images apart: the ruler of generated images.

Trained on the training split alone, from a fixed seed whatever the run's, so all runs on a set have the same ruler.

    image (C, H, W) -> 3 x (conv 3x3, batch norm, relu), the second of stride 2 -> mean of 4 x 4 parts
      -> linear to 32 features -> relu -> linear

Features are taken before the relu, which would leave dead ones, and standardised by those of the training images.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recipes.data.images import ImageExamples

__all__ = ["WIDTH", "Classifier", "train_classifier"]

WIDTH = 32
"""Features of an image."""
BATCH, RATE = 128, 3e-3


class Classifier(nn.Module):
    """images (B, C, H, W) in -1..1 -> logits (B, classes)."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs, stride in ((channels, 16, 1), (16, 32, 2), (32, 32, 1)):
            layers += [nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
        self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(4), nn.Flatten())
        self.inner, self.head = nn.Linear(32 * 4 * 4, WIDTH), nn.Linear(WIDTH, classes)
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.register_buffer("std", torch.ones(WIDTH))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(F.relu(self.inner(self.body(images))))

    def set_scale(self, images: Tensor) -> None:
        """Standardise features by those of images (N, C, H, W)."""
        features, _ = self.look(images)
        self.mean, self.std = features.mean(0), features.std(0).clamp(min=1e-6)

    @torch.no_grad()
    def look(self, images: Tensor, chunk: int = 512) -> tuple[Tensor, Tensor]:
        """Standardised features (N, F) and answers (N,) of images (N, C, H, W), in eval mode."""
        self.eval()
        features = torch.cat([self.inner(self.body(part)) for part in images.split(chunk)])  # (N, F)
        return (features - self.mean) / self.std, self.head(F.relu(features)).argmax(1)


def train_classifier(examples: ImageExamples, steps: int) -> Classifier:
    """Trained on the examples as they are, not augmented; the global random state stays as it was."""
    images = len(examples.labels)
    with torch.random.fork_rng([]), torch.enable_grad():
        torch.manual_seed(0)
        model = Classifier(examples.preprocess.channels, examples.classes)
        optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.05)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps)
        for rows in _batches(images, min(BATCH, images), steps):
            batch = examples.batch(rows, None)
            loss = F.cross_entropy(model(batch["image"]), batch["label"], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return model.eval().requires_grad_(False)


def _batches(images: int, size: int, steps: int) -> Iterator[list[int]]:
    """Rows of `steps` batches: all images in a new order, again and again; the rest of an order is left out."""
    left: list[Tensor] = []
    for _ in range(steps):
        left = left or [part for part in torch.randperm(images).split(size) if len(part) == size]
        yield left.pop().tolist()
