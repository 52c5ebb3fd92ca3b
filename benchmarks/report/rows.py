"""Rows as the runner leaves them, `<folder>/<size>/<suite>.jsonl`, and as one flat table for pandas and Parquet."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.rows import lines_of
from benchmarks.suites.api import Row

__all__ = ["flat", "read"]


def read(folder: Path) -> tuple[list[Row], list[str]]:
    """All rows below a folder, and one sentence for every line that is none.

    Of rows with one key the last is taken, as the runner does when a crashed job runs again.
    """
    rows: dict[str, Row] = {}
    problems = []
    for path in sorted(folder.glob("*/*.jsonl")):
        for number, row in lines_of(path):
            if isinstance(row, Exception):
                problems.append(f"{path.parent.name}/{path.name}, line {number}, is no row: {_short(row)}")
                continue
            rows.pop(row.key, None)
            rows[row.key] = row
    return list(rows.values()), problems


def flat(rows: Sequence[Row]) -> pd.DataFrame:
    """A line for each row, a column for each figure; metrics as `metric/<name>`, everything nested as JSON."""
    lines = []
    for row in rows:
        job, found = row.job, row.outcome
        line: dict[str, Any] = {
            "key": row.key,
            "suite": job.suite,
            "version": job.version,
            "task": job.task,
            "size": job.size,
            "arm": job.arm.name,
            "mixer": _json(job.arm.mixer),
            "options": _json(dict(job.arm.options)),
            "seed": job.seed,
            "lr": job.lr,
            "role": job.role,
            "threads": job.threads,
            "settings": _json(dict(job.settings)),
            "status": row.status,
            "message": row.message,
            "seconds": row.seconds,
            "cpu_seconds": row.cpu_seconds,
            "peak_bytes": row.peak_bytes,
            "command": row.command,
            "taken": row.taken,
            "machine": _json(dict(row.machine)),
        }
        if found is not None:
            line |= {
                "params": found.params,
                "params_non_embedding": found.params_non_embedding,
                "flops_per_token": found.flops_per_token,
                "state_bytes": found.state_bytes,
                "matched": _json(dict(found.matched)),
                "curves": _json({name: list(values) for name, values in found.curves.items()}),
                "text": found.text,
            }
            line |= {f"metric/{name}": float(value) for name, value in found.metrics.items()}
        lines.append(line)
    frame = pd.DataFrame(lines)
    counts = ("params", "params_non_embedding", "state_bytes")
    return frame.astype({name: "Int64" for name in counts if name in frame})  # whole numbers, even beside a refusal


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
