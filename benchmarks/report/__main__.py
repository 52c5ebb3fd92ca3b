"""Write the report of all rows: results.parquet, tables, figures, and one page to look at without a network.

    python -m benchmarks.report [rows=FOLDER] [out=FOLDER]

rows=FOLDER   where benchmarks.run wrote <size>/<suite>.jsonl; default: benchmarks/results/suites
out=FOLDER    default: benchmarks/results/report
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.files import results
from benchmarks.report.build import build
from benchmarks.report.claims import CLAIMS
from benchmarks.report.comparisons import suites_of
from benchmarks.report.rows import read
from benchmarks.words import WordsError, asks_help, split

__all__ = ["main"]

KEYS = ("rows", "out")


def main(words: Sequence[str] | None = None) -> int:
    """Read the rows, write the report."""
    words = list(sys.argv[1:] if words is None else words)
    if asks_help(words):
        print(__doc__)
        return 0
    try:
        values = split(words, KEYS)
        folder = Path(values.get("rows", results() / "suites"))
        out = Path(values.get("out", results() / "report"))
        if not folder.is_dir():
            raise WordsError(
                f"rows: '{folder}' is no folder; run `python -m benchmarks.run suite=recall size=smoke` first"
            )
        rows, problems = read(folder)
        if not rows:
            raise WordsError(f"rows: no row in '{folder}' (looked for <size>/<suite>.jsonl)")
        files = build(rows, suites_of(rows), CLAIMS, problems).write(out)
    except (WordsError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for problem in problems:
        print(f"warning: {problem}", file=sys.stderr)
    print(f"{len(rows)} rows, {len(files)} files: {out / 'index.html'}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
