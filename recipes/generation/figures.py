"""Pictures of a generator: samples by class and seed, how one comes about, distances by guidance and by steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from recipes.figures import new_figure, save_figure
from recipes.generation.sampling import samples
from zoo.diffusion import Process

__all__ = ["distance_curves", "sample_grid", "trajectory"]

MOST_ROWS, COLUMNS = 10, 10


def sample_grid(
    model: Any, process: Process, labels: Sequence[int], classes: Sequence[str], path: Path, **options: Any
) -> Path:
    """A row for each of `labels`, a column for each seed. options: of `samples`."""
    labels, seeds = list(labels)[:MOST_ROWS], list(range(COLUMNS))
    rows = torch.tensor(labels).repeat_interleave(COLUMNS)  # (rows * columns,)
    images = samples(model, process, rows, seeds * len(labels), **options)
    figure = new_figure(0.7 * COLUMNS + 0.6, 0.7 * len(labels) + 0.4)
    grid = figure.subplots(len(labels), COLUMNS, squeeze=False)
    for axis, image in zip(grid.flatten(), images, strict=True):
        _show(axis, image)
    for axis, seed in zip(grid[0], seeds, strict=True):
        axis.set_title(f"seed {seed}", fontsize=7)
    for axis, label in zip(grid[:, 0], labels, strict=True):
        axis.set_ylabel(classes[label], fontsize=8)
    return save_figure(figure, path)


def trajectory(
    model: Any, process: Process, labels: Sequence[int], classes: Sequence[str], path: Path, **options: Any
) -> Path:
    """One image of each of a few classes at even steps from noise on, over the clean image expected at each step."""
    labels = list(labels)[:3]
    noisy: list[Tensor] = []
    clean: list[Tensor] = []

    def watch(x: Tensor, expected: Tensor) -> None:
        noisy.append(x.cpu())
        clean.append(expected.cpu())

    samples(model, process, torch.tensor(labels), [0] * len(labels), watch=watch, **options)
    shown = sorted({round(place) for place in torch.linspace(0, len(noisy) - 1, COLUMNS).tolist()})
    figure = new_figure(0.7 * len(shown) + 0.8, 1.5 * len(labels) + 0.4)
    grid = figure.subplots(2 * len(labels), len(shown), squeeze=False)
    for column, step in enumerate(shown):
        grid[0][column].set_title(f"step {step + 1}", fontsize=7)
        for row, (x, expected) in enumerate(zip(noisy[step], clean[step], strict=True)):
            _show(grid[2 * row][column], x)
            _show(grid[2 * row + 1][column], expected)
    for row, label in enumerate(labels):
        grid[2 * row][0].set_ylabel(classes[label], fontsize=8)
        grid[2 * row + 1][0].set_ylabel("expected", fontsize=7)
    return save_figure(figure, path)


def distance_curves(curves: Mapping[str, Mapping[float, tuple[float, float]]], floor: float, path: Path) -> Path:
    """(Frechet distance, class fidelity) over each setting, one panel a setting. floor: distance of held-out images."""
    figure = new_figure(5 * len(curves), 3.5)
    for axis, (name, points) in zip(figure.subplots(1, len(curves), squeeze=False)[0], curves.items(), strict=True):
        places = sorted(points)
        axis.plot(places, [points[place][0] for place in places], "o-", label="Frechet distance")
        axis.axhline(floor, linestyle="--", linewidth=1, color="grey", label="held-out images")
        axis.set(xlabel=name, ylabel="Frechet distance", yscale="log")
        other = axis.twinx()
        other.plot(places, [points[place][1] for place in places], "s:", color="C1", label="class fidelity")
        other.set(ylabel="class fidelity", ylim=(0, 1.02))
        lines = [*axis.get_legend_handles_labels()[0], *other.get_legend_handles_labels()[0]]
        axis.legend(lines, [line.get_label() for line in lines], fontsize=7)
        axis.grid(alpha=0.3)
    return save_figure(figure, path)


def _show(axis: Any, image: Tensor) -> None:
    """An image (C, H, W) in -1..1."""
    pixels = ((image.clamp(-1, 1) + 1) / 2).permute(1, 2, 0).numpy()  # (H, W, C)
    axis.imshow(pixels[..., 0] if pixels.shape[-1] == 1 else pixels, cmap="gray", vmin=0, vmax=1)
    axis.set(xticks=[], yticks=[])
