"""The recipe of speech recognition from settings to answers: a whole small run, and the words of odd audio files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from PIL import Image

from recipes.data.speech.clips import SpeechData
from recipes.launch import launch, predict
from recipes.recipe import find_recipe
from recipes.speech.baselines import constant_answer, equal_pieces
from recipes.speech.metrics import by_speaker, speech_errors
from recipes.speech.windows import pieces
from tests.recipes.speech import quiet, speech_settings, tones, write_recordings
from zoo.registry import ConfigError

RATE = 16000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_recordings(tmp_path_factory.mktemp("recordings"), margin=0.12)


@pytest.fixture(scope="module")
def run(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run folder, of a model that has learnt its three tones."""
    out = tmp_path_factory.mktemp("whisper") / "run"
    launch(speech_settings(folder, trainer={"max_steps": 200, "val_check_interval": 100, "save_every": 200}), out)
    return out


@pytest.fixture
def recipe(folder: Path) -> Any:
    return find_recipe("whisper")(speech_settings(folder, task={"beams": 2}))


# --- figures by hand


def test_error_rates_are_those_counted_by_hand() -> None:
    spoken = ["one two three", "four", "", "five six", ""]
    written = ["one three three nine", "", "two two", "five six", ""]
    found = speech_errors(written, spoken)
    assert found["wer"] == pytest.approx((1 + 1 + 1 + 0) / 6)  # a substitution, an insertion; a deletion
    assert found["ser"] == pytest.approx(2 / 3)
    assert found["invented"] == 1.0  # two words for two clips without speech
    # "two" -> "three": two letters changed, two put in; " nine" put in; "four" left out
    assert found["cer"] == pytest.approx((4 + 5 + 4) / (13 + 4 + 8))
    assert speech_errors(["a"], ["a"]) == {"wer": 0.0, "cer": 0.0, "ser": 0.0}
    assert speech_errors(["a b"], [""]) == {"invented": 2.0}
    assert speech_errors(["", ""], ["a", "b c"])["wer"] == 1.0


def test_errors_by_voice_put_the_worst_first() -> None:
    found = by_speaker(["a", "x", "b", "q"], ["a", "a", "b c", ""], ["u", "v", "u", "v"])
    assert list(found.items()) == [("v", 1.0), ("u", pytest.approx(1 / 3))]


def test_the_constant_answer_is_the_best_of_the_training_texts() -> None:
    assert constant_answer(["a", "b", "b", "c b", ""]) == "b"


def test_equal_pieces_solve_tones_and_beat_a_constant(folder: Path) -> None:
    data = find_recipe("whisper")(speech_settings(folder)).load()
    answers = equal_pieces(data.train.examples, data.test.examples)
    assert answers is not None
    assert speech_errors(answers, data.speech.test.texts)["wer"] < 0.5


# --- the run


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
        "model/words/tokenizer_roles.json",
        "checkpoints/step=00000200.ckpt",
        "figures/learning_curves.png",
        "figures/errors_by_voice.png",
        "figures/attention.png",
        "figures/sample_0.wav",
        "figures/sample_1.wav",
        "figures/samples.txt",
    }
    for picture in (run / "figures").glob("*.png"):
        with Image.open(picture) as image:
            assert np.asarray(image.convert("L")).std() > 5, f"{picture.name} is blank"
    sound, rate = soundfile.read(run / "figures" / "sample_0.wav")
    assert rate == RATE and np.abs(sound).max() > 0.1
    lines = (run / "figures" / "samples.txt").read_text().splitlines()
    assert len(lines) == 2 and lines[0].startswith("sample_0.wav (")


def test_the_table_has_baselines_and_the_model_beats_them(run: Path) -> None:
    result = json.loads((run / "result.json").read_text())
    metrics, baselines = result["metrics"], result["baselines"]
    names = {"wer", "cer", "ser", "loss", "token_accuracy"}
    assert set(metrics) == {f"{split}/{name}" for split in ("val", "test") for name in names}
    assert baselines["nothing"]["test/wer"] == 1.0
    constant = next(value for name, value in baselines.items() if name.startswith("always"))
    assert metrics["test/wer"] < 0.5 * constant["test/wer"] <= 0.5
    assert "equal pieces, logistic regression" in baselines
    assert "nothing" in (run / "log.txt").read_text()


