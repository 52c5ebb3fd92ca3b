"""What differs between two models: in their choices, field by field, and in their counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zoo.registry import encode

__all__ = ["ABSENT", "config_differences"]

ABSENT = "-"
"""Stands for a field that the other side's part does not have."""


def config_differences(first: Any, second: Any) -> list[tuple[str, Any, Any]]:
    """(dotted field, first's plain value, second's) of all fields of two configs that are not equal.

    Where both sides have different parts in one place, their names stand under the place itself; a field that one of
    them alone has stands against `ABSENT`.
    """
    rows: list[tuple[str, Any, Any]] = []
    _compare("", encode(first), encode(second), rows)
    return rows


def _compare(place: str, first: Any, second: Any, rows: list[tuple[str, Any, Any]]) -> None:
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        for key in dict.fromkeys([*first, *second]):
            where = f"{place}.{key}" if place else str(key)
            where = place if key == "name" and place else where
            _compare(where, first.get(key, ABSENT), second.get(key, ABSENT), rows)
    elif first != second:
        rows.append((place, first, second))
