"""Runs that are killed or stopped, and go on as if nothing had been: same weights bit for bit, same metrics.csv."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from recipes import training_run  # noqa: F401  imported once, before the forks
from recipes.callbacks import checkpoints
from recipes.launch import launch
from recipes.metrics_file import read_rows
from recipes.task import Task
from recipes.vit import Vit
from tests.recipes.tiny import run_settings

TIMES = ("seconds", "examples_per_second", "mfu")
SETTINGS = run_settings(
    model={"family": "vit", "patch_size": [4, 4], "dim": 8, "depth": 1, "heads": 2, "pool": "mean", "dropout": 0.2},
    data={"name": "digits", "limit": 110, "augment": {"shift": 0.5, "rotation": 5.0}},  # 4 batches, the last is short
    trainer={
        "max_steps": 9,
        "accumulate_grad_batches": 3,
        "save_every": 2,
        "log_every_n_steps": 3,
        "limit_val_batches": 1,
    },
)


def in_a_fork(work: Callable[[], Any]) -> int:
    """Run `work` in a forked process; its exit code, or minus the signal that killed it."""
    child = os.fork()
    if child == 0:
        code = 70
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            Vit.baselines = lambda self, data: {}  # type: ignore[method-assign]  # what comes after training
            Vit.figures = lambda self, model, data, folder: []  # type: ignore[method-assign]
            work()
            code = 0
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def signal_at(batch: int, signum: int) -> None:
    """Let this process receive a signal while it trains on micro-batch number `batch`."""
    step, seen = Task.training_step, [0]

    def training_step(self: Task, *arguments: Any) -> Any:
        seen[0] += 1
        if seen[0] == batch:
            os.kill(os.getpid(), signum)
        return step(self, *arguments)

    Task.training_step = training_step  # type: ignore[method-assign]


def held(out: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any], list[dict[str, float]]]:
    """(exported weights, last checkpoint, rows without times) of a run folder."""
    last = checkpoints.checkpoints(out / "checkpoints")[-1]
    state = torch.load(last, weights_only=True)
    rows = [{name: value for name, value in row.items() if name not in TIMES} for row in read_rows(out / "metrics.csv")]
    return load_file(out / "model" / "model.safetensors"), state, rows


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Any:
    out = tmp_path_factory.mktemp("unbroken") / "run"
    assert in_a_fork(lambda: launch(SETTINGS, out)) == 0
    return held(out)


def resume(out: Path) -> None:
    stored = yaml.safe_load((out / "config.yaml").read_text())
    assert in_a_fork(lambda: launch({**stored, "resume": str(out)}, out)) == 0
    assert json.loads((out / "result.json").read_text())["status"] == "ok"


def assert_as_unbroken(out: Path, unbroken: Any) -> None:
    weights, state, rows = held(out)
    expected_weights, expected_state, expected_rows = unbroken
    assert weights.keys() == expected_weights.keys()
    for name, value in weights.items():
        assert torch.equal(value, expected_weights[name]), f"exported {name}"
    for name, value in state["state_dict"].items():
        assert torch.equal(value, expected_state["state_dict"][name]), name
    moments = state["optimizer_states"][0]["state"]
    for key, value in expected_state["optimizer_states"][0]["state"].items():
        assert all(torch.equal(moments[key][name], value[name]) for name in value)
    assert state["lr_schedulers"][0]["last_epoch"] == expected_state["lr_schedulers"][0]["last_epoch"]
    assert rows == expected_rows


# An epoch is 4 micro-batches, so 2 steps: a full window of 3 and a short one of 1. Steps end at batch 3, 4, 7, 8 ...
@pytest.mark.parametrize("batch", [2, 6, 8, 14])
def test_sigkill_at_any_step_and_resume_gives_the_same_run(batch: int, unbroken: Any, tmp_path: Path) -> None:
    out = tmp_path / "run"

    def killed() -> None:
        signal_at(batch, signal.SIGKILL)
        launch(SETTINGS, out)

    assert in_a_fork(killed) == -signal.SIGKILL
    resume(out)
    assert_as_unbroken(out, unbroken)


def test_sigkill_while_a_checkpoint_is_written_leaves_the_one_before(unbroken: Any, tmp_path: Path) -> None:
    out = tmp_path / "run"

    def killed() -> None:
        replace = os.replace

        def kill_at_the_third(source: Any, target: Any) -> None:
            if Path(target).name == "step=00000006.ckpt":
                os.kill(os.getpid(), signal.SIGKILL)
            replace(source, target)

        os.replace = kill_at_the_third
        launch(SETTINGS, out)

    assert in_a_fork(killed) == -signal.SIGKILL
    assert [path.name for path in checkpoints.checkpoints(out / "checkpoints")] == [
        "step=00000002.ckpt",
        "step=00000004.ckpt",
    ]
    resume(out)
    assert_as_unbroken(out, unbroken)


# SIGTERM is also Lightning's own business: it leaves at the end of any micro-batch, also in the middle of a step.
@pytest.mark.parametrize(
    ("signum", "batch", "step"), [(signal.SIGTERM, 7, 3), (signal.SIGTERM, 5, 3), (signal.SIGINT, 9, 5)]
)
def test_a_stopped_run_says_so_loses_no_step_and_goes_on(
    signum: int, batch: int, step: int, unbroken: Any, tmp_path: Path
) -> None:
    out = tmp_path / "run"

    def stopped() -> None:
        signal_at(batch, signum)
        launch({**SETTINGS, "trainer": {**SETTINGS["trainer"], "save_every": 100}}, out)

    assert in_a_fork(stopped) == 128 + signum
    assert [path.name for path in checkpoints.checkpoints(out / "checkpoints")] == [f"step={step:08d}.ckpt"]
    result = json.loads((out / "result.json").read_text())
    assert (result["status"], result["error"], result["steps"]) == ("interrupted", None, step)
    assert f"go on with resume={out}" in (out / "log.txt").read_text()
    resume(out)
    assert_as_unbroken(out, unbroken)


def test_a_signal_after_the_last_look_at_it_still_saves_the_step(unbroken: Any, tmp_path: Path) -> None:
    out = tmp_path / "run"

    def stopped() -> None:
        def on_train_batch_end(self: Task, *_: Any) -> None:  # comes after the callbacks; Lightning sees the signal
            if self.global_step == 3:
                os.kill(os.getpid(), signal.SIGTERM)

        Task.on_train_batch_end = on_train_batch_end  # type: ignore[method-assign]
        launch({**SETTINGS, "trainer": {**SETTINGS["trainer"], "save_every": 100}}, out)

    assert in_a_fork(stopped) == 128 + signal.SIGTERM
    assert [path.name for path in checkpoints.checkpoints(out / "checkpoints")] == ["step=00000003.ckpt"]
    resume(out)
    assert_as_unbroken(out, unbroken)


def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    out = tmp_path / "run"

    def stopped() -> None:
        step = Task.training_step

        def training_step(self: Task, *arguments: Any) -> Any:
            if self.global_step == 3:
                os.kill(os.getpid(), signal.SIGINT)
                os.kill(os.getpid(), signal.SIGINT)
            return step(self, *arguments)

        Task.training_step = training_step  # type: ignore[method-assign]
        launch({**SETTINGS, "trainer": {**SETTINGS["trainer"], "save_every": 2}}, out)

    assert in_a_fork(stopped) == 128 + signal.SIGINT
    assert [path.name for path in checkpoints.checkpoints(out / "checkpoints")] == ["step=00000002.ckpt"]
    assert json.loads((out / "result.json").read_text())["status"] == "interrupted"


def test_a_finished_run_goes_on_for_more_steps_as_one_that_was_longer(tmp_path: Path) -> None:
    optim = {"name": "adamw", "lr": 3e-3, "ema": 0.9, "schedule": {"name": "constant", "warmup": 2}}
    long = {**SETTINGS, "optim": optim}
    short = {**long, "trainer": {**SETTINGS["trainer"], "max_steps": 4}}

    def work() -> None:
        launch(long, tmp_path / "long")
        launch(short, tmp_path / "short")
        launch({**long, "resume": str(tmp_path / "short")}, tmp_path / "short")

    assert in_a_fork(work) == 0
    weights, state, _ = held(tmp_path / "short")
    expected_weights, expected_state, _ = held(tmp_path / "long")
    assert all(torch.equal(weights[name], expected_weights[name]) for name in expected_weights)
    names = expected_state["state_dict"]
    assert all(torch.equal(state["state_dict"][name], names[name]) for name in names)