def test_the_run_is_evaluated_again_with_its_own_tokenizer(run: Path, tmp_path: Path) -> None:
    result = json.loads((run / "result.json").read_text())
    other = write_recordings(tmp_path / "other", 24)
    settings = speech_settings(other, task={"beams": 2}) | {"mode": "eval", "checkpoint": str(run)}
    settings["model"] = json.loads((run / "model" / "config.json").read_text()).get("model", settings["model"])
    found = launch(settings, tmp_path / "eval")
    assert found["metrics"]["test/wer"] <= 0.5
    assert "test/wer@greedy" in found["metrics"]
    assert result["metrics"].keys() < found["metrics"].keys()


def test_seen_and_unseen_voices_have_figures_of_their_own(recipe: Any) -> None:
    data = recipe.load()
    speech: SpeechData = data.speech
    test, train = speech.test, speech.train
    mixed = SpeechData(train, speech.val, type(test)(
        test.texts[:2] + train.texts[:1], test.speakers[:2] + train.speakers[:1], np.zeros(3), test.read
    ), "", "")  # fmt: skip
    data = type(data)(mixed, data.tokenizer, data.answering, data.train, data.val, data.test)
    answers = [test.texts[0], "", train.texts[0] + " low"]
    found = recipe._scored(answers, data, "test")
    words = [len(text.split()) for text in mixed.test.texts]
    assert found["unseen_wer"] == pytest.approx(words[1] / (words[0] + words[1]))
    assert found["seen_wer"] == pytest.approx(1 / words[2])
    assert found["wer"] == pytest.approx((words[1] + 1) / sum(words))
    assert found["unseen_ser"] == 0.5 and found["seen_ser"] == 1.0


def test_loss_is_summed_over_real_targets_whatever_the_batch(recipe: Any) -> None:
    """Lightning-AI/pytorch-lightning#20350: micro-batches of unequal target counts."""
    data = recipe.load()
    torch.manual_seed(0)
    model = recipe.model_config(data).build().eval()
    whole = data.train.batch([0, 1, 2, 3, 4], None)
    assert len({int(count) for count in (whole["labels"] != -100).sum(1)}) > 1
    together = float(recipe.loss(model, whole)[0])
    alone = sum(float(recipe.loss(model, data.train.batch([row], None))[0]) for row in range(5))
    assert together == pytest.approx(alone, rel=1e-5)
    noisy = {**whole, "source": whole["source"].clone()}
    noisy["source"].masked_fill_(~whole["source_mask"][:, None], 7.0)
    assert float(recipe.loss(model, noisy)[0]) == together, "padded frames are heard"


def test_mistakes_are_told_in_one_line(folder: Path, tmp_path: Path) -> None:
    whisper = find_recipe("whisper")
    with pytest.raises(ConfigError, match="needs 'eos'"):
        whisper(speech_settings(folder, task={"tokenizer": {"name": "words", "special": ["pad", "bos"]}})).load()
    with pytest.raises(ConfigError, match="reads no speech"):
        whisper({**speech_settings(folder), "model": {"family": "gpt"}}).load()
    with pytest.raises(ConfigError, match="holds no speech"):
        whisper({**speech_settings(folder), "data": {"name": "digits"}}).load()
    recipe = whisper(speech_settings(folder, model={"start_id": 3}))
    data = recipe.load()
    with pytest.raises(ConfigError, match="start_id"):
        recipe.model_config(data)


# --- windows and silence


