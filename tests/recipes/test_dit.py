"""The recipe that makes images, from settings to a user's picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from recipes.dit import Dit
from recipes.generation.answer import find_class, picture
from recipes.generation.sampling import samples
from recipes.launch import launch, predict
from recipes.recipe import find_recipe, recipe_names
from tests.recipes.tiny import run_settings
from zoo.diffusion import DDPMConfig, FlowConfig, ProcessConfig
from zoo.models.dit import DiT, DiTConfig
from zoo.registry import ConfigError

TINY = {"family": "dit", "patch_size": [4, 4], "dim": 8, "depth": 1, "heads": 2}


def settings(**changes: Any) -> dict[str, Any]:
    """Settings of a run of two steps; groups are merged key by key."""
    made = run_settings(name="dit", trainer={"max_steps": 2, "val_check_interval": 1, "log_every_n_steps": 1})
    made["model"] = dict(TINY)
    made["task"] = {
        "batch_size": 32,
        "samples": 20,
        "classifier_steps": 3,
        "process": {"name": "flow", "sample_steps": 3},
        "guidance_curve": [2.0],
        "step_curve": [2],
    }
    for key, value in changes.items():
        made[key] = {**made[key], **value} if isinstance(value, dict) else value
    return made


def trained(**choices: Any) -> DiT:
    """A model that answers other than 0."""
    torch.manual_seed(0)
    model = DiTConfig(image_size=(4, 4), channels=1, num_classes=3, dim=8, depth=1, heads=2, **choices).build()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model.eval()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run folder."""
    out = tmp_path_factory.mktemp("dit") / "run"
    launch(settings(), out)
    return out


def test_a_run_ends_with_its_figures_baselines_and_pictures(run: Path) -> None:
    result = json.loads((run / "result.json").read_text())
    assert result["status"] == "ok"
    assert (result["steps"], result["tokens"]) == (2, 2 * 32 * 4)
    assert result["flops_per_token"] > 0
    names = {
        "frechet_distance",
        "frechet_distance@20",
        "heldout_distance",
        "class_fidelity",
        "nearest_neighbour",
        "loss",
    }
    assert set(result["metrics"]) == {f"{split}/{name}" for split in ("val", "test") for name in names}
    assert set(result["baselines"]["held-out images (360)"]) == {
        f"test/{n}" for n in names - {"heldout_distance", "loss"}
    }
    assert list(result["baselines"]) == [
        "held-out images (360)",
        "uniform noise",
        "class mean",
        "pixel Gaussian",
        "full Gaussian",
    ]
    pictures = {path.name for path in (run / "figures").iterdir()}
    assert pictures == {"learning_curves.png", "samples.png", "trajectory.png", "distances.png"}
    for name in pictures:
        with Image.open(run / "figures" / name) as image:
            assert np.asarray(image.convert("L")).std() > 5, f"{name} is blank"
    assert {path.name for path in (run / "model").iterdir()} >= {"preprocess.json", "process.json", "model.safetensors"}
    assert "held-out images (360)" in (run / "log.txt").read_text()


def test_evaluating_once_more_gives_the_same_figures(run: Path, tmp_path: Path) -> None:
    stored = yaml.safe_load((run / "config.yaml").read_text())
    again = launch({**stored, "mode": "eval", "checkpoint": str(run)}, tmp_path / "eval")
    first = json.loads((run / "result.json").read_text())
    assert again["metrics"] == first["metrics"]
    assert again["baselines"] == first["baselines"]


def test_an_exported_model_gives_the_same_samples(run: Path) -> None:
    recipe = find_recipe("dit")(yaml.safe_load((run / "config.yaml").read_text()))
    assert isinstance(recipe, Dit)
    one, other = (recipe.load_exported(run / "model") for _ in range(2))
    labels = torch.tensor([3, 7])
    made = samples(one, recipe.process, labels, [0, 1])
    assert torch.equal(made, samples(other, recipe.process, labels, [0, 1]))
    assert made.shape == (2, 1, 8, 8)
    assert made.abs().max() <= 1


@pytest.mark.parametrize(
    "config", [FlowConfig(sample_steps=3), DDPMConfig(learned_sigma=False, sample_steps=4, clip=1.0)]
)
@pytest.mark.parametrize("guidance", [1.0, 2.0])
def test_a_sample_does_not_depend_on_its_batch(config: ProcessConfig, guidance: float) -> None:
    model, process = trained(learned_sigma=False), config.build()
    labels, seeds = torch.tensor([0, 1, 2, 1, 0]), [5, 6, 7, 8, 9]
    whole = samples(model, process, labels, seeds, guidance=guidance)
    assert whole.std() > 0.1
    for size in (1, 2, 3):
        parts = samples(model, process, labels, seeds, guidance=guidance, batch_size=size)
        torch.testing.assert_close(parts, whole, atol=1e-5, rtol=0)
    turned = samples(model, process, labels.flip(0), seeds[::-1], guidance=guidance)
    torch.testing.assert_close(turned.flip(0), whole, atol=1e-5, rtol=0)
    torch.manual_seed(99)
    assert torch.equal(samples(model, process, labels, seeds, guidance=guidance), whole)


