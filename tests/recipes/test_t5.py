"""The t5 recipe: objectives that see the training texts alone, then the task, in one run that can be taken up again."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from recipes.callbacks.checkpoints import checkpoints
from recipes.launch import launch, predict
from recipes.recipe import find_recipe
from recipes.seq2seq.base import Seq2SeqRecipe
from recipes.t5 import T5
from tests.recipes.pairs import pair_settings, write_pairs
from zoo.registry import ConfigError


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pairs(tmp_path_factory.mktemp("pairs"))


def settings(source: Path, **changes: Any) -> dict[str, Any]:
    task = {"pretrain_steps": 3, "density": 0.3, "mean_span": 2.0, **changes.pop("task", {})}
    return pair_settings(source, "t5", task=task, **changes)


def made(source: Path, **task: Any) -> tuple[T5, Any]:
    recipe = find_recipe("t5")(settings(source, task=task))
    assert isinstance(recipe, T5)
    return recipe, recipe.load()


def texts(data: Any) -> set[tuple[int, ...]]:
    """All texts of the training split, as ids."""
    pairs = data.corpus.train
    rows = [*data.vocabulary.sources([p.source for p in pairs]), *data.vocabulary.targets([p.target for p in pairs])]
    return {tuple(row.tolist()) for row in rows}


def real(row: Any, pad: int) -> list[int]:
    return [token for token in row.tolist() if token not in (pad, -100)]


@pytest.mark.parametrize("density", [0.15, 0.3, 0.55])
def test_spans_put_back_give_texts_of_the_training_split_and_each_comes_once(source: Path, density: float) -> None:
    """huggingface/transformers#14282: each sentinel once on either side, in the same order."""
    recipe, data = made(source, density=density)
    examples, known = recipe.pretraining(data), data.vocabulary
    sentinels, found = list(known.sentinel_ids), []
    batch = examples.batch(range(len(examples)), (0, 0))
    for row, labels, target in zip(batch["source"], batch["labels"], batch["target"], strict=True):
        kept, spans = real(row, known.pad_id), real(labels, known.pad_id)
        assert kept[-1] == spans[-1] == known.eos_id
        order = [token for token in kept if token in sentinels]
        assert order == [token for token in spans if token in sentinels] == sentinels[: len(order)]
        assert target.tolist()[: len(spans)] == [known.start_id, *spans[:-1]]
        taken: dict[int, list[int]] = {}
        for token in spans[:-1]:
            if token in sentinels:
                taken[token] = []
            else:
                taken[next(reversed(taken))].append(token)
        assert all(taken.values()) and len(kept) > len(order) + 1
        found.append(tuple(part for token in kept[:-1] for part in taken.get(token, [token])))
    assert len(found) == len(set(found)) and set(found) == texts(data)


@pytest.mark.parametrize("objective", ["prefix_lm", "bart_denoise"])
def test_other_objectives_write_training_texts_too(source: Path, objective: str) -> None:
    recipe, data = made(source, objective=objective)
    examples, known, held = recipe.pretraining(data), data.vocabulary, texts(data)
    batch = examples.batch(range(len(examples)), (0, 0))
    masks = 0
    for row, labels in zip(batch["source"], batch["labels"], strict=True):
        read, written = real(row, known.pad_id)[:-1], real(labels, known.pad_id)[:-1]
        masks += read.count(known.mask_id)
        assert tuple(read + written if objective == "prefix_lm" else written) in held
    assert (masks > 0) == (objective == "bart_denoise")


def test_no_text_of_val_or_test_and_no_pair_is_seen_before_the_task(source: Path) -> None:
    recipe, data = made(source)
    known, examples = data.vocabulary, recipe.pretraining(data)
    assert len(examples) == len(texts(data)) == 2 * len(data.corpus.train)
    for split in ("val", "test"):
        for pair in getattr(data.corpus, split):
            assert tuple(known.sources([pair.source])[0].tolist()) not in texts(data)
            assert tuple(known.targets([pair.target])[0].tolist()) not in texts(data)
    for batch in islice(recipe.train_batches(data, 1, 0, 1), 3):
        for row, labels in zip(batch["source"], batch["labels"], strict=True):
            letters, symbols = (
                [token for token in real(side, known.pad_id) if token >= known.first] for side in (row, labels)
            )
            sides = {token >= known.shift for token in letters + symbols}
            assert len(sides) == 1  # a row is all letters or all symbols


def test_the_task_begins_after_its_steps(source: Path) -> None:
    recipe, data = made(source, pretrain_steps=3)
    sentinels = torch.tensor(data.vocabulary.sentinel_ids)
    loader = recipe.train_batches(data, 2, 0, 1)  # accumulating two batches a step: six of pre-training
    seen = [bool(torch.isin(batch["source"], sentinels).any()) for _ in range(3) for batch in loader]
    assert seen == [True] * 6 + [False] * 12
    recipe, data = made(source, pretrain_steps=0)
    assert not any(torch.isin(batch["source"], sentinels).any() for batch in recipe.train_batches(data, 1, 0, 1))


def test_a_whole_run_answers_a_users_words(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = launch(settings(source), tmp_path / "run")
    assert result["status"] == "ok"
    assert result["examples"] == 6 * 20
    assert {"val/per", "test/per", "test/wer", "test/loss"} <= set(result["metrics"])
    assert json.loads((tmp_path / "run" / "model" / "config.json").read_text())["start_id"] == 0  # pad, as in T5
    capsys.readouterr()
    assert predict(tmp_path / "run", ["fade", "bead", "--beams", "2"]) == 0
    assert len(capsys.readouterr().out.split("\n")) == 3


@pytest.mark.parametrize("stop", [2, 4])
def test_a_run_that_goes_on_in_either_phase_ends_with_the_same_weights(
    source: Path, tmp_path: Path, stop: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Seq2SeqRecipe, "baselines", lambda self, data: {})
    monkeypatch.setattr(Seq2SeqRecipe, "figures", lambda self, model, data, folder: [])
    monkeypatch.setattr(Seq2SeqRecipe, "evaluate", lambda self, model, data, split: {})
    launch(settings(source), tmp_path / "whole")
    launch(settings(source, trainer={"max_steps": stop}), tmp_path / "cut")
    launch({**settings(source), "resume": str(tmp_path / "cut")}, tmp_path / "cut")
    whole, cut = (torch.load(checkpoints(tmp_path / name / "checkpoints")[-1]) for name in ("whole", "cut"))
    for name, value in whole["state_dict"].items():
        assert torch.equal(value, cut["state_dict"][name]), name


FEW = {"name": "characters", "special": ["pad", "eos"], "sentinels": 1}


@pytest.mark.parametrize(
    ("task", "told"),
    [
        ({"objective": "spans"}, "task.objective: should be 'span_corruption', 'prefix_lm' or 'bart_denoise'"),
        ({"mean_span": 1.0, "tokenizer": FEW}, "need as many sentinels"),
        (
            {"objective": "bart_denoise", "tokenizer": {"name": "characters", "special": ["pad", "eos"]}},
            "needs a tokenizer with 'mask'",
        ),
        ({"density": 1.0}, "task.density: should be less than 1"),
        ({"batch_size": 500}, "pre-training examples are too few for a batch of 500"),
    ],
)
def test_what_cannot_be_pre_trained_is_told_in_one_line(task: Any, told: str, source: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        launch(settings(source, task=task), tmp_path / "run")
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)
