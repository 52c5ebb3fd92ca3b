"""`key=value` words of a command line, strictly: every mistake is one line that names the key and the choices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from zoo.registry import nearest

__all__ = ["WordsError", "asks_help", "choice", "integer", "split"]


class WordsError(ValueError):
    """A wrong word on the command line, told in one line."""


def asks_help(words: Sequence[str]) -> bool:
    """Whether one of the words asks for the command's own text."""
    return any(word in ("-h", "--help") for word in words)


def split(words: Sequence[str], keys: Sequence[str]) -> dict[str, str]:
    """Values by key. Raises WordsError for a word without `=`, an unknown key, a key twice, or an empty value."""
    values: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise WordsError(f"'{word}' is not key=value; keys: {', '.join(keys)}")
        if key not in keys:
            raise WordsError(f"unknown key '{key}'{nearest(key, keys)}; choices: {', '.join(keys)}")
        if key in values:
            raise WordsError(f"{key}: given twice")
        if not value:
            raise WordsError(f"{key}: has no value")
        values[key] = value
    return values


def integer(values: Mapping[str, str], key: str, default: int, low: int, high: int) -> int:
    """A whole number from low to high. Raises WordsError."""
    text = values.get(key, str(default))
    if not text.isascii() or not text.isdigit() or not low <= int(text) <= high:
        raise WordsError(f"{key}: should be a whole number from {low} to {high}, got '{text}'")
    return int(text)


def choice(values: Mapping[str, str], key: str, default: str, choices: Sequence[str]) -> str:
    """One of `choices`. Raises WordsError."""
    text = values.get(key, default)
    if text not in choices:
        raise WordsError(f"{key}: should be {' or '.join(choices)}, got '{text}'{nearest(text, choices)}")
    return text
