"""The masked-language-model recipe from settings to answers: a whole small run, its evaluation again, and its use."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from PIL import Image

from recipes.bert import Bert
from recipes.callbacks.checkpoints import checkpoints
from recipes.data.text.tokenizers import Tokenizer
from recipes.launch import launch, predict
from recipes.masked.answer import filled
from recipes.metrics_file import read_rows
from recipes.optim import parameter_groups
from zoo.registry import ConfigError, decode

ONSETS, RHYMES = ["b", "st", "m", "gr", "t", "pl"], ["ake", "ing", "old", "un", "ate"]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made-up words in a csv, and whether they have one part or two."""
    draw = random.Random(0)
    words: dict[str, int] = {}
    while len(words) < 240:
        parts = [draw.choice(ONSETS) + draw.choice(RHYMES) for _ in range(draw.choice((1, 2)))]
        words["".join(parts) + draw.choice(("", "s", "er"))] = len(parts) - 1
    path = tmp_path_factory.mktemp("data") / "words.csv"
    rows = [f"{word},{('one', 'two')[label]}" for word, label in words.items()]
    path.write_text("\n".join(["text,label", *rows]) + "\n")
    return path


def settings_of(table: Path, **changes: Any) -> dict[str, Any]:
    """Settings of a run of seconds; groups are merged key by key."""
    settings: dict[str, Any] = {
        "name": "bert",
        "seed": 0,
        "mode": "train",
        "checkpoint": None,
        "resume": None,
        "model": {"family": "bert", "dim": 16, "depth": 1, "heads": 2, "position": "rope", "residual": "pre"},
        "data": {"name": "hub_labelled", "path": str(table), "splits": {"val": None, "test": None}, "held_out": 0.15},
        "optim": {"name": "adamw", "lr": 1e-2, "ema": 0.9, "schedule": {"name": "cosine", "warmup": 2}},
        "trainer": {"max_steps": 6, "log_every_n_steps": 2, "save_every": 2, "val_check_interval": 3},
        "logger": {"name": "csv"},
        "task": {
            "batch_size": 16,
            "length": 24,
            "eval_probability": 0.9,
            "probability": 0.3,
            "downstream": {"labels": 40, "draws": 2, "steps": 8, "batch_size": 8},
        },
    }
    for key, value in changes.items():
        settings[key] = {**settings[key], **value} if isinstance(value, dict) else value
    return settings


