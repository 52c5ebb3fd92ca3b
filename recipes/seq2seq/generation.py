"""Answers of a model to sources, in batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recipes.data.text.padding import pad
from recipes.recipe import Batch, fed
from recipes.seq2seq.vocabulary import PairVocabulary

__all__ = ["answer_batch", "answer_examples", "answer_texts"]


def answer_batch(
    model: Any,
    vocabulary: PairVocabulary,
    source: Tensor,
    mask: Tensor | None,
    *,
    most: int,
    beams: int = 1,
    length_penalty: float = 1.0,
) -> list[str]:
    """Target texts for sources (B, S), of at most `most` tokens; greedy with one beam."""
    from zoo.generation import generate

    search: dict[str, Any] = {"beams": beams, "length_penalty": length_penalty} if beams > 1 else {}
    mask = None if mask is None else fed(model, mask)
    made = generate(
        model,
        source=fed(model, source),
        source_mask=mask,
        max_new_tokens=most,
        eos_id=vocabulary.eos_id,
        **search,
    )
    return [vocabulary.text(row.tolist()) for row in made.new]


def answer_examples(model: Any, vocabulary: PairVocabulary, batches: Iterable[Batch], **search: Any) -> list[str]:
    """Answers to all examples, in the order of their numbers."""
    found: dict[int, str] = {}
    for batch in batches:
        answers = answer_batch(model, vocabulary, batch["source"], batch.get("source_mask"), **search)
        found.update(zip(batch["index"].tolist(), answers, strict=True))
    return [found[number] for number in sorted(found)]


def answer_texts(
    model: Any,
    vocabulary: PairVocabulary,
    texts: Sequence[str],
    *,
    limit: int | None = None,
    together: int = 256,
    **search: Any,
) -> list[str]:
    """Answers to source texts, cut to `limit` tokens; rows of similar lengths go through the model together. An empty
    text has an empty answer."""
    rows = vocabulary.sources(texts).framed(after=vocabulary.eos_id, limit=limit)
    order = np.argsort(rows.lengths, kind="stable")
    answers = [""] * len(texts)
    for start in range(0, len(order), together):
        places = [place for place in order[start : start + together].tolist() if texts[place]]
        if places:
            with torch.inference_mode():
                source, mask = pad([rows[place].tolist() for place in places], vocabulary.pad_id)
                made = answer_batch(model, vocabulary, source, mask, **search)
            for place, answer in zip(places, made, strict=True):
                answers[place] = answer
    return answers
