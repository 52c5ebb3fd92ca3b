"""One file a family: its cases, its peers and its targets. A file put here is on the command line by its name."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import Any

from benchmarks.speed.arms import Family

__all__ = ["load", "names"]


def names() -> list[str]:
    """Families that can be measured, without importing them."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def load(name: str) -> Family[Any]:
    """The `FAMILY` of one file here; a dotted name is a module of the user's own, such as `my.package.family`."""
    return import_module(name if "." in name else f"{__name__}.{name}").FAMILY
