"""The language model's recipe from settings to answers: a whole small run on a text of its own, and its parts."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import zoo
from recipes.gpt import Gpt
from recipes.language.scoring import ENTRIES, score
from recipes.launch import launch, predict
from recipes.recipe import find_recipe
from zoo.registry import ConfigError

WORDS = ("the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "sleeps", "under", "some", "tall", "tree")

SPLITS = {"train": "train", "val": None, "test": None}
"""All three from one file."""


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hundred and fifty paragraphs of random words."""
    draw = torch.Generator().manual_seed(0)
    file = tmp_path_factory.mktemp("text") / "words.txt"
    paragraphs = [
        " ".join(WORDS[i] for i in torch.randint(len(WORDS), (12,), generator=draw).tolist()) for _ in range(150)
    ]
    file.write_text("\n\n".join(paragraphs), encoding="utf-8")
    return file


def settings(text: Path, **changes: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "name": "gpt",
        "seed": 0,
        "mode": "train",
        "checkpoint": None,
        "resume": None,
        "model": {"family": "gpt", "dim": 16, "depth": 1, "heads": 2, "position": "rope", "init_std": "fan_in"},
        "data": {
            "name": "hub_text",
            "path": str(text),
            "unit": "paragraph",
            "splits": {"train": "train", "val": None, "test": None},
        },
        "optim": {"name": "muon", "lr": 1e-2, "schedule": {"name": "wsd", "warmup": 2}},
        "trainer": {"max_steps": 6, "log_every_n_steps": 2, "val_check_interval": 3},
        "logger": {"name": "csv"},
        "task": {
            "batch_size": 4,
            "context": 16,
            "tokenizer": {"name": "bpe", "vocab_size": 300},
            "ngrams": 3,
            "samples": 2,
            "sample_tokens": 12,
        },
    }
    for key, value in changes.items():
        made[key] = {**made[key], **value} if isinstance(value, dict) else value
    return made


