"""Renaming of weights by tables: modules of a block, and modules that stand once."""

from __future__ import annotations

import re
from collections.abc import Mapping

from zoo.registry import ConfigError

__all__ = ["inverse", "rename"]


def inverse(table: Mapping[str, str]) -> dict[str, str]:
    """The table read from right to left."""
    return {new: old for old, new in table.items()}


def rename(name: str, block: Mapping[str, str], other: Mapping[str, str], old: str, new: str) -> str:
    """`{old}.{layer}.{module}.{kind}` by the block's table, `{module}.{kind}` by the other.

    Raises ConfigError for a name that neither table holds: a silent rest would be a model of another shape.
    """
    module, _, kind = name.rpartition(".")
    match = re.match(rf"{re.escape(old)}\.(\d+)\.(.+)$", module)
    if match and match[2] in block:
        return f"{new}.{match[1]}.{block[match[2]]}.{kind}"
    if module in other:
        return f"{other[module]}.{kind}"
    raise ConfigError(f"weight '{name}' has no counterpart; is it a model of the same family and shape?")
