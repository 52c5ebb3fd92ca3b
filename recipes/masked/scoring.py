"""How well a model tells masked tokens: every masked place of a split, one by one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from recipes.data.text.padding import IGNORE
from recipes.masked.losses import on_device
from recipes.recipe import Batch, wide
from zoo.blocks.api import Context

__all__ = ["Told", "masked_places", "next_sentence_accuracy", "replaced_accuracy"]

AT_ONCE = 1024  # masked places whose logits are held at once


@dataclass(frozen=True)
class Told:
    """One entry for each masked place: whether the likeliest token was right, the loss in nats, where the place was
    (counted from the first token after cls), and how many tokens of text its row has."""

    hits: NDArray[np.bool_]
    losses: NDArray[np.float64]
    place: NDArray[np.int64]
    length: NDArray[np.int64]
    hidden: NDArray[np.bool_]
    """Whether the place was shown as the mask token, rather than as another token or as it is."""

    @property
    def hidden_accuracy(self) -> float:
        return float(self.hits[self.hidden].mean()) if self.hidden.any() else float("nan")

    @property
    def accuracy(self) -> float:
        return float(self.hits.mean()) if len(self.hits) else float("nan")

    @property
    def loss(self) -> float:
        return float(self.losses.mean()) if len(self.losses) else float("nan")


@torch.no_grad()
def masked_places(model: Any, batches: Iterable[Batch], mask_id: int | None) -> Told:
    """What a model with a masked-language-model head (ELECTRA: its generator) says of the masked places."""
    told_by = getattr(model, "generator", model)
    hits, losses, place, length, hidden = [], [], [], [], []
    for given in batches:
        batch = on_device(model, given)
        chosen = batch["labels"] != IGNORE  # (B, T)
        x = told_by.features(batch["ids"], Context(token_mask=batch.get("token_mask")), batch.get("token_types"))
        x, labels = x[chosen], batch["labels"][chosen]  # (N, D), (N,)
        for part, truth in zip(x.split(AT_ONCE), labels.split(AT_ONCE), strict=True):
            logits = wide(told_by.head(part))  # (N, V)
            hits.append((logits.argmax(-1) == truth).cpu())
            losses.append(F.cross_entropy(logits, truth, reduction="none").double().cpu())
        row, column = chosen.cpu().nonzero(as_tuple=True)
        mask = given.get("token_mask")
        sizes = torch.full((len(chosen),), chosen.shape[1]) if mask is None else mask.sum(1)
        place.append(column - 1)
        length.append(sizes[row] - 2)
        hidden.append((batch["ids"][chosen] == mask_id).cpu())
    parts: list[Any] = [
        torch.cat(found).numpy() if found else np.zeros(0) for found in (hits, losses, place, length, hidden)
    ]
    return Told(*parts)


@torch.no_grad()
def next_sentence_accuracy(model: Any, batches: Iterable[Batch]) -> float:
    """Share of rows in which the model tells whether the second segment follows the first."""
    hits: list[Tensor] = []
    for given in batches:
        batch = on_device(model, given)
        context = Context(token_mask=batch.get("token_mask"))
        x = model.features(batch["ids"], context, batch["token_types"])
        hits.append(model.sentence_logits(x, context).argmax(-1) == batch["next"])
    return torch.cat(hits).double().mean().item()


@torch.no_grad()
def replaced_accuracy(model: Any, batches: Iterable[Batch]) -> dict[str, float]:
    """ELECTRA on real tokens: the share told right, and the share of tokens that were replaced."""
    right = replaced = total = 0
    for given in batches:
        batch = on_device(model, given)
        draw = torch.Generator(batch["ids"].device).manual_seed(int(batch["draw"]))
        options = {"token_mask": batch.get("token_mask"), "token_types": batch.get("token_types")}
        made = model.replace(batch["ids"], batch["labels"], generator=draw, **options)
        hits = (model(made.ids, **options) > 0) == made.replaced  # (B, T)
        mask = options["token_mask"]
        real = torch.ones_like(hits) if mask is None else mask
        right, replaced = right + int((hits & real).sum()), replaced + int(made.replaced.sum())
        total += int(real.sum())
    return {"replaced_accuracy": right / max(total, 1), "replaced_share": replaced / max(total, 1)}