@pytest.fixture(scope="module")
def run(table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run folder."""
    out = tmp_path_factory.mktemp("bert") / "run"
    launch(settings_of(table), out)
    return out


@pytest.fixture
def training_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what other tests look at."""
    monkeypatch.setattr(Bert, "baselines", lambda self, data: {})
    monkeypatch.setattr(Bert, "figures", lambda self, model, data, folder: [])


def test_a_run_folder_holds_all_that_is_promised(run: Path) -> None:
    held = {str(path.relative_to(run)) for path in run.rglob("*") if path.is_file()}
    saved = {f"model/{folder}{name}" for folder in ("", "classifier_0/", "classifier_1/") for name in WEIGHTS}
    assert held == {
        "config.yaml",
        "metrics.csv",
        "result.json",
        "log.txt",
        "model/tokenizer_roles.json",
        "model/classes.json",
        "checkpoints/step=00000004.ckpt",
        "checkpoints/step=00000006.ckpt",
        "figures/learning_curves.png",
        "figures/accuracy_by_place.png",
        "figures/attention.png",
        "figures/downstream.png",
        *saved,
    }
    for picture in (run / "figures").iterdir():
        with Image.open(picture) as image:
            assert min(image.size) > 100
    result = json.loads((run / "result.json").read_text())
    assert result["status"] == "ok"
    assert (result["steps"], result["examples"]) == (6, 96)
    assert result["tokens"] > 96 * 5
    assert result["flops_per_token"] > 0
    names = [
        "masked_accuracy",
        "hidden_accuracy",
        "masked_loss",
        "downstream_accuracy",
        "downstream_accuracy_std",
        "downstream_probe",
    ]
    assert list(result["metrics"]) == [f"{split}/{name}" for split in ("val", "test") for name in names]
    assert set(result["baselines"]) == {
        "most frequent token",
        "left neighbour",
        "left + right neighbour",
        "2 + 2 neighbours",
        "from scratch",
        "tf-idf + logistic",
        "most frequent class",
    }
    assert set(result["baselines"]["from scratch"]) == {f"test/{name}" for name in names[3:]}
    curve = [row for row in read_rows(run / "metrics.csv") if "val/accuracy" in row]
    assert [row["step"] for row in curve] == [3, 6]
    assert curve[-1]["val/accuracy"] == pytest.approx(result["metrics"]["val/masked_accuracy"], abs=1e-6)
    assert curve[-1]["val/loss"] == pytest.approx(result["metrics"]["val/masked_loss"], abs=1e-4)


WEIGHTS = ("config.json", "model.safetensors")


def test_evaluating_once_more_gives_the_same_figures_from_the_exported_weights(run: Path, tmp_path: Path) -> None:
    stored = yaml.safe_load((run / "config.yaml").read_text())
    result = launch({**stored, "mode": "eval", "checkpoint": str(run)}, tmp_path / "eval")
    first = json.loads((run / "result.json").read_text())
    assert result["metrics"] == first["metrics"]
    assert result["baselines"] == first["baselines"]


FRESH = """
import sys, torch
checkpoint, folder, text = sys.argv[1:]
state = torch.load(checkpoint, weights_only=True)["state_dict"]       # before anything of ours is imported
import zoo
from recipes.data.text.tokenizers import Tokenizer
model = zoo.load_pretrained(folder)
for name, value in model.state_dict().items():
    assert torch.equal(value, state[f"ema.module.{name}"]), name
assert model.head.table.data_ptr() == model.embed.weight.data_ptr()
from recipes.masked.answer import filled, told_classes
tokenizer = Tokenizer.load(folder)
assert tokenizer.decode(tokenizer.encode(text)) == text
classifier = zoo.load_pretrained(folder + "/classifier_0")
print(filled(model, tokenizer, "b_ke", 3), told_classes(classifier, tokenizer, text, ["one", "two"]))
"""


def test_the_export_reloads_in_a_fresh_process_tied_and_with_the_moving_average(run: Path, root: Path) -> None:
    """open-retina/open-retina#186 and NVIDIA-NeMo/Automodel#2571; huggingface/tokenizers#608 for the tokenizer."""
    words = [sys.executable, "-W", "ignore", "-c", FRESH, str(checkpoints(run / "checkpoints")[-1]), str(run / "model")]
    done = subprocess.run([*words, " Zoë\t b  "], cwd=root, capture_output=True, text=True, env={**os.environ})
    assert done.returncode == 0, done.stderr
    from recipes.masked.answer import told_classes
    from zoo.library import load_pretrained

    tokenizer, model = Tokenizer.load(run / "model"), load_pretrained(run / "model")
    classes = told_classes(load_pretrained(run / "model" / "classifier_0"), tokenizer, " Zoë\t b  ", ["one", "two"])
    assert done.stdout.strip() == f"{filled(model, tokenizer, 'b_ke', 3)} {classes}"


def test_a_run_that_is_taken_up_ends_where_one_that_never_stopped_does(
    table: Path, tmp_path: Path, training_only: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights, tokenizer, order, masks and draws of ELECTRA are those that the run would have had."""
    changes = {"model": {"family": "electra", "generator_share": 0.5}}
    whole = launch(settings_of(table, **changes), tmp_path / "whole")
    export = Bert.export

    def broken(self: Any, model: Any, data: Any, folder: Path) -> None:
        raise RuntimeError("stopped here")

    monkeypatch.setattr(Bert, "export", broken)
    out = tmp_path / "stopped"
    with pytest.raises(RuntimeError, match="stopped here"):
        launch(settings_of(table, **changes), out)
    checkpoints(out / "checkpoints")[-1].unlink()  # as if it had ended two steps before
    monkeypatch.setattr(Bert, "export", export)
    again = launch(settings_of(table, **changes) | {"resume": str(out)}, out)
    assert again["steps"] == whole["steps"] == 6
    assert again["metrics"] == whole["metrics"]


def test_masks_are_filled_and_words_classified_on_the_command_line(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert predict(run, ["--prompt", "b_k_", "--prompt", "b[MASK]ke", "--prompt", "bake"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(": ")[0] for line in lines] == ["b_k_ mask 1", "b_k_ mask 2", "b[MASK]ke", "bake"]
    for line in lines[:3]:
        shares = [float(found.split()[1]) for found in line.partition(": ")[2].split("  ")]
        assert len(shares) == 5
        assert shares == sorted(shares, reverse=True)
    assert {found.split()[0] for found in lines[3].partition(": ")[2].split("  ")} == {"one", "two"}

    (tmp_path / "words.txt").write_text("sta_e\n\nmold\n")
    assert predict(run, ["--input", str(tmp_path / "words.txt"), "--json", "--top", "99"]) == 0
    masks, classes = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert sum(found["probability"] for found in masks["masks"][0]) == pytest.approx(1, abs=1e-4)
    assert all("<" not in found["token"] for found in masks["masks"][0])
    assert sum(found["probability"] for found in classes["classes"]) == pytest.approx(1, abs=1e-4)


def test_a_filled_mask_is_the_models_own_likeliest_letter(run: Path) -> None:
    from zoo.library import load_pretrained

    model: Any = load_pretrained(run / "model")
    tokenizer = Tokenizer.load(run / "model")
    ids = [tokenizer.cls_id, *tokenizer.encode("m"), tokenizer.mask_id, *tokenizer.encode("ke"), tokenizer.sep_id]
    logits = model(torch.tensor([ids])).detach()[0, 2, tokenizer.text_first :].softmax(-1)
    (found,) = filled(model, tokenizer, "m_ke", 1)
    assert found[0][0] == tokenizer.name(tokenizer.text_first + int(logits.argmax()))
    assert found[0][1] == pytest.approx(float(logits.max()), abs=1e-6)


@pytest.mark.parametrize("argv", [[], ["--top", "0", "--prompt", "a_"], ["--input", "nowhere.txt"], ["a_b"]])
def test_wrong_words_to_predict_are_told_in_one_line(run: Path, argv: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"predict: .*(use RUN_DIR --prompt|cannot read 'nowhere.txt')") as caught:
        predict(run, argv)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"task": {"probabilty": 0.3}}, "task.probabilty: unknown key, did you mean 'probability'"),
        ({"task": {"mask": 0.9, "random": 0.2}}, "task.mask: should be at most 1 with task.random, got 1.1"),
        ({"task": {"tokenizer": {"name": "characters", "special": ["pad"]}}}, "task.tokenizer.special: needs cls"),
        ({"task": {"pretrained": "x"}}, "task.pretrained: 'x' is not a run folder with an exported model"),
        ({"task": {"downstream": {"lables": 3}}}, "task.downstream.lables: unknown key, did you mean 'labels'"),
        ({"model": {"vocab_size": 3}}, "model.vocab_size: should be the "),
        ({"model": {"max_len": 3}}, "model.max_len: should be task.length 24 or more, got 3"),
        ({"model": {"num_classes": 3}}, "model.num_classes: should be 0"),
        ({"model": {"masked_lm": False}}, "model.masked_lm: should be true"),
        ({"model": {"family": "vit"}}, "model: 'vit' does not tell masked tokens; choose bert, electra or a preset"),
        ({"model": {"family": "electra", "next_sentence": True}}, "model.next_sentence: ELECTRA has no"),
        ({"model": {"next_sentence": True, "token_types": 1}}, "model.token_types: should be 2 or more"),
        ({"data": {"path": "nowhere.csv"}}, "nowhere.csv"),
    ],
)
def test_a_wrong_setting_is_told_in_one_line_and_leaves_nothing(
    changes: Any, told: str, table: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        launch(settings_of(table, **changes), tmp_path / "run")
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_corpus_of_images_is_refused(table: Path, tmp_path: Path) -> None:
    settings = {**settings_of(table), "data": {"name": "digits"}}
    with pytest.raises(ConfigError, match="data: 'digits' is no text; choices: cmudict_words, kjv"):
        launch(settings, tmp_path / "run")


def test_electra_trains_both_parts_and_its_discriminator_is_fine_tuned(
    table: Path, tmp_path: Path, training_only: None, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = settings_of(table, model={"family": "electra", "generator_share": 0.5}, trainer={"max_steps": 3})
    result = launch(settings, tmp_path / "run")
    assert {"test/replaced_accuracy", "test/replaced_share", "test/downstream_accuracy"} <= set(result["metrics"])
    assert "val/generator_loss" in read_rows(tmp_path / "run" / "metrics.csv")[-2]
    capsys.readouterr()
    assert predict(tmp_path / "run", ["--prompt", "b_ke", "--prompt", "bake"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    again = launch({**settings, "mode": "eval", "checkpoint": str(tmp_path / "run")}, tmp_path / "eval")
    assert again["metrics"] == result["metrics"]


def test_next_sentence_prediction_trains_beside_the_masks(table: Path, tmp_path: Path, training_only: None) -> None:
    settings = settings_of(table, model={"next_sentence": True}, trainer={"max_steps": 3})
    result = launch(settings, tmp_path / "run")
    assert 0 <= result["metrics"]["test/next_sentence_accuracy"] <= 1
    assert "val/next_sentence_loss" in read_rows(tmp_path / "run" / "metrics.csv")[-2]


def test_a_text_without_labels_is_pre_trained_on_alone(table: Path, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.mkdir()
    for number in range(40):
        (text / f"{number}.txt").write_text(f"the {ONSETS[number % 6]}ake is old and the {number} men sing\n" * 3)
    settings = settings_of(
        table,
        trainer={"max_steps": 3},
        task={"whole_word": True, "tokenizer": {"name": "wordpiece", "vocab_size": 96, "special": SPECIAL}},
    )
    settings["data"] = {"name": "hub_text", "path": str(text), "splits": {"val": None, "test": None}, "held_out": 0.2}
    result = launch(settings, tmp_path / "run")
    names = ("masked_accuracy", "hidden_accuracy", "masked_loss")
    assert list(result["metrics"]) == [f"{split}/{name}" for split in ("val", "test") for name in names]
    assert "from scratch" not in result["baselines"]
    with pytest.raises(ConfigError, match=r"predict: 'the men' has no mask to fill in; write \[MASK\]"):
        predict(tmp_path / "run", ["--prompt", "the men"])


SPECIAL = ["pad", "cls", "sep", "mask"]


def test_a_run_starts_from_the_weights_and_tokenizer_of_another(
    run: Path, table: Path, tmp_path: Path, training_only: None
) -> None:
    settings = settings_of(table, trainer={"max_steps": 2}, optim={"lr": 1e-12}, task={"pretrained": str(run)})
    result = launch(settings, tmp_path / "run")
    first = json.loads((run / "result.json").read_text())["metrics"]["test/masked_loss"]
    assert result["metrics"]["test/masked_loss"] == pytest.approx(first, abs=1e-5)
    with pytest.raises(ConfigError, match=r"task.pretrained: the weights in .* do not fit"):
        launch(settings_of(table, model={"dim": 8}, task={"pretrained": str(run)}), tmp_path / "other")


COMMANDS = [
    ["data=cmudict_words"],
    ["data=kjv"],
    ["data=kjv", "budget=long"],
    ["data=sst2"],
    ["data=imdb"],
    ["data=wikitext"],
    ["data=text_files", "data.path=x"],
    ["data=kjv", "data.unit=chapter", "model.next_sentence=true", "model.token_types=2", "model.pooler=true"],
    ["model=electra", "model.dim=64", "model.depth=3", "model.heads=4"],
    ["optim=adamw", "task.mask=1", "task.random=0", "task.whole_word=true"],
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_committed_setting_makes_a_model_and_its_optimizer(words: list[str]) -> None:
    from zoo import run as command_line

    settings = command_line.compose(["recipe=bert", *words])
    recipe = Bert(settings)
    tokenizer = recipe.task.tokenizer.train(["the words of a corpus"])
    facts: Any = type("Facts", (), {"tokenizer": tokenizer})
    with torch.device("meta"):
        model = recipe.model_config(facts).build()
    optim = decode("optim", settings["optim"], "optim")
    assert sum(len(group["params"]) for group in parameter_groups(model, optim)) == len(list(model.parameters()))
    assert optim.schedule.factor(0, settings["trainer"]["max_steps"]) > 0
