"""What every measurement leaves behind: JSON that says on what machine it was taken, written whole or not at all."""

from __future__ import annotations

import json
import os
import platform
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.console import Console

from zoo.files import write_text

__all__ = ["console", "header", "results", "write_json"]

PACKAGES = ("torch", "timm", "transformers", "lightning", "numpy")


def results() -> Path:
    """benchmarks/results in a checkout, the working directory where an installed wheel runs."""
    folder = Path(__file__).resolve().parent
    return folder / "results" if folder.parent.name != "_bundle" else Path.cwd()


def header(command: str, threads: int, device: str = "cpu") -> dict[str, Any]:
    """Command, time, machine and versions."""
    found: dict[str, Any] = {
        "command": command,
        "taken": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "load": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
        "system": platform.platform(),
        "threads": threads,
        "device": device,
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in PACKAGES},
    }
    if device.startswith("cuda"):
        import torch

        found["gpu"] = torch.cuda.get_device_name()
    return found


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Atomically: a full disk or an interrupt leaves an earlier file whole. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(values, indent=1) + "\n")


def console() -> Console:
    """Wide enough for a table where the output is no terminal."""
    return Console(width=None if sys.stdout.isatty() else 190, highlight=False)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
