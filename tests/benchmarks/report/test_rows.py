"""Rows come back as they were written, and a half-written line costs that line alone."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd

from benchmarks.report.rows import flat, read
from tests.benchmarks.report.made import many, row, write


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    rows = [row("attention", 0), row("kda", 1, None), row("rwkv7", status="refused", message="too narrow")]
    found, problems = read(write(rows, tmp_path))
    assert found == rows and problems == []
    assert [one.job.key for one in found] == [one.key for one in rows]


def test_half_a_line_is_told_and_the_others_are_read(tmp_path: Path) -> None:
    write([row("attention", 0), row("attention", 1)], tmp_path)
    path = tmp_path / "small" / "made.jsonl"
    path.write_text(path.read_text() + '{"key": "abc", "job": {"suite"' + "\n" + '{"key": 1}\n')
    found, problems = read(tmp_path)
    assert [one.job.seed for one in found] == [0, 1]
    assert [problem.partition(",")[0] for problem in problems] == ["small/made.jsonl"] * 2
    assert "line 3" in problems[0] and "line 4" in problems[1]


def test_of_rows_with_one_key_the_last_is_taken(tmp_path: Path) -> None:
    rows = [row("attention", status="crashed", message="killed"), row("attention", metrics={"accuracy": 0.75})]
    assert rows[0].key == rows[1].key
    found, _ = read(write(rows, tmp_path))
    assert [one.status for one in found] == ["ok"]


def test_the_flat_table_keeps_every_row_and_figure(tmp_path: Path) -> None:
    rows = many()
    flat(rows).to_parquet(tmp_path / "results.parquet", index=False)
    back = pd.read_parquet(tmp_path / "results.parquet")
    assert len(back) == len(rows)
    assert back["metric/accuracy"].notna().sum() == sum(
        "accuracy" in one.outcome.metrics and one.outcome.metrics["accuracy"] == one.outcome.metrics["accuracy"]
        for one in rows
        if one.outcome
    )
    assert set(back["status"]) == {"ok", "refused", "crashed", "timed out"}
    refused = back[back["status"] == "refused"]
    assert refused["params"].isna().all() and (back["params"].dropna() > 0).all()
    assert json.loads(back["settings"][0]) == {"dim": 64, "steps": 1000}
