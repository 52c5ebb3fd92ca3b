"""metrics.csv, result.json and files that are whole or absent."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from recipes.metrics_file import MetricsFile, read_rows
from recipes.result import KEYS, config_hash, new_result, read_result, write_result
from zoo.files import write_text, write_whole
from zoo.registry import ConfigError


def test_rows_keep_their_columns_while_new_metrics_join(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path / "metrics.csv")
    file.append(1, {"train/loss": 0.1 + 0.2})
    file.append(2, {"val/loss": 3.0})
    file.append(2, {"train/loss": 1e-12, "lr": 1.0})
    assert read_rows(file.path) == [
        {"step": 1, "train/loss": 0.1 + 0.2},  # every digit
        {"step": 2, "val/loss": 3.0},
        {"step": 2, "train/loss": 1e-12, "lr": 1.0},
    ]
    assert (tmp_path / "metrics.csv").read_text().splitlines()[0] == "step,train/loss,val/loss,lr"


def test_resuming_drops_later_rows_and_a_half_written_one_and_keeps_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    file = MetricsFile(path)
    for step in range(1, 8):
        file.append(step, {"a": float(step)})
    with path.open("a") as end:
        end.write("8,8")  # killed within a write: without the end of the line, 8 may have been 8.25
    again = MetricsFile(path)
    again.truncate(5)
    again.append(6, {"a": 60.0, "b": 1.0})
    assert [row["step"] for row in read_rows(path)] == [1, 2, 3, 4, 5, 6]
    assert read_rows(path)[-1] == {"step": 6, "a": 60.0, "b": 1.0}
    assert MetricsFile(path).columns == ["step", "a", "b"]


def full_disk(*_: Any, **__: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("fails", ["replace", "fsync"])
def test_a_full_disk_leaves_earlier_files_whole(fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "metrics.csv"
    file = MetricsFile(path)
    file.append(1, {"a": 1.0})
    write_text(tmp_path / "result.json", "{}\n")
    monkeypatch.setattr(os, fails, full_disk)
    with pytest.raises(OSError, match="No space left"):
        file.append(2, {"b": 1.0})
    with pytest.raises(OSError, match="No space left"):
        write_result(tmp_path / "result.json", {"status": "ok"})
    monkeypatch.undo()
    assert read_rows(path) == [{"step": 1, "a": 1.0}]
    assert read_result(tmp_path / "result.json") == {}
    assert sorted(os.listdir(tmp_path)) == ["metrics.csv", "result.json"]
    file.append(2, {"b": 1.0})
    assert len(read_rows(path)) == 2


def test_a_write_that_stops_half_way_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "step.ckpt"
    write_text(path, "old")

    def half(file: Any) -> None:
        file.write(b"ne")
        full_disk()

    with pytest.raises(OSError, match="No space left"):
        write_whole(path, half)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["step.ckpt"]


def test_a_row_that_does_not_fit_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "metrics.csv"
    file = MetricsFile(path)
    file.append(1, {"a": 1.0})
    opened = Path.open

    class Half:
        """Takes half of what is written, then the disk is full."""

        def __init__(self, raw: Any) -> None:
            self.raw = raw

        def __enter__(self) -> Half:
            return self

        def __exit__(self, *_: object) -> None:
            self.raw.close()

        def write(self, data: bytes) -> None:
            self.raw.write(data[: len(data) // 2])
            full_disk()

    def half(self: Path, mode: str = "r", *rest: Any, **named: Any) -> Any:
        made = opened(self, mode, *rest, **named)
        return Half(made) if mode == "ab" else made

    monkeypatch.setattr(Path, "open", half)
    with pytest.raises(OSError, match="No space left"):
        file.append(2, {"a": 2.0})
    monkeypatch.undo()
    assert path.read_text() == "step,a\n1,1\n"


def test_result_json_is_strict_json_with_the_agreed_keys(tmp_path: Path) -> None:
    settings = {
        "name": "vit",
        "seed": 3,
        "model": {"family": "vit", "mixer": {"name": "attention"}},
        "optim": {"lr": 1.0},
    }
    result = new_result(settings)
    result["metrics"] = {"a": float("nan"), "b": np.float32(0.5), "c": torch.tensor(2), "d": float("inf"), "e": 1}
    write_result(tmp_path / "result.json", result)
    text = (tmp_path / "result.json").read_text()
    told = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert list(told) == list(KEYS)
    assert told["metrics"] == {"a": None, "b": 0.5, "c": 2, "d": None, "e": 1}
    assert (told["recipe"], told["model"], told["mixer"], told["seed"]) == ("vit", "vit", "attention", 3)
    assert told["versions"]["torch"] == torch.__version__.partition("+")[0]


@pytest.mark.parametrize("damaged", [b'{"status": "o', b"[]", b"\xff\xfe\xfa"])
def test_a_damaged_result_json_is_told_in_one_line(damaged: bytes, tmp_path: Path) -> None:
    (tmp_path / "result.json").write_bytes(damaged)
    with pytest.raises(ConfigError, match=r"checkpoint: '.*result.json' is damaged") as caught:
        read_result(tmp_path / "result.json")
    assert "\n" not in str(caught.value)


def test_the_config_hash_depends_on_what_is_trained_and_on_nothing_else() -> None:
    base = {"name": "vit", "seed": 0, "model": {"dim": 8, "depth": 2}, "out": "a", "resume": None}
    assert config_hash(base) == config_hash({**base, "model": {"depth": 2, "dim": 8}, "out": "b", "resume": "a"})
    assert config_hash(base) != config_hash({**base, "seed": 1})
    assert config_hash(base) != config_hash({**base, "model": {"dim": 8, "depth": 3}})
