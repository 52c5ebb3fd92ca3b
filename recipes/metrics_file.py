"""metrics.csv: one row a log, a column a metric, whole whatever happens to the process.

A row is one write at the end of the file. A new metric adds a column, for which the file is written anew beside and
moved over. A row that a killed process left half-written is dropped when the file is opened again. Resuming from
step N drops the rows after N, which the resumed run writes again, and keeps all others.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from zoo.files import write_text

Row = dict[str, float]


class MetricsFile:
    """The file at `path`, created at the first row. Rows are (step, metrics); steps never go back."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.columns: list[str] = []
        if path.exists():
            text = path.read_text(encoding="utf-8")
            whole = text[: text.rfind("\n") + 1]
            if whole != text:
                write_text(path, whole)
            self.columns = next(csv.reader(io.StringIO(whole)), [])

    def append(self, step: int, values: Mapping[str, float]) -> None:
        """Add a row. Raises OSError where it cannot be written, and then leaves the file as it was."""
        row = {"step": step, **values}
        new = [name for name in row if name not in self.columns]
        if new:
            rows = read_rows(self.path)
            self._rewrite([*rows, {name: float(value) for name, value in row.items()}], self.columns + new)
            return
        size = self.path.stat().st_size
        try:
            with self.path.open("ab") as file:
                file.write(self._line(row).encode())
        except OSError:
            with suppress(OSError):
                os.truncate(self.path, size)
            raise

    def truncate(self, step: int) -> None:
        """Drop the rows after `step`."""
        rows = read_rows(self.path)
        kept = [row for row in rows if row["step"] <= step]
        if len(kept) < len(rows):
            self._rewrite(kept, self.columns)

    def _rewrite(self, rows: list[Row], columns: list[str]) -> None:
        before, self.columns = self.columns, columns
        try:
            write_text(self.path, ",".join(columns) + "\n" + "".join(self._line(row) for row in rows))
        except OSError:
            self.columns = before
            raise

    def _line(self, row: Mapping[str, float]) -> str:
        return ",".join(_cell(row[name]) if name in row else "" for name in self.columns) + "\n"


class MetricsSink:
    """A metrics file that is opened at the first row: nothing is written while a run is being prepared."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: MetricsFile | None = None

    def append(self, step: int, values: Mapping[str, float]) -> None:
        if self._file is None:
            self._file = MetricsFile(self.path)
        self._file.append(step, values)


def read_rows(path: Path) -> list[Row]:
    """The rows of a metrics file, without empty cells; none where there is no file."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        table = list(csv.reader(file))
    rows = [{name: float(cell) for name, cell in zip(table[0], line, strict=False) if cell} for line in table[1:]]
    return [row for row in rows if "step" in row]


def _cell(value: float) -> str:
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))
