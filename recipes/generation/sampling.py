"""Samples of a trained generator: an image for each (label, seed), whatever stands beside it in a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from recipes.recipe import fed
from zoo.diffusion import Denoiser, Process, Watch, guided

__all__ = ["image_shape", "samples", "spread_labels"]


@torch.no_grad()
def samples(
    model: Any,
    process: Process,
    labels: Tensor,
    seeds: Sequence[int],
    *,
    guidance: float = 1.0,
    steps: int | None = None,
    batch_size: int = 256,
    watch: Watch | None = None,
) -> Tensor:
    """Images (N, C, H, W) in -1..1, fp32 on the CPU, of labels (N,) int64, one seed each.

    steps: other than the process's own. watch: see `zoo.diffusion.Watch`. Row n depends on labels[n] and seeds[n] alone
    up to the rounding of sums, whose order differs between batches of different sizes.
    """
    options: dict[str, Any] = {"steps": steps, "device": next(model.parameters()).device, "watch": watch}
    made: list[Tensor] = []
    for start in range(0, len(labels), batch_size):
        part = slice(start, start + batch_size)
        denoise = _denoiser(model, labels[part], guidance)
        made.append(process.sample(denoise, image_shape(model), seeds=seeds[part], **options).cpu())
    return torch.cat(made).clamp(-1, 1)


def image_shape(model: Any) -> tuple[int, int, int]:
    """(C, H, W) of a model's images."""
    config = model.config
    return config.channels, *config.image_size


def spread_labels(labels: Tensor, count: int) -> Tensor:
    """`count` labels that go round those in `labels` (N,) in order, so that each stands there equally often."""
    known = labels.unique()
    return known[torch.arange(count) % len(known)]


def _denoiser(model: Any, labels: Tensor, guidance: float) -> Denoiser:
    denoise = guided(model, labels, guidance)
    return lambda x, t: denoise(fed(model, x), fed(model, t)).float()
