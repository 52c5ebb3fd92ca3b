"""The image recipe from settings to answers: a whole small run, its evaluation once more, and a user's own files."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from torch import nn
from torch.nn import functional as F

from recipes.callbacks.checkpoints import checkpoints
from recipes.launch import launch, predict
from recipes.metrics_file import read_rows
from recipes.recipe import find_recipe, recipe_names
from recipes.vision.figures import attention, confusion_matrix
from recipes.vision.metrics import calibration_error, classification_metrics
from recipes.vit import Vit
from tests.recipes.tiny import run_settings
from zoo.registry import ConfigError, encode


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run folder."""
    out = tmp_path_factory.mktemp("vit") / "run"
    launch(run_settings(), out)
    return out


@pytest.fixture
def training_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what other tests look at."""
    monkeypatch.setattr(Vit, "baselines", lambda self, data: {})
    monkeypatch.setattr(Vit, "figures", lambda self, model, data, folder: [])


def test_a_run_folder_holds_all_that_is_promised(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    held = {str(path.relative_to(run)) for path in run.rglob("*") if path.is_file()}
    assert held == {
        "config.yaml",
        "metrics.csv",
        "result.json",
        "log.txt",
        "model/config.json",
        "model/model.safetensors",
        "model/preprocess.json",
        "checkpoints/step=00000004.ckpt",
        "checkpoints/step=00000006.ckpt",
        "figures/learning_curves.png",
        "figures/confusion_matrix.png",
        "figures/mistakes.png",
        "figures/attention.png",
    }
    for picture in (run / "figures").iterdir():
        with Image.open(picture) as image:
            assert min(image.size) > 100
            assert np.asarray(image.convert("L")).std() > 5, f"{picture.name} is blank"
    result = json.loads((run / "result.json").read_text())
    assert result["status"] == "ok"
    assert (result["steps"], result["examples"], result["tokens"]) == (6, 192, 192 * 4)
    assert next(iter(result["metrics"])) == "val/accuracy"
    assert {"test/accuracy", "test/loss", "test/top5", "test/calibration_error"} <= set(result["metrics"])
    assert set(result["baselines"]) == {"majority class", "kNN(3)", "SVM-RBF(C=10)"}
    assert result["baselines"]["kNN(3)"]["test/accuracy"] > 0.5
    assert result["flops_per_token"] > 0
    steps = [(row["step"], "val/loss" in row) for row in read_rows(run / "metrics.csv")]
    assert steps == [(2, False), (3, True), (4, False), (6, True), (6, False)]


def test_config_yaml_is_complete_and_plain(run: Path) -> None:
    stored = yaml.safe_load((run / "config.yaml").read_text())
    assert stored["model"]["num_classes"] == 10
    assert stored["model"]["image_size"] == [8, 8]
    assert stored["model"]["mixer"]["name"] == "attention"
    assert stored["data"]["validation"] == 0.1
    assert stored["optim"]["betas"] == [0.9, 0.999]
    assert stored["task"]["eval_batch_size"] == 256


def test_one_table_shows_the_result_beside_its_baselines(run: Path) -> None:
    told = (run / "log.txt").read_text()
    result = json.loads((run / "result.json").read_text())
    assert told.count("test/accuracy") == 1
    for text in (f"{result['metrics']['test/accuracy']:.4f}", "majority class", "kNN(3)", f"{result['params']:,}"):
        assert text in told
    assert "step 2/6  loss" in told


def test_evaluating_once_more_gives_the_same_figures_and_touches_nothing(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    stored = yaml.safe_load((run / "config.yaml").read_text())
    result = launch({**stored, "mode": "eval", "checkpoint": str(run)}, tmp_path / "eval")
    first = json.loads((run / "result.json").read_text())
    assert result["metrics"] == first["metrics"]
    assert result["baselines"] == first["baselines"]
    assert json.loads((tmp_path / "eval" / "eval.json").read_text())["metrics"] == first["metrics"]
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before
    told = (run / "log.txt").read_text()
    rows = [line for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert rows
    assert all(line in told for line in rows)


def test_the_exported_weights_are_the_moving_average(run: Path) -> None:
    from safetensors.torch import load_file

    state = torch.load(checkpoints(run / "checkpoints")[-1], weights_only=True)["state_dict"]
    for name, value in load_file(run / "model" / "model.safetensors").items():
        assert torch.equal(value, state[f"ema.module.{name}"])
    assert any(not torch.equal(state[f"ema.module.{n}"], state[f"model.{n}"]) for n in ("head.linear.weight",))


def plain(value: Any) -> bool:
    if isinstance(value, dict):
        return type(value) is dict and all(type(key) is str and plain(item) for key, item in value.items())
    if isinstance(value, list):
        return type(value) is list and all(map(plain, value))
    return value is None or type(value) in (str, int, float, bool)


FRESH = """
import sys, torch
checkpoint = sys.argv[1]
state = torch.load(checkpoint, weights_only=True)                     # before anything of ours is imported
from recipes.lightning_import import Trainer
from torchmetrics.utilities import imports as flags
import importlib.util, torchvision.ops, scipy, matplotlib              # hidden for a while only
assert importlib.util.find_spec("transformers")
assert all(map(bool, (flags._TORCHVISION_AVAILABLE, flags._TRANSFORMERS_AVAILABLE, flags._MATPLOTLIB_AVAILABLE)))
from torchmetrics.classification import MulticlassCalibrationError
import zoo.library
from recipes.task import Task
task = Task.load_from_checkpoint(checkpoint)
assert task.hparams["settings"]["model"]["patch_size"] == [4, 4]
from recipes.recipe import find_recipe
recipe = find_recipe("vit")(state["hyper_parameters"]["settings"])
data = recipe.load()
task = Task(recipe.settings, recipe, None, lambda rank, ranks: recipe.train_batches(data, 1, rank, ranks))
Trainer(max_steps=8, logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        use_distributed_sampler=False).fit(task, ckpt_path=checkpoint)
assert task.global_step == 8
ece = MulticlassCalibrationError(10, n_bins=15)(torch.eye(10)[[0, 1, 2]] * 3, torch.tensor([0, 1, 5]))
print("ece", float(ece))
"""


def test_a_checkpoint_loads_with_weights_only_in_a_fresh_process(run: Path, root: Path) -> None:
    """open-retina/open-retina#186; the same process shows that importing Lightning hides nothing for good."""
    checkpoint = checkpoints(run / "checkpoints")[-1]
    assert plain(torch.load(checkpoint, weights_only=True)["hyper_parameters"])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FRESH, str(checkpoint)], cwd=root, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    logits, labels = torch.eye(10)[[0, 1, 2]] * 3, torch.tensor([0, 1, 5])
    theirs = float(done.stdout.rpartition("ece ")[2])
    assert calibration_error(logits, labels) == pytest.approx(theirs, abs=1e-6)


