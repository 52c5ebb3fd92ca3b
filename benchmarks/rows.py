"""Rows on disk: one JSON object a line, appended by one writer, so that a kill at any moment loses no finished row.

A line is written at once, flushed and synced before the next job counts as done. A writer that is killed in the middle
of a line leaves it torn; readers pass over it, and the next writer cuts it off. Of rows with one key the last counts.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from benchmarks.suites.api import Arm, Job, Outcome, Row
from zoo.registry import ConfigError

__all__ = ["RowFile", "job_of", "outcome_of", "read_rows", "row_of"]


def job_of(plain: Mapping[str, Any]) -> Job:
    """A job from its plain values. Raises KeyError or TypeError where fields are missing or unknown."""
    return Job(**{**plain, "arm": Arm(**plain["arm"])})


def outcome_of(plain: Mapping[str, Any] | None) -> Outcome | None:
    """An outcome from its plain values. Raises TypeError where fields are missing or unknown."""
    return None if plain is None else Outcome(**plain)


def row_of(plain: Mapping[str, Any]) -> Row:
    """A row from its line. Raises KeyError or TypeError where fields are missing or unknown."""
    return Row(**{**plain, "job": job_of(plain["job"]), "outcome": outcome_of(plain["outcome"])})


def lines_of(path: Path) -> Iterator[tuple[int, Row | Exception]]:
    """The number of each line that is not blank, and its row or why it is none: a killed writer leaves half of one."""
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        if line.strip():
            try:
                yield number, row_of(json.loads(line))
            except (ValueError, KeyError, TypeError) as error:
                yield number, error


def read_rows(path: Path) -> dict[str, Row]:
    """Rows by key, the last of each; lines that are none are passed over, and no file has no rows."""
    if not path.exists():
        return {}
    return {row.key: row for _, row in lines_of(path) if isinstance(row, Row)}


class RowFile:
    """The one writer of a file of rows. Raises ConfigError for a second one, and for a place that cannot be written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: IO[bytes] = path.open("a+b")
        except OSError as error:
            raise ConfigError(f"cannot write {path}: {error.strerror}; choose another folder", "out") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise ConfigError(f"another run writes {path}; wait for it, or choose another folder", "out") from None
        self._cut_torn_line()
        self.rows = read_rows(path)

    def append(self, row: Row) -> None:
        """Write one row and wait until it is on the disk."""
        self._file.write(json.dumps(asdict(row), separators=(",", ":")).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self.rows[row.key] = row

    def _cut_torn_line(self) -> None:
        self._file.seek(0)
        content = self._file.read()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            self._file.truncate(whole)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
