"""What must be known to hear with an exported model, beside its weights: the tokenizer, and how audio is cut."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from pydantic import Field

from recipes.data.text.tokenizers import Tokenizer
from recipes.recipe import decode_as
from zoo.files import write_text
from zoo.registry import Config, ConfigError, encode

__all__ = ["Answering", "load_answering", "save_answering"]

FILE, WORDS = "answering.json", "words"


class Answering(Config):
    """How a user's audio is read."""

    answer_tokens: Annotated[int, Field(ge=1)]
    """Most tokens of a window."""
    seconds: Annotated[float, Field(gt=0)]
    """Longest window: that of the longest training clip."""
    floor: Annotated[float, Field(gt=0)] = 8.0
    """Of the log-mel features."""


def save_answering(tokenizer: Tokenizer, answering: Answering, folder: Path) -> None:
    """Write both beside the model."""
    tokenizer.save(folder / WORDS)
    write_text(folder / FILE, json.dumps(encode(answering), indent=2) + "\n")


def load_answering(folder: Path) -> tuple[Tokenizer, Answering]:
    """What `save_answering` wrote. Raises ConfigError."""
    try:
        held = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise ConfigError(f"'{folder / FILE}' is missing or damaged; train the run anew", "checkpoint") from None
    return Tokenizer.load(folder / WORDS), decode_as(Answering, held, FILE)
