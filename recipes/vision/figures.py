"""Pictures of an image classifier: confusion matrix, the most confident mistakes, attention over an image."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from recipes.figures import new_figure, save_figure
from recipes.recipe import fed

MOST_CLASSES = 40
"""Beyond this many classes, the confusion matrix shows those with the most mistakes."""


def confusion_matrix(logits: Tensor, labels: Tensor, classes: tuple[str, ...], path: Path) -> Path:
    """Counts of (true class, answer). logits: (N, classes); labels: (N,)."""
    guess, size = logits.argmax(dim=1), len(classes)
    counts = torch.bincount(labels * size + guess, minlength=size * size).view(size, size)  # (true, answer)
    shown = torch.arange(size)
    if size > MOST_CLASSES:
        wrong = counts.sum(dim=1) - counts.diagonal()
        shown = wrong.argsort(descending=True, stable=True)[:MOST_CLASSES].sort().values
    counts = counts[shown][:, shown]
    names = [classes[i] for i in shown.tolist()]
    inches = 2.5 + 0.35 * len(names)
    figure = new_figure(inches, inches)
    axis = figure.subplots()
    axis.imshow((counts / counts.sum(dim=1, keepdim=True).clamp(min=1)).numpy(), cmap="Blues", vmin=0, vmax=1)
    axis.set_xticks(range(len(names)), names, rotation=90 if max(map(len, names)) > 2 else 0)
    axis.set_yticks(range(len(names)), names)
    axis.set(xlabel="answer", ylabel="true class", title=f"test: {int((guess == labels).sum())} of {len(labels)} right")
    for row in range(len(names)):
        for column in range(len(names)):
            if count := int(counts[row, column]):
                dark = count > 0.5 * int(counts[row].sum())
                axis.text(column, row, count, ha="center", va="center", fontsize=7, color="white" if dark else "black")
    return save_figure(figure, path)


def mistakes(logits: Tensor, examples: Any, classes: tuple[str, ...], path: Path, most: int = 24) -> Path:
    """The wrong answers that the model was surest of."""
    confidence, guess = logits.softmax(dim=1).max(dim=1)  # (N,), (N,)
    wrong = (guess != examples.labels).nonzero()[:, 0]
    wrong = wrong[confidence[wrong].argsort(descending=True, stable=True)][:most]
    columns = 8
    rows = max(math.ceil(len(wrong) / columns), 1)
    figure = new_figure(1.4 * columns, 1.7 * rows + 0.4)
    total = int((guess != examples.labels).sum())
    figure.suptitle(f"most confident mistakes: {len(wrong)} of {total} on {len(examples):,} test images", fontsize=10)
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for axis in axes:
        axis.set_axis_off()
    if len(wrong):
        images = examples.batch(wrong.tolist(), None)["image"]
        for axis, image, row in zip(axes, images, wrong.tolist(), strict=False):
            show_image(axis, image, examples.preprocess)
            answer, truth = classes[int(guess[row])], classes[int(examples.labels[row])]
            axis.set_title(f"{answer} ({float(confidence[row]):.2f})\nis {truth}", fontsize=7)
    return save_figure(figure, path)


@torch.no_grad()
def attention(model: nn.Module, examples: Any, path: Path, images: int = 4) -> Path | None:
    """What the class token (mean pooling: the average patch) attends to, by layer, averaged over the heads.

    None for a model that records no attention maps over its patches.
    """
    from zoo.blocks.api import Recorder

    if not hasattr(model, "patches") or not len(examples):
        return None
    model_: Any = model
    batch = examples.batch(list(range(min(images, len(examples)))), None)["image"]  # (B, C, H, W)
    recorder = Recorder("attention")
    tokens = model_.forward_features(fed(model, batch), record=recorder).shape[1]
    rows, columns = model_.patches.grid(*batch.shape[-2:])
    prefix = tokens - rows * columns
    maps = [tap for tap in recorder.taps.values() if tap.ndim == 4 and tap.shape[-1] == tokens]
    if not maps:
        return None
    by_class = model_.config.pool == "cls"
    shown = sorted({0, len(maps) // 2, len(maps) - 1})
    figure = new_figure(1.8 * (len(shown) + 1), 1.8 * len(batch) + 0.3)
    grid = figure.subplots(len(batch), len(shown) + 1, squeeze=False)
    for line, image in zip(range(len(batch)), batch, strict=True):
        show_image(grid[line][0], image, examples.preprocess)
        for axis, layer in zip(grid[line][1:], shown, strict=True):
            weights = maps[layer][line].float().mean(dim=0)  # (T, S)
            weights = weights[0] if by_class else weights[prefix:].mean(dim=0)  # (S,)
            seen = weights[prefix:].view(rows, columns).cpu().numpy()
            show_image(axis, image, examples.preprocess, alpha=0.4)
            height, width = image.shape[-2:]
            axis.imshow(seen, cmap="inferno", alpha=0.6, extent=(-0.5, width - 0.5, height - 0.5, -0.5))
            if line == 0:
                axis.set_title(f"layer {layer + 1}", fontsize=8)
    for axis in grid.flatten():
        axis.set_axis_off()
    return save_figure(figure, path)


def show_image(axis: Any, image: Tensor, preprocess: Any, **options: Any) -> None:
    """A normalised image (C, H, W) as it looked."""
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (preprocess.mean, preprocess.std))
    pixels = (image.cpu() * std + mean).clamp(0, 1).permute(1, 2, 0).numpy()  # (H, W, C)
    if pixels.shape[-1] == 1:
        axis.imshow(pixels[..., 0], cmap="gray", vmin=0, vmax=1, **options)
    else:
        axis.imshow(pixels, **options)
