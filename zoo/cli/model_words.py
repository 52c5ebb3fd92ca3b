"""`key=value` words that name a model: `model=gpt mixer=mamba2 dim=256 ffn.hidden=512`.

`model` is a family or a preset, or a folder that zoo.save_pretrained wrote; all other words change its fields, by
dotted keys, with or without `model.` in front, as in a run. Values are YAML: 8, 0.5, true, null, [8, 8], {name: gla}.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zoo.cli.errors import refuse
from zoo.cli.settings import join

__all__ = ["model_config", "of_one_model", "split", "whole_number"]


def split(words: Sequence[str], own: Sequence[str]) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """The verb's own keys with their values, and the rest as pairs in their order. Raises ConfigError."""
    values: dict[str, str] = {}
    rest: list[tuple[str, str]] = []
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise refuse(f"'{word}' is not key=value; keys: {', '.join(own)}, and fields of the model")
        if not value:
            raise refuse("has no value", key)
        if key not in own:
            # no field of a model is called nearly as a verb's own key
            if near := difflib.get_close_matches(key, own, n=1, cutoff=0.8):
                told = f"unknown key, did you mean '{near[0]}'? keys: {', '.join(own)}, and fields of the model"
                raise refuse(told, key)
            rest.append((key, value))
        elif key in values:
            raise refuse("given twice", key)
        else:
            values[key] = value
    return values, rest


def of_one_model(words: Sequence[str], own: Sequence[str]) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """`split`, where `model` is one of the verb's own keys and has to be there. Raises ConfigError."""
    values, rest = split(words, own)
    if "model" not in values:
        raise refuse("is required: a family or a preset, e.g. model=gpt2", "model")
    return values, rest


def whole_number(values: Mapping[str, str], key: str, default: int | None = None) -> int | None:
    """A whole number of at least 1. Raises ConfigError."""
    if key not in values:
        return default
    text = values[key].replace("_", "").replace(",", "")
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise refuse(f"should be a whole number of at least 1, got '{values[key]}'", key)
    return int(text)


def model_config(name: str, changes: Sequence[tuple[str, str]] = ()) -> Any:
    """The config of a family, preset or saved model, with changed fields. Raises ConfigError."""
    import yaml

    import zoo.library  # noqa: F401  registers every part
    from zoo.registry import decode

    file = Path(name) / "config.json"
    plain: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {"family": name}
    for key, text in changes:
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError:
            raise refuse(f"cannot read '{text}'; values are numbers, names, [lists] or {{dicts}}", key) from None
        path = key.removeprefix("model.").split(".")
        for part in reversed(path[1:]):
            value = {part: value}
        plain = join(plain, {path[0]: value})
    return decode("model", plain, "model")
