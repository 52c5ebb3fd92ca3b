"""Figures of a classifier over a split."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recipes.data.loader import EpochLoader
from recipes.recipe import fed


@torch.no_grad()
def predictions(model: Callable[[Tensor], Tensor] | nn.Module, batches: EpochLoader) -> tuple[Tensor, Tensor]:
    """Logits (N, classes) float32 and labels (N,) of a whole split, in its order, on the CPU."""
    logits, labels = [], []
    for batch in batches:
        logits.append(model(fed(model, batch["image"])).float().cpu())
        labels.append(batch["label"])
    return torch.cat(logits), torch.cat(labels)


def classification_metrics(logits: Tensor, labels: Tensor) -> dict[str, float]:
    """accuracy, loss (cross entropy without smoothing), calibration_error, and top5 with 10 classes or more.

    logits: (N, classes); labels: (N,) int64.
    """
    hits = logits.argmax(dim=1) == labels
    figures = {
        "accuracy": hits.double().mean().item(),
        "loss": F.cross_entropy(logits.double(), labels).item(),
        "calibration_error": calibration_error(logits, labels),
    }
    if logits.shape[1] >= 10:
        figures["top5"] = (logits.topk(5, dim=1).indices == labels[:, None]).any(dim=1).double().mean().item()
    return figures


def calibration_error(logits: Tensor, labels: Tensor, bins: int = 15) -> float:
    """Expected calibration error in equal bins of confidence (Guo et al. 2017, arXiv:1706.04599)."""
    confidence, guess = logits.double().softmax(dim=1).max(dim=1)  # (N,), (N,)
    place = (confidence * bins).ceil().long().clamp(1, bins) - 1  # (N,)
    gap = torch.zeros(bins, dtype=torch.float64).index_add_(0, place, confidence - (guess == labels).double())
    return gap.abs().sum().item() / len(labels)
