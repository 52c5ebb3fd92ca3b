"""Simple classifiers on the pixels of the same split: the most frequent class, nearest neighbours, an SVM."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

MOST_TRAIN, MOST_TEST, MOST_SIDE = 5_000, 10_000, 32
"""Caps that keep the baselines to seconds; where one is reached, the name of the baseline says so."""


def image_baselines(data: Any) -> dict[str, dict[str, float]]:
    """test/accuracy of the majority class, kNN(3) and SVM-RBF(C=10), trained on the training split's pixels.

    scikit-learn is imported here, after training. Large sets are cut to a random part, the same in every run, and
    large images averaged down.
    """
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.svm import SVC

    majority = data.train.labels.mode().values
    found = {"majority class": {"test/accuracy": (data.test.labels == majority).double().mean().item()}}
    train, labels, cut_train = _pixels(data.train, MOST_TRAIN)
    test, truth, cut_test = _pixels(data.test, MOST_TEST)
    notes = [note for note in (cut_train and f"{cut_train} training", cut_test and f"{cut_test} test") if note]
    suffix = f" ({', '.join(notes)} images)" if notes else ""
    if len(labels.unique()) < 2:
        return found
    neighbours = KNeighborsClassifier(n_neighbors=min(3, len(labels)))
    for name, model in (("kNN(3)", neighbours), ("SVM-RBF(C=10)", SVC(C=10))):
        model.fit(train.numpy(), labels.numpy())
        hits = torch.from_numpy(model.predict(test.numpy())) == truth
        found[name + suffix] = {"test/accuracy": hits.double().mean().item()}
    return found


def _pixels(examples: Any, most: int) -> tuple[Tensor, Tensor, str]:
    """Flat pixels (N, C h w), labels (N,), and how many of how many where the cap is reached."""
    total = len(examples)
    rows = torch.randperm(total, generator=torch.Generator().manual_seed(0))[:most].sort().values
    batches = [examples.batch(part.tolist(), None)["image"] for part in rows.split(500)]
    images = torch.cat([_small(batch) for batch in batches])  # (N, C, h, w)
    return images.flatten(1), examples.labels[rows], f"{most:,} of {total:,}" if total > most else ""


def _small(images: Tensor) -> Tensor:
    """(B, C, H, W), averaged down to at most MOST_SIDE a side."""
    height, width = images.shape[-2:]
    return F.adaptive_avg_pool2d(images, (min(height, MOST_SIDE), min(width, MOST_SIDE)))