def save(path: Path, mode: str, size: tuple[int, int]) -> str:
    draw = np.random.RandomState(0)
    channels = {"L": (), "RGB": (3,), "RGBA": (4,), "LA": (2,)}[mode]
    Image.fromarray(draw.randint(0, 255, (*size[::-1], *channels)).astype("uint8")).save(path)
    return str(path)


def test_a_users_files_of_any_kind_are_answered_and_broken_ones_are_named(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = [
        save(tmp_path / "grey.png", "L", (8, 8)),
        save(tmp_path / "a colour photo.jpg", "RGB", (300, 200)),
        save(tmp_path / "alpha.png", "RGBA", (1, 40)),
        save(tmp_path / "grey alpha.png", "LA", (31, 7)),
    ]
    (tmp_path / "empty.png").touch()
    (tmp_path / "text.png").write_text("no image")
    (tmp_path / "cut.jpg").write_bytes(Path(good[1]).read_bytes()[:500])
    bad = [str(tmp_path / name) for name in ("empty.png", "text.png", "cut.jpg", "missing.png")] + [str(tmp_path)]
    assert predict(run, [good[0], bad[0], good[1], *bad[1:], *good[2:], "--top", "2"]) == 1
    told = capsys.readouterr()
    lines = told.out.splitlines()
    assert [line.rpartition(": ")[0] for line in lines] == good
    for line in lines:
        first, second = line.rpartition(": ")[2].split("  ")
        assert float(first.split()[1]) >= float(second.split()[1])
    errors = told.err.splitlines()
    assert len(errors) == len(bad)
    assert all(error.startswith(f"error: {name}: ") for error, name in zip(errors, bad, strict=True))

    assert predict(run, [good[0], "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["file"] == good[0]
    assert len(answer["classes"]) == 3
    assert predict(run, [*good, "--top", "99", "--json"]) == 0
    for line in capsys.readouterr().out.splitlines():
        assert sum(found["probability"] for found in json.loads(line)["classes"]) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("argv", [[], ["--top", "0", "a.png"], ["--tpo", "3", "a.png"], ["--top", "x", "a.png"]])
def test_wrong_words_to_predict_are_told_in_one_line(run: Path, argv: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"predict: .*use RUN_DIR image.png") as caught:
        predict(run, argv)
    assert "\n" not in str(caught.value)


def test_predict_and_eval_name_a_folder_that_is_no_finished_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"RUN_DIR: '.*' is not a run folder"):
        predict(tmp_path, ["a.png"])
    (tmp_path / "config.yaml").write_text("name: vit\n")
    with pytest.raises(ConfigError, match=r"RUN_DIR: '.*' holds no exported model; the run has not finished"):
        predict(tmp_path, ["a.png"])
    with pytest.raises(ConfigError, match=r"checkpoint: '.*' holds no exported model"):
        launch(run_settings(mode="eval", checkpoint=str(tmp_path)), tmp_path / "eval")
    assert not (tmp_path / "eval").exists()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"name": "vitt"}, "recipe: unknown recipe 'vitt', did you mean 'vit'"),
        ({"mode": "evaluate"}, "mode: should be 'train' or 'eval'"),
        ({"model": {"dpeth": 3}}, "model.dpeth: unknown key, did you mean 'depth'"),
        ({"model": {"mixer": "atention"}}, "model.mixer: unknown mixer 'atention', did you mean 'attention'"),
        ({"model": {"patch_size": 3}}, "patches of 3 x 3"),
        ({"model": {"num_classes": 3}}, "model.num_classes: should be the 10 classes of the data or more, got 3"),
        ({"trainer": {"max_steps": "abc"}}, "trainer.max_steps: should be a whole number, got 'abc'"),
        ({"optim": {"lr": "abc"}}, "optim.lr: should be"),
        ({"data": {"name": "digit"}}, "data: unknown data 'digit', did you mean 'digits'"),
        ({"data": {"validation": 0.9999}}, "data.validation: 0.9999 of 1437 images leaves none to train on"),
        ({"data": {"limti": 3}}, "data.limti: unknown key, did you mean 'limit'"),
        ({"task": {"batch": 3}}, "task.batch: unknown key, did you mean 'batch_size'"),
        ({"task": {"teacher": "x"}}, "task.teacher: needs a model with a distillation token"),
        ({"model": {"distilled": True}, "task": {"teacher": "x"}}, "task.teacher: 'x' is not a run folder"),
        ({"logger": {"name": "tensorbord"}}, "logger: unknown logger 'tensorbord', did you mean 'tensorboard'"),
        ({"resume": "nowhere"}, "a resumed run goes on in its own folder"),
    ],
)
def test_a_wrong_setting_is_told_in_one_line_and_leaves_nothing(changes: Any, told: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        launch(run_settings(**changes), tmp_path / "run")
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_second_run_does_not_overwrite_the_first(run: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"out: '.*' already holds a run \(result.json\); name another folder, or use"
    ):
        launch(run_settings(), run)


@pytest.mark.usefixtures("training_only")
def test_a_disk_that_fills_up_leaves_earlier_files_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, replace = tmp_path / "run", os.replace

    def fills_up(source: Any, target: Any) -> None:
        if Path(target).name == "step=00000004.ckpt":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))
        replace(source, target)

    monkeypatch.setattr(os, "replace", fills_up)
    with pytest.raises(OSError, match=r"No space left on device: '.*step=00000004.ckpt'"):
        launch(run_settings(), out)
    monkeypatch.undo()
    assert [path.name for path in (out / "checkpoints").iterdir()] == ["step=00000002.ckpt"]
    torch.load(out / "checkpoints" / "step=00000002.ckpt", weights_only=True)
    assert [row["step"] for row in read_rows(out / "metrics.csv")] == [2, 3, 4]
    result = json.loads((out / "result.json").read_text())
    assert result["status"] == "failed"
    assert result["error"].startswith("OSError: [Errno 28]")
    assert result["steps"] == 4
    assert launch({**run_settings(), "resume": str(out)}, out)["status"] == "ok"


