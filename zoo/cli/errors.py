"""How the command line ends: one line instead of a traceback for whatever the user can put right.

Exit codes: 0 done, 1 a run failed, 2 a wrong choice, 130 interrupted, 141 the reader of our output went away.
ZOO_TRACEBACK=1 in the environment brings the tracebacks back.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any

__all__ = ["explain", "guarded", "refuse", "report"]


def refuse(text: str, where: str = "") -> Exception:
    """A ConfigError to raise. pydantic, which zoo.registry needs, is imported only when something is wrong."""
    from zoo.registry import ConfigError

    return ConfigError(text, where)


def report(text: str) -> None:
    """One `error:` line on stderr."""
    print(f"error: {' '.join(text.split())}", file=sys.stderr, flush=True)


def guarded(work: Callable[[], int]) -> int:
    """Run `work` and return its exit code; errors of the user become one line and a code."""
    try:
        code = work()
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr, flush=True)
        return 130
    except BrokenPipeError:
        # The interpreter flushes stdout once more at exit; it must not find the closed pipe.
        with contextlib.suppress(Exception):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:
        if os.environ.get("ZOO_TRACEBACK") == "1":
            raise
        told = explain(error)
        if told is None:
            raise
        text, code = told
        report(text)
        return code


def explain(error: BaseException) -> tuple[str, int] | None:
    """(line, exit code) of an error that the user can put right; None for a fault of the program."""
    family = {f"{base.__module__.partition('.')[0]}.{base.__name__}" for base in type(error).__mro__}
    if "zoo.ConfigError" in family:
        return str(error), 2
    if family & {"hydra.HydraException", "hydra.CompactHydraException", "omegaconf.OmegaConfBaseException"}:
        return _hydra(error), 2
    full = _disk_full(error)
    if full:
        return full, 1
    if isinstance(error, OSError) and error.errno is not None:
        return _os_error(error), 1
    return None


def _os_error(error: OSError) -> str:
    file = error.filename if error.filename is not None else ""
    return f"{file}: {error.strerror}" if file else str(error.strerror)


def _disk_full(error: BaseException | None) -> str:
    """A full disk also arrives as RuntimeError (torch) or SafetensorError, with only the text to tell it by."""
    while error is not None:
        if "No space left on device" in str(error) or "Disk quota exceeded" in str(error):
            return f"the disk is full: {str(error).splitlines()[0]}"
        error = error.__cause__ or error.__context__
    return ""


def _hydra(error: BaseException) -> str:
    """Hydra's and OmegaConf's reports as one line that names the key, the value, the choices and the nearest match."""
    from hydra.errors import MissingConfigException, OverrideParseException

    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, name = str(error.missing_cfg_file).rpartition("/")
        choices = list(error.options or ())
        if group and choices:
            return f"{group}: unknown {group} '{name}'{_nearest(name, choices)}; choices: {', '.join(choices)}"
        return f"no config '{error.missing_cfg_file}'"
    if isinstance(error, OverrideParseException):
        text = str(error.override)
        if text.count("'") % 2 or text.count('"') % 2:
            return f"cannot read {text}: a quote is not closed"
        hint = """values with spaces, commas, brackets or '=' need quotes, e.g. 'data.path="/a (b)"'"""
        return f"cannot read {text}: {hint}"
    first = _first(str(error))
    if first.startswith("Ambiguous value for argument"):
        written = first.partition("'")[2].partition("' 1. To use")[0]
        key, _, value = written.partition("=")
        return f"{written}: several values; add -m to run each of them, or write {key}=[{value}] for a list"
    cause: Any = error
    while getattr(cause, "parent_node", None) is None and cause.__cause__ is not None:
        cause = cause.__cause__
    key = getattr(cause, "full_key", None) or ""
    node = getattr(cause, "parent_node", None)
    if key and "is not in struct" in str(cause) and node is not None:
        keys = [str(choice) for choice in node]
        return f"{key}: unknown key{_nearest(key.rpartition('.')[2], keys)}; choices: {', '.join(keys)}"
    why = _first(str(cause))
    parts = [first] if why == first else [first, why]
    text = "; ".join(part.rstrip(".:") for part in parts)
    return f"{key}: {text}" if key and key not in text else text


def _first(text: str) -> str:
    """What matters of a message of many lines: all up to the search path, on one line."""
    lines = [line.strip() for line in text.splitlines()]
    kept: list[str] = []
    for line in lines:
        if line.startswith(
            ("Config search path", "full_key:", "object_type=", "reference_type=", "See http", "Set the")
        ):
            break
        if line:
            kept.append(line)
    return re.sub(r"\s+", " ", " ".join(kept))


def _nearest(name: str, choices: Iterable[str]) -> str:
    from zoo.registry import nearest

    return nearest(name, choices)
