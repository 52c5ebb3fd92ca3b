"""The words of batches of clips."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from recipes.data.text.tokenizers import Tokenizer
from recipes.recipe import Batch, fed

__all__ = ["words_of_batches"]


def words_of_batches(
    model: Any,
    tokenizer: Tokenizer,
    batches: Iterable[Batch],
    *,
    most: int,
    beams: int = 1,
    length_penalty: float = 1.0,
) -> list[str]:
    """What is said in each clip, of at most `most` tokens, in the order of the clips' numbers; greedy with one beam."""
    from zoo.generation import generate

    search: dict[str, Any] = {"beams": beams, "length_penalty": length_penalty} if beams > 1 else {}
    found: dict[int, str] = {}
    for batch in batches:
        mask = batch.get("source_mask")
        made = generate(
            model,
            source=fed(model, batch["source"]),
            source_mask=None if mask is None else fed(model, mask),
            max_new_tokens=most,
            eos_id=tokenizer.eos_id,
            **search,
        )
        for number, row in zip(batch["index"].tolist(), made.new, strict=True):
            found[number] = tokenizer.decode([i for i in row.tolist() if i < tokenizer.vocab_size])
    return [found[number] for number in sorted(found)]
