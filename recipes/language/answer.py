"""Text that goes on from a user's prompt, printed as it comes."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from recipes.arguments import Parser
from recipes.data.text.tokenizers import Tokenizer
from zoo.registry import ConfigError

__all__ = ["answer", "continuation"]

USAGE = (
    "use RUN_DIR --prompt TEXT [--prompt TEXT ...] [--input FILE] [--max-new-tokens N] [--greedy] [--temperature X] "
    "[--top-k N] [--top-p X] [--min-p X] [--repetition-penalty X] [--beams N] [--stop TEXT] [--seed N] [--json]"
)


def answer(model: Any, tokenizer: Tokenizer, argv: Sequence[str]) -> int:
    """Go on from each prompt. Prints the prompt and what follows; with --json one object a line.

    Sampling is the default, from the seed, so that the same words give the same text. Raises ConfigError.
    """
    options = _parse(argv)
    prompts = list(options.prompt)
    if options.input is not None:
        try:
            prompts += Path(options.input).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read '{options.input}': {error}", "--input") from None
    if not prompts:
        raise ConfigError(USAGE, "predict")
    choices: dict[str, Any] = {name: getattr(options, name) for name in SAMPLING if getattr(options, name) is not None}
    if options.stop:
        choices["stop"] = tuple(tuple(tokenizer.encode(text)) for text in options.stop)
    if options.beams is not None:
        choices["beams"] = options.beams
    elif not options.greedy:
        choices = {"temperature": 1.0, **choices}
    for number, prompt in enumerate(prompts):
        drawn = {"seed": options.seed + number} if "temperature" in choices else {}
        if options.json:
            text = continuation(model, tokenizer, prompt, **drawn, **choices)
            print(json.dumps({"prompt": prompt, "continuation": text}, ensure_ascii=False), flush=True)
            continue
        printer = _Printer(tokenizer)
        sys.stdout.write(prompt)
        stream = {} if options.beams is not None else {"stream": printer}  # beams end all at once
        printer.show(continuation(model, tokenizer, prompt, **stream, **drawn, **choices))
        print(flush=True)
    return 0


SAMPLING = ("max_new_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty")


def continuation(model: Any, tokenizer: Tokenizer, prompt: str, **choices: Any) -> str:
    """What the model writes after a prompt, up to an end-of-text token. `choices` are those of zoo.generate."""
    from zoo.generation import generate

    made = generate(model, [_start(tokenizer, prompt)], eos_id=tokenizer.eos_id, **choices)
    return tokenizer.decode(made.new[0].tolist())


class _Printer:
    """Prints text as its tokens come; a character of several tokens when it is whole."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.ids: list[int] = []
        self.shown = ""

    def __call__(self, tokens: torch.Tensor) -> None:
        self.ids += [token for token in tokens.tolist() if token >= 0]
        text = self.tokenizer.decode(self.ids)
        if not text.endswith("\ufffd"):
            self.show(text)

    def show(self, text: str) -> None:
        sys.stdout.write(text[len(self.shown) :])
        sys.stdout.flush()
        self.shown = text


def _start(tokenizer: Tokenizer, prompt: str) -> torch.Tensor:
    """Ids of a prompt, as a document begins in training."""
    before = [] if tokenizer.bos_id is None else [tokenizer.bos_id]
    return torch.tensor(before + tokenizer.encode(prompt), dtype=torch.long)


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser(USAGE)
    parser.add_argument("--prompt", action="append", default=[])
    parser.add_argument("--input")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--greedy", action="store_true")
    parser.add_argument("--temperature", type=float)
    parser.add_argument("--top-k", type=int)
    parser.add_argument("--top-p", type=float)
    parser.add_argument("--min-p", type=float)
    parser.add_argument("--repetition-penalty", type=float)
    parser.add_argument("--beams", type=int)
    parser.add_argument("--stop", action="append", default=[])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(list(argv))
