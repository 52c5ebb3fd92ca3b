"""`python -m zoo diff model=gpt2 model=llama3_8b`: what differs between two models."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from zoo.cli.errors import guarded, refuse
from zoo.cli.model_words import model_config, split, whole_number

__all__ = ["main"]

USAGE = """\
Show what differs between two models: fields of their configs, and their counts.

  python -m zoo diff model=gpt2 model=llama3_8b
  python -m zoo diff model=gpt dim=128 model=gpt dim=128 mixer=mamba2 length=64

model=      twice: a family, a preset, or a folder that zoo.save_pretrained wrote
length=     tokens of a row, for FLOPs and state (1000)
KEY=VALUE   a field of the model named before it
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line (without the program's name; default: this process's) and return its exit code."""
    return guarded(lambda: _main(sys.argv[1:] if argv is None else argv))


def _main(words: Sequence[str]) -> int:
    if not words or "-h" in words or "--help" in words:
        print(USAGE, end="")
        return 0 if words else 2
    values, pairs = split(words, ("length",))
    named: list[tuple[str, list[tuple[str, str]]]] = []
    for key, value in pairs:
        if key == "model":
            named.append((value, []))
        elif not named:
            raise refuse("stands before the first model=; fields follow the model they change", key)
        else:
            named[-1][1].append((key, value))
    if len(named) != 2:
        raise refuse(f"two models are compared, got {len(named)}, e.g. model=gpt2 model=llama3_8b", "model")
    length = whole_number(values, "length")
    first, second = (model_config(name, changes) for name, changes in named)
    titles = [" ".join([name, *(f"{key}={value}" for key, value in changes)]) for name, changes in named]
    from zoo.inspection.difference import config_differences

    changed = [(place, _text(one), _text(other)) for place, one, other in config_differences(first, second)]
    counted = _counts(first, second, length)
    if not changed and not counted:
        print("nothing differs")
        return 0
    rows = [("", *titles), *changed, ("", "", ""), *counted]
    wide = [max(len(row[column]) for row in rows) for column in range(2)]
    for place, one, other in rows:
        print(f"{place:<{wide[0]}}  {one:<{wide[1]}}  {other}".rstrip())
    return 0


def _text(value: Any) -> str:
    return "none" if value is None else str(value)


def _counts(first: Any, second: Any, length: int | None) -> list[tuple[str, str, str]]:
    from zoo.inspection.count import counted_by_length, shadow
    from zoo.registry import ConfigError

    found = []
    for config in (first, second):
        model = shadow(config).eval()
        try:
            found.append(counted_by_length(model, 1, length, None))
        except ConfigError:
            if length is not None and "max_len" in type(config).model_fields:
                raise
            # an image's length, and a default that is too long for the model, come from its config
            found.append(counted_by_length(model, 1, None, None))
    table = {
        "tokens of a row": "tokens",
        "parameters": "params",
        "without embeddings": "params_non_embedding",
        "active": "params_active",
        "FLOPs forward": "flops_forward",
        "FLOPs decoding step": "flops_step",
        "state bytes": "state_bytes",
        "activation bytes": "activation_bytes",
        "attention overtakes at": "crossover",
    }
    shown = {title: [getattr(one, name) for one in found] for title, name in table.items()}
    return [
        (title, *("-" if value is None else f"{value:,}" for value in pair))  # type: ignore[misc]
        for title, pair in shown.items()
        if pair[0] != pair[1]
    ]
