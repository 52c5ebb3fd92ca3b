"""Pictures of a model from one sequence to another: errors by the length of the source, and what each answer reads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from recipes.data.text.corpora import Pair
from recipes.figures import new_figure, save_figure
from recipes.recipe import fed
from zoo.blocks.api import Recorder

__all__ = ["cross_attention", "errors_by_length"]

FEWEST = 10
"""Sources of one length that are worth a point."""
LONGEST = 40
"""Tokens beyond which a map of attention is no longer legible."""


def errors_by_length(answers: Sequence[str], pairs: Sequence[Pair], path: Path, *, symbols: bool) -> Path:
    """Share of wrong answers, and of wrong symbols, by the length of the source: in letters, or in words of a text."""
    from recipes.seq2seq.metrics import best_reference

    lengths = np.array([len(pair.source) if symbols else len(pair.source.split()) for pair in pairs])
    wrong = np.array([answer not in pair.references for answer, pair in zip(answers, pairs, strict=True)])
    figure = new_figure(7, 4)
    axis, counts = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    shown = [int(size) for size in np.unique(lengths) if (lengths == size).sum() >= min(FEWEST, len(pairs))]
    axis.plot(shown, [wrong[lengths == size].mean() for size in shown], "o-", label="wrong answers")
    if symbols:
        best = [best_reference(answer, pair.references) for answer, pair in zip(answers, pairs, strict=True)]
        errors, sizes = np.array(best).T  # (N,) each
        rates = [errors[lengths == size].sum() / max(sizes[lengths == size].sum(), 1) for size in shown]
        axis.plot(shown, rates, "s-", label="errors per symbol")
    axis.set(ylabel="share", ylim=(0, None), title=f"test: {int(wrong.sum()):,} of {len(pairs):,} answers wrong")
    axis.grid(alpha=0.3)
    axis.legend()
    counts.bar(shown, [(lengths == size).sum() for size in shown], color="C7")
    counts.set(xlabel="letters of the source" if symbols else "words of the source", ylabel="sources")
    return save_figure(figure, path)


@torch.no_grad()
def cross_attention(model: Any, data: Any, path: Path, most: int = 4) -> Path | None:
    """What the decoder reads of the source as it writes, averaged over heads; the last layer, and the mean of all.

    None for a model that records no maps from target to source.
    """
    vocabulary, sizes = data.vocabulary, data.test.lengths.max(axis=1)
    order = np.argsort(-np.where(sizes <= min(LONGEST, 14), sizes, -sizes), kind="stable")
    drawn = []
    for number in order[:most].tolist():
        batch = data.test.batch([number], None)
        recorder = Recorder("attention")
        source, target = batch["source"], batch["target"]  # (1, S), (1, T)
        model(fed(model, source), fed(model, target), record=recorder)
        shape = (target.shape[1], source.shape[1])
        reads = [tap for name, tap in recorder.taps.items() if "cross" in name or name.startswith("rnn")]
        maps = [tap[0].float().mean(0).cpu() for tap in reads if tap.shape[-2:] == shape]  # (T, S) each
        if not maps or max(shape) > LONGEST:
            continue
        names = [[vocabulary.name(i) for i in row[0].tolist()] for row in (source, batch["labels"])]
        drawn.append((names, maps[-1], torch.stack(maps).mean(0)))
    if not drawn:
        return None
    figure = new_figure(3.4 * len(drawn), 6.4)
    axes = figure.subplots(2, len(drawn), squeeze=False)
    for column, ((letters, symbols), *maps) in enumerate(drawn):
        for axis, weights, name in zip(axes[:, column], maps, ("last layer", "mean of layers"), strict=True):
            axis.imshow(weights.numpy(), cmap="Blues", vmin=0, vmax=1, aspect="auto")
            axis.set_xticks(range(len(letters)), letters, fontsize=7, rotation=90 if max(map(len, letters)) > 5 else 0)
            axis.set_yticks(range(len(symbols)), symbols, fontsize=7)
            axis.set_title(name, fontsize=8)
    return save_figure(figure, path)
