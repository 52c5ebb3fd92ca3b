"""A few labels: fine-tune an encoder, or read its frozen features, and see how far that goes.

Each draw of labelled texts trains a classifier of its own, and the figures are means over the draws. All draws of all
arms are made from fixed keys, so an encoder has one figure, whoever asks and whenever.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from recipes.data.keys import generator, seed_of
from recipes.data.loader import EpochLoader
from recipes.data.text.bucketing import Bucketed
from recipes.data.text.corpora import Labelled
from recipes.data.text.labelled import LabelledExamples
from recipes.data.text.tokenizers import Tokenizer
from recipes.masked.corpus import split_texts
from recipes.masked.losses import on_device
from recipes.optim import AdamW, parameter_groups
from recipes.recipe import wide
from recipes.schedule import Linear
from zoo.blocks.api import Context
from zoo.blocks.auxiliary import collect
from zoo.blocks.ffn.balance import update_biases
from zoo.blocks.heads import Pool, pool_tokens
from zoo.registry import Config

__all__ = [
    "DownstreamTask",
    "accuracy",
    "classifier_of",
    "drawn",
    "encoder_of",
    "fine_tuned",
    "labelled_examples",
    "pooled_features",
    "probe_accuracy",
]

Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0.0)]
POOLS: tuple[Pool, ...] = ("mean", "max", "sum", "cls")
"""Of the frozen features, side by side."""
C_GRID = (0.01, 0.1, 1.0, 10.0, 100.0)
"""Inverse penalties of logistic regression; the best on the validation labels is taken."""


class DownstreamTask(Config):
    """Keys of `task.downstream`."""

    labels: Count | None = None
    """Labelled texts of a draw; null for all there are."""
    draws: Count = 1
    """Draws of so many labelled texts, each of which trains a classifier."""
    steps: Annotated[int, Field(ge=0)] = 300
    """Optimizer steps of fine-tuning; 0 leaves fine-tuning out."""
    batch_size: Count = 32
    lr: Positive = 1e-3
    scratch_lr: Positive = 1e-3
    """Rate of the arm that starts from initial weights."""
    pool: Pool = "mean"
    """What of the tokens the classifier reads; only the sum can count them."""
    warmup: Annotated[float, Field(ge=0.0, le=1.0)] = 0.1
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.01
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    """On the pooled features, before the classes."""
    probe: bool = True
    """Logistic regression on the frozen features."""


def encoder_of(model: Any) -> Any:
    """The encoder that is kept after pre-training: the model itself, or ELECTRA's discriminator."""
    return getattr(model, "discriminator", model)


def classifier_of(encoder: Any, classes: int, dropout: float = 0.0, pool: Pool = "mean") -> nn.Module:
    """A new classifier on the pooled tokens, with a copy of the encoder's weights and without its other heads."""
    changes = {"masked_lm": False, "next_sentence": False, "pooler": False, "pool": pool}
    config = encoder.config.model_copy(update={**changes, "num_classes": classes, "head_dropout": dropout})
    made = config.build()
    theirs, ours = encoder.state_dict(), made.state_dict()
    made.load_state_dict({name: theirs.get(name, value) for name, value in ours.items()})
    first = next(encoder.parameters())
    return made.to(first.device, first.dtype)


def labelled_examples(rows: Sequence[Labelled], tokenizer: Tokenizer, length: int) -> LabelledExamples:
    """Labelled texts as rows between cls and sep, cut to `length` tokens in all."""
    texts, labels = split_texts(rows)
    ids = tokenizer.sequences(texts)
    frame = {"cls": tokenizer.cls_id, "sep": tokenizer.sep_id}
    return LabelledExamples(ids, labels, pad=tokenizer.pad_id or 0, limit=length, **frame)


def drawn(rows: Sequence[Labelled], labels: int | None, draw: int) -> list[Labelled]:
    """The labelled texts of a draw: all, or those of the smallest hashes under the draw's number."""
    if labels is None or labels >= len(rows):
        return list(rows)
    order = torch.randperm(len(rows), generator=generator("labels", draw))[:labels]
    return [rows[place] for place in order.sort().values.tolist()]


