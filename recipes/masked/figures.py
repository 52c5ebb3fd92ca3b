"""Pictures of a masked language model: accuracy by place and length, attention over a text, the downstream task."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from recipes.data.text.tokenizers import Tokenizer
from recipes.figures import new_figure, save_figure
from recipes.masked.downstream import encoder_of
from recipes.masked.scoring import Told
from zoo.blocks.api import Context, Recorder

__all__ = ["accuracy_by_place", "attention", "downstream_bars"]

FEWEST = 20
"""Places with fewer targets are not drawn: their accuracy would be chance."""


def accuracy_by_place(told: Told, path: Path) -> Path | None:
    """Accuracy on masked tokens by their place from the start, from the end, and by the length of the row."""
    panels = {
        "place from the start": told.place + 1,
        "place from the end": told.length - told.place,
        "tokens of the row": told.length,
    }
    drawn = {name: _means(values, told.hits) for name, values in panels.items()}
    if not any(len(places) for places, _ in drawn.values()):
        return None
    figure = new_figure(12, 3.5)
    for axis, (name, (places, means)) in zip(figure.subplots(1, 3, sharey=True), drawn.items(), strict=True):
        axis.plot(places, means, ".-")
        axis.axhline(told.accuracy, color="grey", linewidth=0.8, linestyle="--")
        axis.set(xlabel=name, title="masked accuracy")
        axis.grid(alpha=0.3)
    return save_figure(figure, path)


def _means(values: np.ndarray, hits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distinct values that occur often enough, and the share of hits at each."""
    counts = np.bincount(values)
    kept = np.flatnonzero(counts >= FEWEST)
    return kept, np.bincount(values, weights=hits)[kept] / counts[kept]


@torch.no_grad()
def attention(model: Any, tokenizer: Tokenizer, text: str, path: Path, most: int = 40) -> Path | None:
    """Who attends to whom in a text, one panel a layer, the mean of the heads; None where no layer records maps."""
    encoder = encoder_of(model)
    ids = [tokenizer.cls_id, *tokenizer.encode(text)[: most - 2], tokenizer.sep_id]
    recorder = Recorder("attention")
    row = torch.tensor([ids], device=next(encoder.parameters()).device)
    encoder.features(row, Context(record=recorder))
    maps = [tap[0].float().mean(0).cpu() for tap in recorder.taps.values() if tap.shape[-2:] == (len(ids), len(ids))]
    if not maps:
        return None
    names = [tokenizer.name(i) for i in ids]  # type: ignore[arg-type]
    side = 1.2 + 0.24 * len(ids)
    figure = new_figure(side * len(maps), side + 0.4)
    for layer, (axis, weights) in enumerate(zip(figure.subplots(1, len(maps), squeeze=False)[0], maps, strict=True), 1):
        axis.imshow(weights.numpy(), cmap="Blues", vmin=0)
        axis.set_xticks(range(len(ids)), names, rotation=90, fontsize=7)
        axis.set_yticks(range(len(ids)), names, fontsize=7)
        axis.set(xlabel="attended", title=f"layer {layer}")
    return save_figure(figure, path)


def downstream_bars(arms: Mapping[str, tuple[float, float]], path: Path) -> Path:
    """Accuracy of each arm with its standard deviation over the draws of labels."""
    figure = new_figure(7, 0.9 + 0.42 * len(arms))
    axis = figure.subplots()
    names = list(arms)[::-1]
    means, spreads = [arms[name][0] for name in names], [arms[name][1] for name in names]
    axis.barh(range(len(names)), means, xerr=spreads, color="tab:blue", capsize=2)
    axis.set_yticks(range(len(names)), names)
    for place, mean in enumerate(means):
        axis.text(0.01, place, f"{mean:.3f}", va="center", color="white", fontsize=8)
    axis.set(xlabel="downstream accuracy, test", xlim=(0, 1))
    axis.grid(alpha=0.3, axis="x")
    return save_figure(figure, path)