def test_a_crash_is_a_failed_run_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Any, data: Any) -> Any:
        raise RuntimeError("no baselines today")

    monkeypatch.setattr(Vit, "baselines", broken)
    with pytest.raises(RuntimeError, match="no baselines today"):
        launch(run_settings(), tmp_path / "run")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["status"] == "failed"
    assert result["error"] == "RuntimeError: no baselines today"
    assert "test/accuracy" in result["metrics"]  # what was found out before is kept


def recipe_of(**changes: Any) -> Vit:
    made = find_recipe("vit")(run_settings(**changes))
    assert isinstance(made, Vit)
    return made


class Two(nn.Module):
    """Two heads while training, as a distilled ViT."""

    def __init__(self, logits: torch.Tensor) -> None:
        super().__init__()
        self.logits = nn.Parameter(logits)

    def forward(self, images: torch.Tensor) -> Any:
        return (self.logits[0], self.logits[1]) if self.training else self.logits.mean(dim=0)


def test_the_loss_smooths_labels_takes_soft_ones_and_follows_a_teacher() -> None:
    logits, labels = torch.randn(2, 4, 3), torch.tensor([0, 1, 2, 1])
    batch = {"image": torch.zeros(4, 1, 2, 2), "label": labels}
    recipe, model = recipe_of(), Two(logits)
    smooth = [F.cross_entropy(each, labels, reduction="sum", label_smoothing=0.1) for each in logits]
    torch.testing.assert_close(recipe.loss(model, batch)[0], (smooth[0] + smooth[1]) / 2)

    recipe.teacher = Two(torch.eye(3)[[2, 2, 0, 0]].expand(2, 4, 3)).eval()
    hard = F.cross_entropy(logits[1], torch.tensor([2, 2, 0, 0]), reduction="sum")
    torch.testing.assert_close(recipe.loss(model, batch)[0], (smooth[0] + hard) / 2)
    assert recipe.teacher.logits.grad is None

    soft = torch.full((4, 3), 1 / 3)
    expected = -(0.9 * soft + 0.1 / 3).mul(logits[0].log_softmax(1)).sum()
    one = nn.Module()
    one.forward = lambda images: logits[0]  # type: ignore[method-assign]
    torch.testing.assert_close(recipe.loss(one, {**batch, "soft_label": soft})[0], expected)

    plain_loss, logs = recipe.loss(model.eval(), batch)  # validation: no smoothing, the mean of the heads
    torch.testing.assert_close(plain_loss, F.cross_entropy(logits.mean(0), labels, reduction="sum"))
    assert int(logs["accuracy"]) == int((logits.mean(0).argmax(1) == labels).sum())


