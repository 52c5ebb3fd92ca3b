"""Data of the recipes: one file a set, registered under the kind "data", and the loader that feeds them.

A new set is one new file in this folder, or in a folder of it, with a registered config; `load_kinds` finds it. Nothing
heavy is imported here or at the head of a set's file: scikit-learn, datasets, tokenizers, timm and torchvision load
inside the functions that need them.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module

__all__ = ["load_kinds"]


def load_kinds() -> None:
    """Import every module of this folder and its folders, so that all data sets and tokenizers are registered."""
    for module in pkgutil.walk_packages(__path__, f"{__name__}."):
        import_module(module.name)
