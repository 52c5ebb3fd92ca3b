"""Simple makers of images, each fitted to the training images of a class, and the floor: images that are real.

uniform noise    pixels from -1 to 1
class mean       one image a class
pixel Gaussian   normal, each pixel on its own
full Gaussian    normal, with the covariance of all pixels
"""

from __future__ import annotations

import torch
from torch import Tensor

from recipes.generation.evaluation import Images, Ruler
from recipes.recipe import Metrics

__all__ = ["generation_baselines", "simple_images"]


def generation_baselines(ruler: Ruler, labels: Tensor, split: str = "test") -> dict[str, Metrics]:
    """Name to metrics, of as many images as there are `labels`; and of the split's own images."""
    made = simple_images(ruler.known, labels)
    heldout = ruler.heldout[split]
    found = {name: ruler.measure(Images(images, labels), split) for name, images in made.items()}
    return {f"held-out images ({len(heldout.images):,})": ruler.measure(heldout, split), **found}


def simple_images(known: Images, labels: Tensor, seed: int = 0) -> dict[str, Tensor]:
    """Images (N, C, H, W) in -1..1 of each maker, for labels (N,) that `known` has images of."""
    draw = torch.Generator().manual_seed(seed)
    shape = (len(labels), *known.images.shape[1:])
    found = {"uniform noise": torch.rand(shape, generator=draw) * 2 - 1}
    mean, pixel, full = torch.empty(shape), torch.empty(shape), torch.empty(shape)
    for label in labels.unique().tolist():
        rows = labels == label
        ours = known.images[known.labels == label]  # (M, C, H, W)
        centre, count = ours.mean(0), int(rows.sum())
        mean[rows] = centre
        pixel[rows] = centre + ours.std(0, unbiased=False) * torch.randn(count, *shape[1:], generator=draw)
        # Normal weights of the centred images have their covariance; no matrix of pixels by pixels is needed.
        weights = torch.randn(count, len(ours), generator=draw) / len(ours) ** 0.5  # (n, M)
        full[rows] = centre + torch.tensordot(weights, ours - centre, dims=1)
    found |= {"class mean": mean, "pixel Gaussian": pixel, "full Gaussian": full}
    return {name: images.clamp(-1, 1) for name, images in found.items()}
