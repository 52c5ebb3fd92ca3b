"""Answers for a user's own texts: one line for each."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recipes.arguments import Parser
from recipes.seq2seq.generation import answer_texts
from recipes.seq2seq.vocabulary import PairVocabulary
from zoo.registry import ConfigError

__all__ = ["answer"]

USAGE = "use RUN_DIR TEXT ... [--input FILE] [--beams N] [--length-penalty X] [--json]"
TOGETHER = 256


def answer(model: Any, vocabulary: PairVocabulary, answering: Any, argv: Sequence[str]) -> int:
    """Print the answer to each text in `argv`, then to each line of --input FILE ("-": what is piped in).

    An empty line gives an empty line, so that lines of answers and of the file stay side by side. --beams N searches
    with beams; --json prints {"source", "answer"} a line. Returns 0. Raises ConfigError for wrong words and for a file
    that cannot be read.
    """
    options = _parse(argv)
    texts = [*options.texts, *(_lines(options.input) if options.input is not None else [])]
    if not texts:
        raise ConfigError(f"nothing to answer; {USAGE}", "predict")
    penalty = answering.length_penalty if options.length_penalty is None else options.length_penalty
    search = {"most": answering.answer_tokens, "beams": options.beams, "length_penalty": penalty}
    for start in range(0, len(texts), TOGETHER):
        part = texts[start : start + TOGETHER]
        asked = [text.strip().lower() if answering.lowercase else text.strip() for text in part]
        made = answer_texts(model, vocabulary, asked, limit=answering.max_tokens, **search)
        for text, found in zip(part, made, strict=True):
            told = {"source": text, "answer": found}
            print(json.dumps(told, ensure_ascii=False) if options.json else found, flush=True)
    return 0


def _lines(file: str) -> list[str]:
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read '{file}': {error.strerror or error}", "--input") from None
    except UnicodeDecodeError:
        raise ConfigError(f"'{file}' is no text in UTF-8", "--input") from None
    return text.splitlines()


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser(USAGE)
    parser.add_argument("texts", nargs="*", metavar="TEXT")
    parser.add_argument("--input")
    parser.add_argument("--beams", type=int, default=1)
    parser.add_argument("--length-penalty", type=float)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_intermixed_args(list(argv))
    if options.beams < 1:
        parser.error(f"--beams should be at least 1, got {options.beams}")
    return options
