"""flash-linear-attention's plain PyTorch operators, read from their files.

The package itself is not imported: its kernels need a GPU, and transformers, where it finds fla, takes those kernels on
a CPU too and fails. So it is installed where Python does not look, and the environment names the place:

    pip install --no-deps --target FOLDER fla-core
    FLA_FOLDER=FOLDER python -m benchmarks.speed mixers
"""

from __future__ import annotations

import os
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

__all__ = ["INSTALL", "fla_naive"]

INSTALL = "pip install --no-deps --target FOLDER fla-core, then set FLA_FOLDER=FOLDER"


@cache
def fla_naive(operator: str) -> ModuleType:
    """fla/ops/<operator>/naive.py. Raises ImportError where it is not there."""
    folder = os.environ.get("FLA_FOLDER")
    if not folder:
        raise ImportError(INSTALL)
    path = Path(folder, "fla", "ops", operator, "naive.py")
    spec = spec_from_file_location(f"fla_naive_{operator.replace('/', '_')}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ImportError(f"{path} is not there: {INSTALL}")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
