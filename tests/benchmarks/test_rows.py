"""Rows on disk outlive whatever happens to their writer."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks.rows import RowFile, job_of, read_rows, row_of
from benchmarks.suites.api import Arm, Job, Outcome, Row
from zoo.registry import ConfigError


def made(seed: int, accuracy: float = 0.5) -> Row:
    arm = Arm(name="a", mixer={"name": "delta", "conv": 0}, options={"depth": 1})
    settings = {"dim": 4, "periods": [1, 2]}
    job = Job(
        suite="s", version=1, task="t", size="small", arm=arm, seed=seed, lr=1e-3, role="reported", settings=settings
    )
    outcome = Outcome(
        metrics={"accuracy": accuracy}, params=1, params_non_embedding=1, flops_per_token=2.5, state_bytes=3
    )
    return Row(
        key=job.key,
        job=job,
        status="ok",
        message="",
        outcome=outcome,
        seconds=1.0,
        cpu_seconds=0.5,
        peak_bytes=9,
        command="c",
        taken="2026-01-01T00:00:00+00:00",
        machine={"cores": 2},
    )


def test_a_row_comes_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "small" / "s.jsonl"
    with RowFile(path) as file:
        file.append(made(0))
    assert read_rows(path) == {made(0).key: made(0)}
    assert job_of(json.loads(json.dumps(asdict(made(0).job)))).key == made(0).key


def test_a_torn_last_line_is_passed_over_and_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    with RowFile(path) as file:
        file.append(made(0))
        file.append(made(1))
    whole = path.read_bytes()
    for cut in (1, 2, 20, len(whole) // 2 - 1):
        path.write_bytes(whole[:-cut])
        assert set(read_rows(path)) == {made(0).key} | ({made(1).key} if cut == 1 else set())
        with RowFile(path) as file:
            assert set(file.rows) == {made(0).key}
            file.append(made(1))
        assert path.read_bytes() == whole


def test_of_rows_with_one_key_the_last_counts(tmp_path: Path) -> None:
    with RowFile(tmp_path / "s.jsonl") as file:
        file.append(made(0, 0.1))
        file.append(made(0, 0.9))
    (row,) = read_rows(tmp_path / "s.jsonl").values()
    assert row.outcome is not None and row.outcome.metrics == {"accuracy": 0.9}


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    with RowFile(tmp_path / "s.jsonl"), pytest.raises(ConfigError, match="another run writes"):
        RowFile(tmp_path / "s.jsonl")
    RowFile(tmp_path / "s.jsonl").close()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"out: cannot write .*s\.jsonl: (Not a directory|File exists); choose"):
        RowFile(tmp_path / "file" / "small" / "s.jsonl")


def test_a_missing_file_has_no_rows_and_an_unknown_field_is_an_error(tmp_path: Path) -> None:
    assert read_rows(tmp_path / "none.jsonl") == {}
    with pytest.raises(TypeError):
        row_of({**asdict(made(0)), "colour": "red"})
