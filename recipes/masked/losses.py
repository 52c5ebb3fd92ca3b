"""Losses of pre-training, each summed over its targets and put on the scale of the masked tokens.

The loop divides what a recipe returns by the masked tokens of the whole optimizer step (`window_targets`). A loss with
other targets (rows, real tokens) is therefore multiplied by window_targets / (its own targets in the step), so that it
is the mean over these, whatever their number in each micro-batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from recipes.recipe import Batch, wide
from zoo.blocks.api import Context

__all__ = ["electra_loss", "masked_lm_loss", "on_device"]

Loss = tuple[Tensor, Mapping[str, Tensor]]


def on_device(model: Any, batch: Batch) -> Batch:
    """The batch where the model's weights are."""
    device = next(model.parameters()).device
    return {name: value.to(device) for name, value in batch.items()}


def masked_lm_loss(model: Any, batch: Batch) -> Loss:
    """Masked language modelling, and next-sentence prediction where the batch and the model have it (Devlin et al.
    2018, arXiv:1810.04805): their sum, each over its own targets."""
    context = Context(token_mask=batch.get("token_mask"))
    x = model.features(batch["ids"], context, batch.get("token_types"))  # (B, T, D)
    labels = batch["labels"]  # (B, T)
    logs: dict[str, Tensor] = {}
    loss = wide(model.head.loss(x, labels))
    if not model.training:
        logs["accuracy"] = model.head.score(x, labels)[1]
    if "next" in batch and model.sentence_head is not None:
        logits = wide(model.sentence_logits(x, context))  # (B, 2)
        share = batch["window_targets"] / batch["window_rows"]
        sentence = F.cross_entropy(logits, batch["next"], reduction="sum") * share.to(logits.dtype)
        hits = (logits.detach().argmax(-1) == batch["next"]).sum()
        logs |= {"next_sentence_loss": sentence.detach(), "next_sentence_accuracy": hits * share}
        loss = loss + sentence
    return loss, logs


def electra_loss(model: Any, batch: Batch, weight: float = 50.0) -> Loss:
    """Masked language modelling of the generator, and `weight` times the discriminator's loss over all real tokens
    (Clark et al. 2020, arXiv:2003.10555). The samples depend on batch["draw"] alone."""
    ids, labels, mask = batch["ids"], batch["labels"], batch.get("token_mask")
    draw = torch.Generator(ids.device).manual_seed(int(batch["draw"]))
    made = model.replace(ids, labels, token_mask=mask, token_types=batch.get("token_types"), generator=draw)
    logits = wide(model(made.ids, token_mask=mask, token_types=batch.get("token_types")))  # (B, T)
    truth = made.replaced.to(logits.dtype)
    each = F.binary_cross_entropy_with_logits(logits, truth, reduction="none")  # (B, T)
    right = (logits.detach() > 0) == made.replaced
    if mask is not None:
        each, right = each[mask], right[mask]
    share = (batch["window_targets"] / batch["window_tokens"]).to(logits.dtype)
    replaced = each.sum() * share
    logs = {
        "generator_loss": made.generator_loss.detach(),
        "replaced_loss": replaced.detach(),
        "replaced_accuracy": right.sum() * share,
    }
    return made.generator_loss + weight * replaced, logs