def test_pieces_are_short_and_lose_no_sound() -> None:
    beep = torch.from_numpy(tones(["low"], RATE))
    audio = torch.cat([torch.cat([beep, torch.zeros(RATE // 5)]) for _ in range(12)])
    found = pieces(audio, 1.0)
    assert all(len(piece) <= RATE for piece in found)
    assert len(found) >= 5
    energy = sum(float(piece.square().sum()) for piece in found)
    assert energy == pytest.approx(float(audio.square().sum()), rel=1e-4)
    for piece in found:  # cut between the beeps: each lasts 0.2 s
        loud = float((piece.abs() > 0.05).float().sum()) / float((beep.abs() > 0.05).float().sum())
        assert abs(loud - round(loud)) < 0.02


def test_silence_has_no_piece() -> None:
    for audio in (torch.zeros(1), torch.zeros(5 * RATE), 5e-4 * torch.randn(3 * RATE)):
        assert pieces(audio, 1.0) == []
    assert len(pieces(torch.full((1,), 0.5), 1.0)) == 1
    word = torch.cat([torch.zeros(3 * RATE), torch.from_numpy(tones(["low"], RATE)), torch.zeros(3 * RATE)])
    (piece,) = pieces(word, 2.0)
    assert len(piece) <= 0.41 * RATE


# --- answers


def test_files_of_any_kind_are_answered(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rates, channels, widths and kinds of files; the words are the same."""
    words = ["low", "high"]
    soundfile.write(tmp_path / "plain.wav", tones(words, rate=RATE), RATE)
    soundfile.write(tmp_path / "eight.wav", tones(words, rate=RATE), RATE, subtype="PCM_U8")
    soundfile.write(tmp_path / "float.wav", tones(words, rate=RATE), RATE, subtype="FLOAT")
    stereo = tones(words, rate=96000)
    soundfile.write(tmp_path / "stereo.flac", np.stack([stereo, 0.3 * stereo], axis=1), 96000)
    soundfile.write(tmp_path / "some.ogg", tones(words, rate=22050), 22050)
    soundfile.write(tmp_path / "some.mp3", tones(words, rate=44100), 44100)
    files = ["plain.wav", "eight.wav", "float.wav", "stereo.flac", "some.ogg", "some.mp3"]
    assert predict(run, [*(str(tmp_path / name) for name in files), "--json"]) == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [Path(told["file"]).name for told in answers] == files
    assert [told["text"] for told in answers] == ["low high"] * len(files)


def test_silent_and_tiny_files_have_no_words(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    soundfile.write(tmp_path / "silence.wav", np.zeros(4 * RATE), RATE)
    soundfile.write(tmp_path / "faint.wav", 3e-4 * np.random.default_rng(0).standard_normal(2 * RATE), RATE)
    soundfile.write(tmp_path / "one.wav", np.zeros(1), RATE)
    files = [str(tmp_path / f"{name}.wav") for name in ("silence", "faint", "one")]
    assert predict(run, files) == 0
    assert capsys.readouterr().out.splitlines() == [f"{file}:" for file in files]
    soundfile.write(tmp_path / "click.wav", np.full(1, 0.5), RATE)
    assert predict(run, [str(tmp_path / "click.wav")]) == 0


def test_broken_files_are_named_and_the_rest_is_answered(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    soundfile.write(tmp_path / "good.wav", tones(["high"], rate=RATE), RATE)
    soundfile.write(tmp_path / "empty.wav", np.zeros(0), RATE)
    soundfile.write(tmp_path / "nan.wav", np.array([0.1, np.nan] * 4000), RATE, subtype="FLOAT")
    (tmp_path / "text.wav").write_text("no sound at all")
    names = ["text.wav", "good.wav", "empty.wav", "nan.wav", "missing.wav"]
    assert predict(run, [str(tmp_path / name) for name in names]) == 1
    told = capsys.readouterr()
    assert told.out.splitlines() == [f"{tmp_path / 'good.wav'}: high"]
    errors = told.err.splitlines()
    assert len(errors) == 4
    for line, name in zip(errors, ("text.wav", "empty.wav", "nan.wav", "missing.wav"), strict=True):
        assert line.startswith("error: ") and name in line
    assert predict(run, [str(tmp_path / "nan.wav"), "--json"]) == 1
    assert "not numbers" in json.loads(capsys.readouterr().out)["error"]


def test_a_long_file_is_heard_in_windows(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words, pause = ["low", "high", "mid"] * 5, quiet(0.25, RATE)
    audio = np.concatenate([part for word in words for part in (tones([word], rate=RATE), pause)])
    assert json.loads((run / "model" / "answering.json").read_text())["seconds"] < 1.0 < len(audio) / RATE
    soundfile.write(tmp_path / "long.wav", audio, RATE)
    assert predict(run, [str(tmp_path / "long.wav")]) == 0
    heard = capsys.readouterr().out.partition(": ")[2].split()
    assert speech_errors([" ".join(heard)], [" ".join(words)])["wer"] <= 0.2


def test_wrong_words_on_the_command_line_are_refused(run: Path) -> None:
    with pytest.raises(ConfigError, match="--beams should be at least 1, got 0"):
        predict(run, ["a.wav", "--beams", "0"])
    with pytest.raises(ConfigError, match=r"use RUN_DIR file\.wav"):
        predict(run, [])


def test_a_fresh_process_answers_and_its_exit_code_tells_of_a_broken_file(run: Path, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", tones(["low", "mid"], rate=RATE), RATE)
    command = [sys.executable, "-m", "zoo.predict", str(run), str(tmp_path / "a.wav"), str(tmp_path / "b.wav")]
    done = subprocess.run([*command, "--beams", "2"], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stdout.splitlines() == [f"{tmp_path / 'a.wav'}: low mid"]
    assert "b.wav" in done.stderr and "Traceback" not in done.stderr