@pytest.mark.usefixtures("training_only")
def test_a_distilled_model_learns_from_a_finished_run(run: Path, tmp_path: Path) -> None:
    settings = run_settings(
        model={"pool": "cls", "distilled": True}, trainer={"max_steps": 2}, task={"teacher": str(run)}
    )
    assert launch(settings, tmp_path / "run")["status"] == "ok"


@pytest.mark.usefixtures("training_only")
def test_a_timm_model_is_an_arm_of_the_same_recipe(tmp_path: Path) -> None:
    settings = run_settings(trainer={"max_steps": 2})
    settings["model"] = {"family": "timm", "name": "resnet10t"}
    result = launch(settings, tmp_path / "run")
    assert result["status"] == "ok"
    assert result["model"] == "timm"
    recipe = recipe_of()
    model = recipe.load_exported(tmp_path / "run" / "model")
    assert attention(model, recipe.load().test, tmp_path / "attention.png") is None  # it has no patches to show


def test_a_model_that_does_not_take_the_images_is_told_in_one_line(tmp_path: Path) -> None:
    settings = run_settings()
    settings["model"] = {"family": "timm", "name": "vit_tiny_patch16_224"}
    with pytest.raises(ConfigError, match="model: 'vit_tiny_patch16_224' does not take images of 8 x 8: ") as caught:
        launch(settings, tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_classification_metrics_on_a_case_done_by_hand() -> None:
    logits = torch.log(torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.2, 0.3, 0.5], [0.9, 0.05, 0.05]]))
    labels = torch.tensor([0, 2, 2, 0])
    found = classification_metrics(logits, labels)
    assert found["accuracy"] == 0.75
    assert found["loss"] == pytest.approx(-np.log([0.7, 0.3, 0.5, 0.9]).mean(), abs=1e-6)
    assert found["calibration_error"] == pytest.approx((0.3 + 0.6 + 0.5 + 0.1) / 4, abs=1e-6)
    assert "top5" not in found


def test_the_confusion_matrix_takes_many_classes_and_missing_ones(tmp_path: Path) -> None:
    logits = torch.randn(30, 200)
    assert confusion_matrix(logits, torch.arange(30), tuple(map(str, range(200))), tmp_path / "a.png").stat().st_size


def test_recipes_are_found_without_importing_them() -> None:
    assert "vit" in recipe_names()
    assert encode(recipe_of().task)["batch_size"] == 32
