"""Answers for a user's own texts: masked tokens filled in with the likeliest, or the classes of a fine-tuned model."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from recipes.arguments import Parser
from recipes.data.text.tokenizers import Tokenizer
from recipes.recipe import wide
from zoo.blocks.api import Context
from zoo.registry import ConfigError

__all__ = ["answer", "filled", "told_classes"]

MARK, LETTER = "[MASK]", "_"
USE = 'use RUN_DIR --prompt "h_llo" [--prompt ...] [--input FILE] [--top K] [--json]'


def answer(
    model: Any, tokenizer: Tokenizer, classifier: Any | None, classes: Sequence[str], argv: Sequence[str]
) -> int:
    """Print an answer for each text: the top tokens of each mask where it has one, else its classes.

    A mask is written [MASK], or "_" where the tokens are letters. Returns 0. Raises ConfigError for wrong options,
    for a file that cannot be read, and for a text without masks where the run has no classifier.
    """
    options = _parse(argv)
    told = getattr(model, "generator", model)
    for text in _texts(options):
        if mark_in(text, tokenizer) is None:
            if classifier is None:
                raise ConfigError(f"{text!r} has no mask to fill in; write {_marks(tokenizer)}", "predict")
            _print_classes(text, told_classes(classifier, tokenizer, text, classes)[: options.top], options.json)
        else:
            _print_masks(text, filled(told, tokenizer, text, options.top), options.json)
    return 0


def mark_in(text: str, tokenizer: Tokenizer) -> str | None:
    """How masks are written in this text; None where it has none."""
    if MARK in text:
        return MARK
    return LETTER if tokenizer.model.kind == "characters" and LETTER in text else None


@torch.no_grad()
def filled(model: Any, tokenizer: Tokenizer, text: str, top: int = 5) -> list[list[tuple[str, float]]]:
    """For each mask of a text the likeliest tokens with their probabilities; special tokens are never among them.

    Raises ConfigError where the text is too long for the model's positions.
    """
    first, *others = text.split(mark_in(text, tokenizer))
    ids: list[Any] = [tokenizer.cls_id, *tokenizer.encode(_before_mask(first, tokenizer) if others else first)]
    for number, part in enumerate(others, 1):
        ids.append(tokenizer.mask_id)
        ids += tokenizer.encode(_before_mask(part, tokenizer) if number < len(others) else part)
    ids = [i for i in (*ids, tokenizer.sep_id) if i is not None]
    x = _features(model, ids)
    masked = torch.tensor([i == tokenizer.mask_id for i in ids], device=x.device)
    logits = wide(model.head(x[0][masked])).cpu()  # (N, V)
    logits = logits[:, : tokenizer.vocab_size]
    logits[:, : tokenizer.text_first] = float("-inf")
    shares, tokens = logits.softmax(-1).topk(min(top, len(tokenizer.random_ids)), dim=-1)
    return [
        [(tokenizer.name(token), share) for token, share in zip(row, values, strict=True)]
        for row, values in zip(tokens.tolist(), shares.tolist(), strict=True)
    ]


@torch.no_grad()
def told_classes(classifier: Any, tokenizer: Tokenizer, text: str, classes: Sequence[str]) -> list[tuple[str, float]]:
    """Classes with their probabilities, the likeliest first."""
    ids = [i for i in (tokenizer.cls_id, *tokenizer.encode(text), tokenizer.sep_id) if i is not None]
    context = Context()
    logits = wide(classifier.class_logits(_features(classifier, ids), context))[0].cpu()  # (classes,)
    shares = logits.softmax(-1).tolist()
    return sorted(zip(classes, shares, strict=True), key=lambda pair: -pair[1])


def _features(model: Any, ids: list[int]) -> torch.Tensor:
    row = torch.tensor([ids], device=next(model.parameters()).device)
    try:
        return model.features(row, Context())  # (1, T, D)
    except (ConfigError, IndexError, ValueError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigError(f"a text of {len(ids)} tokens does not go through the model: {why}", "predict") from None


def _before_mask(part: str, tokenizer: Tokenizer) -> str:
    """A part that ends at a mask. Where the space before a word belongs to the word, it is the mask's to tell."""
    return part if tokenizer.model.kind == "characters" else part.removesuffix(" ")


def _marks(tokenizer: Tokenizer) -> str:
    return '"_" or [MASK]' if tokenizer.model.kind == "characters" else "[MASK]"


def _print_masks(text: str, found: list[list[tuple[str, float]]], as_json: bool) -> None:
    if as_json:
        masks = [[{"token": name, "probability": round(share, 6)} for name, share in row] for row in found]
        print(json.dumps({"text": text, "masks": masks}, ensure_ascii=False), flush=True)
        return
    for number, row in enumerate(found, 1):
        which = f" mask {number}" if len(found) > 1 else ""
        print(
            f"{text}{which}: " + "  ".join(f"{name.strip() or name!r} {share:.3f}" for name, share in row), flush=True
        )


def _print_classes(text: str, found: list[tuple[str, float]], as_json: bool) -> None:
    if as_json:
        classes = [{"class": name, "probability": round(share, 6)} for name, share in found]
        print(json.dumps({"text": text, "classes": classes}, ensure_ascii=False), flush=True)
    else:
        print(f"{text}: " + "  ".join(f"{name} {share:.3f}" for name, share in found), flush=True)


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser(USE)
    parser.add_argument("--prompt", action="append", default=[])
    parser.add_argument("--input")
    parser.add_argument("--top", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(list(argv))
    if options.top < 1:
        parser.error(f"--top should be at least 1, got {options.top}")
    if not options.prompt and options.input is None:
        parser.error("needs a text")
    return options


def _texts(options: argparse.Namespace) -> list[str]:
    """The prompts, then the lines of the file that are not empty."""
    texts = list(options.prompt)
    if options.input is not None:
        try:
            lines = Path(options.input).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "is no text in UTF-8"
            raise ConfigError(f"cannot read '{options.input}': {why}", "predict") from None
        texts += [line for line in lines if line.strip()]
    return texts
