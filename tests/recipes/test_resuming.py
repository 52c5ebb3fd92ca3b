"""A run that is taken up under wrong settings stays as it was; damaged checkpoints; runs that max_time ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from recipes.callbacks.checkpoints import checkpoints
from recipes.launch import launch
from recipes.metrics_file import read_rows
from recipes.vit import Vit
from tests.recipes.tiny import run_settings
from zoo.registry import ConfigError


@pytest.fixture(autouse=True)
def training_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Vit, "baselines", lambda self, data: {})
    monkeypatch.setattr(Vit, "figures", lambda self, model, data, folder: [])


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A finished run of 4 steps with checkpoints at 2 and 4."""
    out = tmp_path / "run"
    launch(run_settings(trainer={"max_steps": 4, "limit_val_batches": 0}), out)
    return out


def resumed(out: Path, **changes: Any) -> dict[str, Any]:
    stored = yaml.safe_load((out / "config.yaml").read_text())
    for key, value in changes.items():
        stored[key] = {**stored[key], **value} if isinstance(value, dict) else value
    return launch({**stored, "resume": str(out)}, out)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_wrong_settings_on_resume_leave_a_finished_run_as_it_was(run: Path) -> None:
    before = contents(run)
    for changes, told in (
        ({"model": {"dim": 16}}, "resume: .* is .* in the checkpoint and .* by the settings"),
        ({"model": {"depth": 2}}, "resume: .* is absent in the checkpoint"),
        ({"optim": {"ema": None}}, "resume: ema.* and absent by the settings"),
        ({"optim": {"name": "adam"}}, "optim.name: the run was trained with adamw"),
        ({"optim": {"schedule": {"name": "onecycle", "warmup": 9}}}, "optim.schedule.warmup: should be at most the 4"),
        ({"optim": {"lr_scale": {"nothing": 2.0}}}, "optim.lr_scale: no parameter's name contains 'nothing'"),
        ({"task": {"batch_size": 16}}, "resume: cannot resume the data stream: batch_size was 32, now 16"),
        ({"trainer": {"accumulate_grad_batches": 2}}, "resume: .*accumulate was 1, now 2"),
    ):
        with pytest.raises(ConfigError, match=told) as caught:
            resumed(run, **changes)
        assert "\n" not in str(caught.value)
        assert contents(run) == before


def test_a_damaged_checkpoint_is_skipped_for_the_one_before(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    older, newest = checkpoints(run / "checkpoints")
    newest.write_bytes(newest.read_bytes()[:-100])
    capsys.readouterr()
    assert resumed(run, trainer={"keep": 1})["steps"] == 4
    said = capsys.readouterr().out
    assert f"skipped {newest.name}: it is damaged" in said
    assert "going on from step 2" in said
    assert torch.load(newest, weights_only=True)["global_step"] == 4
    for path in (older, newest):
        path.write_bytes(b"PK")
    before = contents(run)
    with pytest.raises(ConfigError, match=f"resume: '.*{newest.name}' is damaged, and no other") as caught:
        resumed(run)
    assert "\n" not in str(caught.value)
    assert contents(run) == before


def test_the_error_in_result_json_is_one_short_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("x" * 1000 + "\nsecond line")

    monkeypatch.setattr(Vit, "loss", fail)
    with pytest.raises(RuntimeError):
        launch(run_settings(), tmp_path / "run")
    error = json.loads((tmp_path / "run" / "result.json").read_text())["error"]
    assert error == f"RuntimeError: {'x' * 286}"


def test_a_run_that_max_time_ends_has_its_last_rows_and_checkpoint_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lightning.pytorch.callbacks import Timer

    batches = [0]

    def elapsed(self: Timer, *_: Any) -> float:  # a second for each look: the fourth is within the second step
        batches[0] += 1
        return float(batches[0])

    monkeypatch.setattr(Timer, "time_elapsed", elapsed)
    monkeypatch.setattr(Timer, "state_dict", lambda self: {})
    out = tmp_path / "run"
    trainer = {
        "max_steps": 6,
        "max_time": {"seconds": 4},
        "accumulate_grad_batches": 2,
        "save_every": 100,
        "log_every_n_steps": 100,
        "val_check_interval": 100,
        "limit_val_batches": 1,
    }
    result = launch(run_settings(trainer=trainer), out)
    assert (result["status"], result["steps"]) == ("ok", 2)
    assert [path.name for path in checkpoints(out / "checkpoints")] == ["step=00000002.ckpt"]
    rows = read_rows(out / "metrics.csv")
    assert [row["step"] for row in rows] == [2, 2]
    assert any("val/loss" in row for row in rows)
    assert any("train/loss" in row for row in rows)
    batches[0] = 0
    assert resumed(out, trainer={"max_time": {"hours": 1}})["steps"] == 6
