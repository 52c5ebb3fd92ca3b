"""Which kernel an operator takes. Where its tensors lie decides, never what can be imported.

    CPU     loops compiled by numba, where it is installed: pip install 'architecture-zoo[fast]'
    CUDA    a kernel library, where one is installed that knows the operator and the dtype
    else    plain PyTorch, which also serves torch.compile, torch.export and torch.func

The environment variable ZOO_KERNELS=torch, read at every call, turns all kernels off. `python -m zoo list kernels`
shows what this machine takes and why.
"""

from __future__ import annotations

import functools
import importlib
import os
from dataclasses import dataclass

import torch

__all__ = ["KERNELS", "Kernel", "chosen", "explain"]

HALF = (torch.bfloat16, torch.float16)
ANY = (torch.float32, torch.float64, *HALF)


@dataclass(frozen=True)
class Kernel:
    """What an operator takes on one kind of device."""

    operator: str
    device: str
    path: str
    """What `chosen` answers, and the module that has to be importable."""
    install: str
    """What to type where it is not."""
    dtypes: tuple[torch.dtype, ...]
    """Of the inputs; others take plain PyTorch."""
    what: str


KERNELS = (
    Kernel("recurrence", "cpu", "numba", "'architecture-zoo[fast]'", ANY, "compiled loops over tokens"),
    Kernel("recurrence", "cuda", "fla", "'flash-linear-attention>=0.4'", HALF, "chunked Triton kernels"),
    Kernel("selective_scan", "cpu", "numba", "'architecture-zoo[fast]'", ANY, "compiled loops over tokens"),
    Kernel("selective_scan", "cuda", "mamba_ssm", "mamba-ssm", (torch.float32,), "the authors' fused scan"),
)
_BY_PLACE = {(kernel.operator, kernel.device): kernel for kernel in KERNELS}


def chosen(operator: str, device: torch.device, dtype: torch.dtype) -> str:
    """The path of `operator` for inputs on `device` in `dtype`: "torch", or the `path` of an entry of KERNELS."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active() or _off():
        return "torch"
    kernel = _BY_PLACE.get((operator, device.type))
    if kernel is None or dtype not in kernel.dtypes or _trouble(kernel.path):
        return "torch"
    return kernel.path


def explain() -> list[tuple[str, str, str, str]]:
    """(operator, device, path, why) of all operators on a CPU and on CUDA, as this machine would take them."""
    return [(kernel.operator, kernel.device, *_explained(kernel)) for kernel in KERNELS]


def _explained(kernel: Kernel) -> tuple[str, str]:
    if _off():
        return "torch", "ZOO_KERNELS=torch"
    if kernel.device == "cuda" and not torch.cuda.is_available():
        return "torch", f"no CUDA device, where {kernel.path} would be taken"
    trouble = _trouble(kernel.path)
    if trouble:
        return "torch", f"{trouble}: pip install {kernel.install}"
    dtypes = ", ".join(str(dtype).removeprefix("torch.") for dtype in kernel.dtypes)
    return kernel.path, f"{kernel.what}, for {dtypes}"


def _off() -> bool:
    switch = os.environ.get("ZOO_KERNELS", "")
    if switch not in ("", "torch"):
        raise ValueError(f"ZOO_KERNELS should be 'torch' or not be set, got '{switch}'")
    return switch == "torch"


@functools.cache
def _trouble(module: str) -> str:
    """Why a module cannot be used; empty if it can."""
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        return f"{module} is not installed" if error.name == module else f"{module} cannot be imported ({error})"
    except Exception as error:
        return f"{module} cannot be imported ({error})"
    return ""