@pytest.fixture(scope="module")
def run(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run folder."""
    out = tmp_path_factory.mktemp("gpt") / "run"
    launch(settings(text), out)
    return out


def test_a_run_reports_bits_per_character_beside_ngrams_and_compressors(run: Path) -> None:
    result = json.loads((run / "result.json").read_text())
    assert result["status"] == "ok" and result["steps"] == 6
    assert result["tokens"] == 6 * 4 * 16
    assert {"val/bits_per_character", "test/bits_per_character", "test/loss"} <= set(result["metrics"])
    assert any(name.startswith("test/bits_per_character@") for name in result["metrics"])
    assert set(result["baselines"]) == {
        "1-gram of characters",
        "2-gram of characters",
        "3-gram of characters",
        "zlib",
        "bz2",
        "xz",
        "xz after train",
    }
    held = {path.name for path in (run / "figures").iterdir()}
    assert held == {"learning_curves.png", "loss_by_place.png", "samples.txt"}
    assert "|" in (run / "figures" / "samples.txt").read_text()  # where the prompt ends


def test_evaluating_the_exported_model_gives_the_same_figures(run: Path, text: Path, tmp_path: Path) -> None:
    launch({**settings(text), "mode": "eval", "checkpoint": str(run)}, tmp_path)
    again = json.loads((tmp_path / "eval.json").read_text())["metrics"]
    assert again == json.loads((run / "result.json").read_text())["metrics"]


def test_another_text_is_read_with_the_tokenizer_of_the_model(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text("\n\n".join(f"Zwölf Boxkämpfer jagen Viktor № {n}." for n in range(150)), encoding="utf-8")
    launch({**settings(other), "mode": "eval", "checkpoint": str(run)}, tmp_path / "eval")
    metrics = json.loads((tmp_path / "eval" / "eval.json").read_text())["metrics"]
    assert metrics["test/bits_per_character"] > 4  # German was never seen


def made(text: Path, **changes: Any) -> tuple[Gpt, Any, Any]:
    recipe: Any = find_recipe("gpt")(settings(text, **changes))
    data = recipe.load()
    torch.manual_seed(0)
    return recipe, data, recipe.model_config(data).build().double().eval()


def test_every_token_but_the_first_is_scored_once_in_bits_per_character(text: Path) -> None:
    recipe, data, model = made(text)
    metrics = recipe.evaluate(model, data, "val")
    documents = data.corpus.val
    characters = sum(map(len, documents))
    nats, tokens = 0.0, 0
    with torch.no_grad():
        for document in documents:
            ids = [data.tokenizer.bos_id, *data.tokenizer.encode(document), data.tokenizer.eos_id]
            scored = 1
            while scored < len(ids):  # windows of 16, each going on 8 tokens after the one before
                start = 0 if scored == 1 else scored - 1 - 8
                stop = min(start + 16, len(ids) - 1)
                logits = model(torch.tensor([ids[start:stop]]))[0].log_softmax(-1)
                for place in range(scored, stop + 1):
                    nats -= float(logits[place - 1 - start, ids[place]])
                    tokens += 1
                scored = stop + 1
    assert tokens == sum(len(data.tokenizer.encode(document)) + 1 for document in documents)
    assert metrics["val/loss"] == pytest.approx(nats / tokens, rel=1e-9)
    assert metrics["val/bits_per_character"] == pytest.approx(nats / math.log(2) / characters, rel=1e-9)


def test_the_model_never_sees_what_it_predicts(text: Path) -> None:
    _, data, model = made(text)
    batch = data.train.batch([0, 1], None)
    before = model(batch["ids"])
    changed = batch["ids"].clone()
    changed[:, 9:] = 5
    assert torch.equal(model(changed)[:, :9], before[:, :9])
    following = data.train.batch([1], None)["ids"][0, 0]
    assert batch["labels"][0, :-1].tolist() == [
        -100 if id_ == data.tokenizer.bos_id else id_ for id_ in batch["ids"][0, 1:].tolist()
    ]
    assert batch["labels"][0, -1] in (following, -100)


def test_isolated_documents_change_nothing_of_each_other(text: Path) -> None:
    recipe, data, model = made(text, task={"isolate": True, "context": 64})
    batch = next(b for b in (data.train.batch([n], None) for n in range(20)) if len(b["documents"].unique()) > 1)
    second = batch["documents"][0] == 1
    loss = recipe.loss(model, batch)[0]
    changed = {**batch, "ids": torch.where(batch["documents"] == 0, 7, batch["ids"])}
    only = {"labels": torch.where(second[None], batch["labels"], -100)}
    assert torch.equal(recipe.loss(model, {**batch, **only})[0], recipe.loss(model, {**changed, **only})[0])
    assert not torch.equal(recipe.loss(model, changed)[0], loss)


def test_the_loss_is_the_sum_of_the_cross_entropies_of_real_labels(text: Path) -> None:
    recipe, data, model = made(text)
    batch = data.train.batch([0, len(data.train) - 1], None)  # the last row is padded
    logits = model(batch["ids"]).log_softmax(-1)
    wanted = sum(
        -float(logits[row, place, label].detach())
        for row, labels in enumerate(batch["labels"].tolist())
        for place, label in enumerate(labels)
        if label != -100
    )
    assert recipe.loss(model, batch)[0].item() == pytest.approx(wanted, rel=1e-9)
    assert data.train.targets(batch) == data.train.count_targets([0, len(data.train) - 1], None)


def test_scores_do_not_depend_on_how_many_logits_are_made_at_once(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, data, model = made(text)
    whole = score(model, recipe.eval_batches(data.val), data.characters)
    monkeypatch.setattr("recipes.language.scoring.ENTRIES", 7 * data.tokenizer.vocab_size)
    parts = score(model, recipe.eval_batches(data.val), data.characters)
    assert 7 * data.tokenizer.vocab_size < ENTRIES
    torch.testing.assert_close(parts.nats, whole.nats, rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"model": {"vocab_size": 5}}, "model.vocab_size: should be the 300 tokens of the tokenizer or more"),
        ({"model": {"family": "vit"}}, "model: 'vit' does not go on with a text; choose gpt or a preset of it"),
        ({"model": {"max_len": 8}}, "model.max_len: should be task.context 16 or more"),
        ({"task": {"stride": 17}}, "task.stride: should be at most task.context 16, got 17"),
        ({"data": "cmudict"}, "data: 'cmudict' is no text to be gone on with"),
        ({"task": {"tokenizer": {"name": "bpee"}}}, "unknown tokenizer 'bpee', did you mean 'bpe'?"),
    ],
)
def test_wrong_settings_are_told_in_one_line(text: Path, changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        made(text, **changes)
    assert told in str(refusal.value) and "\n" not in str(refusal.value)


def test_prompts_are_gone_on_with_and_the_seed_decides(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--prompt", "the quick", "--prompt", "", "--max-new-tokens", "8", "--seed", "3"]
    assert predict(run, words) == 0
    plain = capsys.readouterr().out
    assert plain.startswith("the quick")
    assert predict(run, [*words, "--json"]) == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["prompt"] for row in told] == ["the quick", ""]
    assert plain == "".join(f"{row['prompt']}{row['continuation']}\n" for row in told)
    assert predict(run, [*words, "--json"]) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == told


def test_greedy_text_equals_the_likeliest_tokens(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert predict(run, ["--prompt", "a lazy dog", "--greedy", "--max-new-tokens", "6", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)["continuation"]
    from recipes.data.text.tokenizers import Tokenizer

    model, tokenizer = zoo.load_pretrained(run / "model"), Tokenizer.load(run / "model")
    ids = [tokenizer.bos_id, *tokenizer.encode("a lazy dog")]
    new: list[int] = []
    with torch.no_grad():
        while len(new) < 6 and tokenizer.eos_id not in new:
            new.append(int(model(torch.tensor([ids + new]))[0, -1].argmax()))
    assert said == tokenizer.decode(new)


@pytest.mark.parametrize(
    "words", [[], ["--prompt"], ["--prompt", "a", "--top-p", "3"], ["--input", "no such file"], ["photo.png"]]
)
def test_wrong_words_are_refused(run: Path, words: list[str]) -> None:
    with pytest.raises(ConfigError) as refusal:
        predict(run, words)
    assert "\n" not in str(refusal.value)
