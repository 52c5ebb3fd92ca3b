"""The transformer recipe from settings to answers: a whole small run, evaluated again, and asked in a fresh process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from recipes.callbacks.checkpoints import checkpoints
from recipes.launch import launch, predict
from recipes.recipe import recipe_names
from recipes.seq2seq.base import Seq2SeqRecipe
from tests.recipes.pairs import pair_settings, write_pairs
from zoo.registry import ConfigError


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pairs(tmp_path_factory.mktemp("pairs"))


@pytest.fixture(scope="module")
def run(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run folder."""
    out = tmp_path_factory.mktemp("transformer") / "run"
    launch(pair_settings(source, task={"beams": 2}), out)
    return out


def test_a_run_folder_holds_all_that_is_promised(run: Path) -> None:
    held = {str(path.relative_to(run)) for path in run.rglob("*") if path.is_file()}
    assert held == {
        "config.yaml",
        "metrics.csv",
        "result.json",
        "log.txt",
        "model/config.json",
        "model/model.safetensors",
        "model/answering.json",
        "model/source/tokenizer_roles.json",
        "model/target/tokenizer_roles.json",
        "checkpoints/step=00000004.ckpt",
        "checkpoints/step=00000006.ckpt",
        "figures/learning_curves.png",
        "figures/errors_by_length.png",
        "figures/attention.png",
        "figures/samples.txt",
    }
    for picture in (run / "figures").glob("*.png"):
        with Image.open(picture) as image:
            assert np.asarray(image.convert("L")).std() > 5, f"{picture.name} is blank"
    result = json.loads((run / "result.json").read_text())
    names = {"per", "wer", "loss", "token_accuracy"}
    greedy = {"test/per@greedy", "test/wer@greedy"}
    assert set(result["metrics"]) == {f"{split}/{name}" for split in ("val", "test") for name in names} | greedy
    assert result["examples"] == 6 * 20
    assert result["flops_per_token"] > 0
    (name, letters), *rest = result["baselines"].items()
    assert name.startswith("most frequent symbol")
    assert letters == {"test/per": 0.0, "test/wer": 0.0}  # the task of this corpus is that easy
    assert not rest  # published figures belong to their own data
    told = (run / "log.txt").read_text()
    assert f"{result['metrics']['test/per']:.4f}" in told and name[:20] in told
    assert len((run / "figures" / "samples.txt").read_text().splitlines()) == 20


def test_one_table_serves_source_target_and_head(run: Path) -> None:
    """NVIDIA-NeMo/Automodel#2571: after export and in a checkpoint too."""
    from safetensors.torch import load_file

    import zoo

    model: Any = zoo.load_pretrained(run / "model")
    assert model.head.table.data_ptr() == model.embed.weight.data_ptr()
    assert model.source_embed is None
    names = load_file(run / "model" / "model.safetensors")
    assert [name for name in names if "embed" in name or name.startswith("head")] == ["embed.weight"]
    state = torch.load(checkpoints(run / "checkpoints")[-1], weights_only=True)["state_dict"]
    assert [name for name in state if name.endswith("embed.weight")] == [
        "model.embed.weight",
        "ema.module.embed.weight",
    ]


