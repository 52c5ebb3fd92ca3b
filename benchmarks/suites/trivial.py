"""What each family's task gives to an answer that learned nothing of the input: the zero of the normalised scale.

    python -m benchmarks.suites.trivial [vit gpt ...]

    vit                      the most frequent class of the training images
    gpt                      characters by their frequency in the training text, order 1 of the recipe's own n-grams
    bert                     the most frequent token among the masked ones
    t5, transformer, whisper the most frequent token among the answers
    dit                      a velocity of 0
    decision                 actions by chance

The figures stand as constants in families.py, since tables are made without loading data; a test recomputes those that
take no time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from recipes.recipe import Recipe, find_recipe
from zoo.run import compose

__all__ = ["DATA", "TRIVIAL", "trivial"]

DATA: dict[str, tuple[str, ...]] = {"decision": ("data=key_to_door",)}
"""Command-line words of the data, where they are not the recipe's own."""


def _vit(recipe: Recipe, data: Any) -> float:
    most = int(data.train.labels.bincount().argmax())
    return float((data.test.labels == most).double().mean())


def _gpt(recipe: Recipe, data: Any) -> float:
    from recipes.language.ngrams import ngram_bits

    return ngram_bits(data.corpus.train, data.corpus.test, 1)[0]


def _most_frequent(recipe: Recipe, data: Any) -> float:
    """Share of the most frequent label."""
    labels = torch.cat([_told(batch) for batch in recipe.eval_batches(data.test)])
    return float(labels.bincount().max() / len(labels))


def _told(batch: dict[str, Tensor]) -> Tensor:
    labels = batch["labels"]
    return labels[labels >= 0]


def _dit(recipe: Any, data: Any) -> float:
    torch.manual_seed(0)
    images = torch.cat([batch["image"] for batch in recipe.eval_batches(data.test)])
    return float(recipe.process.loss(lambda x, t: torch.zeros_like(x), images).mean())


def _decision(recipe: Recipe, data: Any) -> float:
    from recipes.control.evaluation import chance_returns

    torch.manual_seed(0)
    return float(chance_returns(data, 256).mean())


TRIVIAL: dict[str, Callable[[Any, Any], float]] = {
    "vit": _vit,
    "gpt": _gpt,
    "bert": _most_frequent,
    "t5": _most_frequent,
    "transformer": _most_frequent,
    "whisper": _most_frequent,
    "dit": _dit,
    "decision": _decision,
}


def trivial(name: str) -> float:
    """The figure of a recipe, on its own data."""
    recipe = find_recipe(name)(compose([f"recipe={name}", *DATA.get(name, ())]))
    return TRIVIAL[name](recipe, recipe.load())


if __name__ == "__main__":
    for name in sys.argv[1:] or TRIVIAL:
        print(f"{name} {trivial(name):.4f}", flush=True)