def test_the_label_and_the_guidance_change_a_sample() -> None:
    model, process = trained(learned_sigma=False), FlowConfig(sample_steps=3).build()
    one, other = samples(model, process, torch.tensor([0, 1]), [4, 4])
    assert not torch.allclose(one, other, atol=1e-3)
    led = samples(model, process, torch.tensor([0, 1]), [4, 4], guidance=3.0)
    assert not torch.allclose(led[0], one, atol=1e-3)


def test_a_diffusion_process_with_a_learned_variance_trains_and_samples(tmp_path: Path) -> None:
    task = {"process": {"name": "ddpm", "sample_steps": 3}, "guidance_curve": [], "step_curve": []}
    result = launch(settings(task=task), tmp_path / "run")
    assert result["status"] == "ok"
    assert not (tmp_path / "run" / "figures" / "distances.png").exists()
    stored = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert stored["model"]["learned_sigma"] is True
    assert predict(tmp_path / "run", ["--classes", "1", "--count", "1", "--out", str(tmp_path / "a.png")]) == 0


def test_the_loss_is_a_sum_over_images() -> None:
    recipe = find_recipe("dit")(settings())
    model = trained(learned_sigma=False)
    batch = {"image": torch.randn(6, 1, 4, 4).clamp(-1, 1), "label": torch.tensor([0, 1, 2, 0, 1, 2])}
    torch.manual_seed(3)
    with torch.no_grad():
        total, _ = recipe.loss(model, batch)
    torch.manual_seed(3)
    with torch.no_grad():
        each = FlowConfig().build().loss(lambda x, t: model(x, t, batch["label"]), batch["image"])
    assert each.shape == (6,)
    assert float(total) == pytest.approx(float(each.sum()))


def test_predict_draws_a_row_a_class(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "grid.png"
    assert predict(run, ["--classes", "3,7", "--count", "8", "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"written: {out} (3, 7; 8 each, from seed 0)\n"
    with Image.open(out) as image:
        assert image.size == (8 * 64 + 7 * 2, 2 * 64 + 2)
        grid = np.asarray(image)
    alone = tmp_path / "one.png"
    assert predict(run, ["--classes", "7", "--count", "1", "--seed", "2", "--out", str(alone)]) == 0
    with Image.open(alone) as image:
        close = np.abs(np.asarray(image).astype(int) - grid[66:, 132:196].astype(int))
    assert close.max() <= 1  # seed 2 is the third column, whatever else is asked for
    assert predict(run, ["--count", "2", "--guidance", "2", "--steps", "1", "--out", str(tmp_path / "a.jpg")]) == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--classes", "3,x"], r"unknown class 'x'.*; choices: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9"),
        (["--count", "0"], "--count should be at least 1, got 0"),
        (["--steps", "0"], "--steps should be at least 1"),
        (["--seed", "-1"], "--seed should be at least 0"),
        (["--out", "grid.xyz"], "--out should end in .png"),
        (["--out", "nowhere/grid.png"], "cannot write 'nowhere/grid.png'"),
        (["image.png"], "unrecognized arguments: image.png; use RUN_DIR"),
    ],
)
def test_wrong_words_to_predict_are_told_in_one_line(run: Path, words: list[str], told: str) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        predict(run, words)
    assert "\n" not in str(caught.value)


def test_a_class_is_found_by_name_before_number() -> None:
    assert find_class("cat", ("dog", "cat")) == 1
    assert find_class(" 1 ", ("dog", "cat")) == 1
    assert find_class("1", ("1", "0")) == 0
    with pytest.raises(ConfigError, match=r"unknown class 'cta', did you mean 'cat'\?; choices: dog, cat"):
        find_class("cta", ("dog", "cat"))


def test_colour_images_are_laid_out_row_by_row() -> None:
    images = torch.stack([torch.full((3, 40, 80), value) for value in (-1.0, 0.0, 1.0, -1.0)])
    made = picture(images, 2)
    assert made.size == (2 * 160 + 2, 2 * 80 + 2)
    assert [made.getpixel(place)[0] for place in ((5, 5), (200, 5), (5, 90), (200, 90))] == [0, 128, 255, 0]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"model": {"family": "vit"}}, "model: 'vit' makes no images; choose dit or a preset of it"),
        ({"model": {"image_size": [16, 16]}}, "model.image_size: should be the data's"),
        ({"model": {"learned_sigma": True}}, "model.learned_sigma: should be the process's False, got True"),
        ({"model": {"num_classes": 3}}, "model.num_classes: should be the 10 classes of the data or more, got 3"),
        ({"model": {"label_dropout": 0.0}}, "model.label_dropout: guidance needs a label for 'no class'"),
        ({"task": {"process": "flwo"}}, "task.process: unknown process 'flwo', did you mean 'flow'"),
        ({"task": {"process": {"name": "flow", "sampler": "ddim"}}}, "task.process.sampler: should be"),
        ({"data": {"augment": {"mixup": 0.2}}}, "data.augment: mixed images are none to learn to make"),
    ],
)
def test_a_wrong_setting_is_told_in_one_line_and_leaves_nothing(changes: Any, told: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        launch(settings(**changes), tmp_path / "run")
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_data_without_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="data: 'kjv' holds no images"):
        launch(settings() | {"data": {"name": "kjv"}}, tmp_path / "run")


def test_the_recipe_is_found_by_name() -> None:
    assert "dit" in recipe_names()