def test_evaluating_once_more_gives_the_same_figures(
    run: Path, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = yaml.safe_load((run / "config.yaml").read_text())
    result = launch({**stored, "mode": "eval", "checkpoint": str(run)}, tmp_path / "eval")
    first = json.loads((run / "result.json").read_text())
    assert result["metrics"] == first["metrics"]
    assert result["baselines"] == first["baselines"]


def test_other_data_is_read_with_the_tokenizers_of_the_run(run: Path, tmp_path: Path) -> None:
    other = write_pairs(tmp_path / "pairs", 60)
    for file in other.iterdir():
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        rows = [{"word": row["source"].replace("a", "z"), "target": row["target"]} for row in rows]  # no z in training
        file.write_text("\n".join(map(json.dumps, rows)) + "\n")
    stored = yaml.safe_load((run / "config.yaml").read_text())
    data = {**stored["data"], "path": str(other), "columns": {"source": "word"}}
    settings = {**stored, "mode": "eval", "checkpoint": str(run), "data": data, "task": {"eval_batch_size": 5}}
    result = launch(settings, tmp_path / "eval")
    assert result["metrics"]["test/per"] > 0


FRESH = """
import builtins, sys
from pathlib import Path
kept = builtins.__import__
def guarded(name, *rest, **more):
    assert name.split(".")[0] not in ("datasets", "lightning"), name   # neither data nor a trainer is needed
    return kept(name, *rest, **more)
builtins.__import__ = guarded
from zoo import paths
paths.use()
from recipes.launch import predict
sys.exit(predict(Path(sys.argv[1]), sys.argv[2:]) or predict(Path(sys.argv[1]), [*sys.argv[2:], "--beams", "3"]))
"""


def test_a_fresh_process_gives_the_same_answers_without_the_data(
    run: Path, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = tmp_path / "words.txt"
    words.write_text("abc\n\nfade\nDEAF\n")
    asked = ["bead", "--input", str(words)]
    for options in ([], ["--beams", "3"]):
        assert predict(run, [*asked, *options]) == 0
    here = capsys.readouterr().out
    assert len(here.split("\n")) == 2 * 5 + 1
    done = subprocess.run([sys.executable, "-c", FRESH, str(run), *asked], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == here
    assert predict(run, ["--json", "bead"]) == 0
    assert json.loads(capsys.readouterr().out)["source"] == "bead"


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        ([], "predict: nothing to answer; use RUN_DIR TEXT"),
        (["--input", "nowhere.txt"], "--input: cannot read 'nowhere.txt'"),
        (["--input", "."], "--input: cannot read '.'"),
        (["a", "--beams", "0"], "--beams should be at least 1, got 0"),
        (["a", "--beam", "2"], "predict: unrecognized arguments: --beam"),
    ],
)
def test_wrong_words_to_predict_are_told_in_one_line(run: Path, argv: list[str], told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        predict(run, argv)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.fixture
def training_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what other tests look at."""
    monkeypatch.setattr(Seq2SeqRecipe, "baselines", lambda self, data: {})
    monkeypatch.setattr(Seq2SeqRecipe, "figures", lambda self, model, data, folder: [])


@pytest.mark.usefixtures("training_only")
def test_a_run_that_goes_on_ends_with_the_same_weights(source: Path, tmp_path: Path) -> None:
    launch(pair_settings(source), tmp_path / "whole")
    launch(pair_settings(source, trainer={"max_steps": 4}), tmp_path / "cut")
    kept = tmp_path / "cut" / "config.yaml"
    kept.write_text(kept.read_text().replace("max_steps: 4", "max_steps: 6"))
    (tmp_path / "cut" / "result.json").unlink()
    launch({**pair_settings(source), "resume": str(tmp_path / "cut")}, tmp_path / "cut")
    whole, cut = (torch.load(checkpoints(tmp_path / name / "checkpoints")[-1]) for name in ("whole", "cut"))
    for name, value in whole["state_dict"].items():
        assert torch.equal(value, cut["state_dict"][name]), name


def test_the_recurrent_arm_runs_in_the_same_recipe(source: Path, tmp_path: Path) -> None:
    settings = pair_settings(source, trainer={"max_steps": 3})
    settings["model"] = {"family": "rnn", "dim": 16}
    result = launch(settings, tmp_path / "run")
    assert result["status"] == "ok" and result["model"] == "rnn"
    assert (tmp_path / "run" / "figures" / "attention.png").is_file()
    assert predict(tmp_path / "run", ["fade", "--beams", "2"]) == 0


def test_texts_with_one_tokenizer_get_overlap_figures(source: Path, tmp_path: Path) -> None:
    tokenizer = {"name": "bpe", "vocab_size": 280, "special": ["pad", "bos", "eos"]}
    task = {"tokenizer": tokenizer, "target_tokenizer": None, "max_tokens": 12, "limit": 50}
    result = launch(pair_settings(source, task=task, trainer={"max_steps": 2}), tmp_path / "run")
    names = {"exact_match", "bleu", "chrf", "loss", "token_accuracy"}
    assert set(result["metrics"]) == {f"{split}/{name}" for split in ("val", "test") for name in names}
    assert set(result["baselines"]) == {"the source itself"}
    assert (tmp_path / "run" / "model" / "source" / "tokenizer.json").is_file()
    assert predict(tmp_path / "run", ["a text of a user that is longer than twelve tokens"]) == 0


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"model": {"family": "vit"}}, "model: 'vit' has no encoder and decoder; choices: transformer"),
        ({"model": {"vocab_size": 5}}, "model.vocab_size: should be the"),
        ({"model": {"start_id": 0}}, "model.start_id: should be 1"),
        ({"model": {"dpeth": 3}}, "model.dpeth: unknown key, did you mean 'depth'"),
        ({"data": {"name": "digits", "path": None}}, "data.path: unknown key"),
        ({"task": {"beems": 3}}, "task.beems: unknown key, did you mean 'beams'"),
        ({"task": {"tokenizer": {"name": "characters", "special": ["pad"]}}}, "task.tokenizer.special: needs 'eos'"),
    ],
)
def test_a_wrong_setting_is_told_in_one_line_and_leaves_nothing(
    changes: Any, told: str, source: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        launch(pair_settings(source, **changes), tmp_path / "run")
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_data_without_pairs_is_refused(source: Path, tmp_path: Path) -> None:
    settings = pair_settings(source)
    settings["data"] = {"name": "digits"}
    with pytest.raises(ConfigError, match="data: 'digits' is no corpus of pairs; choices: cmudict, hub_pairs"):
        launch(settings, tmp_path / "run")


def test_it_is_found_by_name() -> None:
    assert {"transformer", "t5"} <= set(recipe_names())