def fine_tuned(encoder: Any, examples: LabelledExamples, classes: int, task: DownstreamTask, *, scratch: bool) -> Any:
    """A classifier trained on the examples, in eval mode; the encoder stays as it is.

    scratch: from initial weights instead of the encoder's, with the same steps on the same batches.
    """
    lr = task.scratch_lr if scratch else task.lr
    device = next(encoder.parameters()).device
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices), torch.enable_grad():
        torch.manual_seed(seed_of("fine-tuning"))
        model = classifier_of(encoder, classes, task.dropout, task.pool)
        if scratch:
            model = model.config.build().to(device, next(encoder.parameters()).dtype)  # type: ignore[union-attr, operator]
        schedule = Linear(warmup=task.warmup)
        config = AdamW(lr=lr, weight_decay=task.weight_decay, schedule=schedule, betas=(0.9, 0.98))
        optimizer = config.build(parameter_groups(model, config))
        loader = EpochLoader(Bucketed(examples, pool=4), task.batch_size, shuffle=True, seed=0)
        model.train()
        step = 0
        while step < task.steps:
            for given in loader:
                if step == task.steps:
                    break
                for group in optimizer.param_groups:
                    group["lr"] = lr * schedule.factor(step, task.steps)
                batch = on_device(model, given)
                with collect() as said:
                    logits = wide(model(batch["ids"], token_mask=batch.get("token_mask")))  # (B, classes)
                optimizer.zero_grad()
                (F.cross_entropy(logits, batch["label"]) + said.loss).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                update_biases(model, said.measures)
                step += 1
    return model.eval()


@torch.no_grad()
def accuracy(model: Any, examples: LabelledExamples, batch_size: int = 256) -> float:
    """Share of the examples that the classifier tells right."""
    hits = 0
    for given in EpochLoader(Bucketed(examples), batch_size, shuffle=False, seed=0):
        batch = on_device(model, given)
        logits = model(batch["ids"], token_mask=batch.get("token_mask"))
        hits += int((logits.argmax(-1) == batch["label"]).sum())
    return hits / max(len(examples), 1)


@torch.no_grad()
def pooled_features(encoder: Any, examples: LabelledExamples, batch_size: int = 256) -> NDArray[np.float32]:
    """(N, 4 D) frozen features in the order of the examples: mean, maximum, sum and first of the tokens."""
    training = encoder.training
    encoder.eval()
    parts: list[Tensor] = []
    index: list[Tensor] = []
    for given in EpochLoader(Bucketed(examples), batch_size, shuffle=False, seed=0):
        batch = on_device(encoder, given)
        context = Context(token_mask=batch.get("token_mask"))
        x = wide(encoder.features(batch["ids"], context))  # (B, T, D)
        parts.append(torch.cat([pool_tokens(x, context, pool) for pool in POOLS], dim=1).cpu())
        index.append(given["index"])
    encoder.train(training)
    return torch.cat(parts)[torch.cat(index).argsort()].float().numpy()


def probe_accuracy(
    features: dict[str, NDArray[Any]], labels: dict[str, NDArray[Any]], train: Sequence[int] | slice = slice(None)
) -> dict[str, float]:
    """Accuracy on val and test of logistic regression on the training features, scaled to unit variance; its penalty
    is the best one on val. `train` chooses rows of the training features."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    known, truth = features["train"][train], labels["train"][train]
    if len(np.unique(truth)) < 2:
        return {split: float((labels[split] == truth[0]).mean()) for split in ("val", "test")}
    scaler = StandardScaler().fit(known)
    best: dict[str, float] = {"val": -math.inf}
    for penalty in C_GRID:
        model = LogisticRegression(C=penalty, max_iter=1000).fit(scaler.transform(known), truth)
        found = {
            split: float((model.predict(scaler.transform(features[split])) == labels[split]).mean())
            for split in ("val", "test")
        }
        best = found if found["val"] > best["val"] else best
    return best
