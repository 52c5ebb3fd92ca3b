"""What differs between two models' choices, field by field."""

from __future__ import annotations

from typing import Any

from zoo.registry import Config, encode

__all__ = ["ABSENT", "config_differences"]

ABSENT = "-"
"""Stands for a field that the other model does not have."""


def config_differences(first: Config, second: Config) -> list[tuple[str, Any, Any]]:
    """(dotted field, first's plain value, second's) of all fields of two configs that are not equal.

    Where the two have other parts in one place, each part stands there as one text: its name, and in brackets what is
    not as the part has it by default.
    """
    rows: list[tuple[str, Any, Any]] = []
    if first.registered_name != second.registered_name:
        rows.append(("family", first.registered_name, second.registered_name))
    _compare("", first, second, rows)
    return rows


def _compare(place: str, first: Any, second: Any, rows: list[tuple[str, Any, Any]]) -> None:
    whole = not place  # models are compared field by field, whatever their families
    if isinstance(first, Config) and isinstance(second, Config) and (whole or type(first) is type(second)):
        for name in dict.fromkeys([*type(first).model_fields, *type(second).model_fields]):
            inside = f"{place}.{name}" if place else name
            _compare(inside, getattr(first, name, ABSENT), getattr(second, name, ABSENT), rows)
    elif first != second:
        rows.append((place, _brief(first), _brief(second)))


def _brief(value: Any) -> Any:
    if not isinstance(value, Config):
        return encode(value)
    fields = type(value).model_fields
    changed = {name: getattr(value, name) for name, field in fields.items() if getattr(value, name) != field.default}
    told = ", ".join(f"{name}={_brief(choice)}" for name, choice in changed.items())
    name = value.registered_name or type(value).__name__
    return f"{name} ({told})" if told else name
