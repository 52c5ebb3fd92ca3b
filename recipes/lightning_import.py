"""Lightning's names, imported without the packages that it only probes for.

`import lightning` imports torchmetrics, and torchmetrics imports torchvision, transformers, scipy and matplotlib
wherever they are installed, though nothing here uses them: 4 to 5 seconds of CPU time at every start. While this
module imports Lightning they look absent; afterwards everything is as it was, so that a real `import transformers`
works and the availability flags of torchmetrics are computed anew when next asked for. Metrics whose definition
depends on such a package (LPIPS, PESQ ...) are then found in their own modules, not at the top of torchmetrics;
a program that wants them there imports torchmetrics before recipes.

torch's compiler front end is imported first and with nothing hidden, because it looks at the installed packages too
and remembers what it saw. It would be loaded by the first optimizer anyway.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError
from types import ModuleType
from typing import Any

import torch._dynamo  # noqa: F401

PROBED = frozenset({"torchvision", "torchaudio", "transformers", "scipy", "matplotlib", "librosa", "onnxruntime"})


class _Absent:
    """A finder that answers for some packages, and says that they do not exist."""

    def __init__(self, hidden: frozenset[str]) -> None:
        self.hidden = hidden

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec:
        if name.partition(".")[0] in self.hidden:
            raise ModuleNotFoundError(f"{name} is not needed while lightning is imported", name=name)
        return None  # type: ignore[return-value]  # the protocol's way to pass the question on


@contextmanager
def absent() -> Iterator[None]:
    """Within the block, packages in `PROBED` that are not loaded yet cannot be found. Nothing lasts beyond it."""
    import lightning_utilities.core.imports as probes

    if "torchmetrics" in sys.modules:  # too late to save anything
        yield
        return
    # A package that is loaded already, in part or whole, is found by the probes, and must be found by the imports too.
    hidden = PROBED - set(sys.modules)
    finder, version = _Absent(hidden), probes._version

    def asked_version(name: str) -> str:
        if name in hidden:
            raise PackageNotFoundError(name)
        return version(name)

    sys.meta_path.insert(0, finder)  # type: ignore[arg-type]
    probes._version = asked_version  # type: ignore[assignment]
    try:
        yield
    finally:
        probes._version = version
        sys.meta_path.remove(finder)  # type: ignore[arg-type]
        probes.package_available.cache_clear()
        probes.module_available.cache_clear()
        _forget(probes.RequirementCache)


def _forget(kind: type[Any]) -> None:
    """Drop the remembered answers about hidden packages, so that the next question finds the truth."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ("torchmetrics", "lightning"):
            for value in list(vars(module).values()):
                if isinstance(value, kind) and _package(value) in PROBED:
                    value.__dict__.pop("available", None)


def _package(requirement: Any) -> str:
    text = str(requirement.requirement or requirement.module or "")
    return text.partition(".")[0].partition(">")[0].partition("<")[0].partition("=")[0]


with absent():
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.plugins.io import TorchCheckpointIO

__all__ = ["Callback", "LightningModule", "TorchCheckpointIO", "Trainer", "absent"]
