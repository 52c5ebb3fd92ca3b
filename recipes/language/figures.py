"""Pictures of a causal language model: what context is worth, and the n-grams that it beats."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from recipes.figures import new_figure, save_figure
from recipes.language.scoring import Score

__all__ = ["loss_by_place"]


def loss_by_place(found: Score, baselines: Mapping[str, float], path: Path) -> Path:
    """Bits per character by place in the window, with the baselines as lines."""
    figure = new_figure(7, 4)
    axis = figure.subplots()
    places = found.by_place()
    axis.plot(range(len(places)), list(places.values()), "o-", label="model, by place in the window")
    axis.axhline(found.bits_per_character, color="C0", linestyle=":", label="model, all places")
    for number, (name, value) in enumerate(baselines.items()):
        axis.axhline(value, color=f"C{number % 9 + 1}", linewidth=0.8, alpha=0.6)
        axis.text(len(places) - 0.9, value, name, fontsize=7, va="center")
    axis.set_xticks(range(len(places)), list(places), rotation=45)
    axis.set(xlabel="place of the token in the window", ylabel="bits per character", xlim=(-0.3, len(places) + 0.8))
    axis.legend(fontsize=8)
    return save_figure(figure, path)
