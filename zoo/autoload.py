"""Import every module of a package, so that adding a file is all it takes to register a part."""

from __future__ import annotations

import pkgutil
from importlib import import_module

__all__ = ["import_all"]


def import_all(package: str) -> None:
    """Import the modules and sub-packages of `package`."""
    path = import_module(package).__path__
    for found in pkgutil.walk_packages(path, prefix=f"{package}."):
        import_module(found.name)
