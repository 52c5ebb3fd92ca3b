"""`zoo count`, `zoo walk` and `zoo diff` on the command line."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

import pytest

import zoo
from zoo.__main__ import main
from zoo.cli.count import KEYS
from zoo.registry import describe, names

TINY = ["model=gpt", "dim=16", "depth=2", "heads=2", "vocab_size=24", "max_len=32"]


def test_count_prints_what_count_returns(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["count", *TINY, "mixer=gla", "ffn.hidden=20", "length=9", "batch=2", "dtype=bfloat16"]) == 0
    shown = capsys.readouterr().out
    config = {"family": "gpt", "dim": 16, "depth": 2, "heads": 2, "vocab_size": 24, "max_len": 32}
    found = zoo.count({**config, "mixer": "gla", "ffn": {"hidden": 20}}, batch=2, length=9)
    for value in (found.params, found.params_non_embedding, found.flops_forward, found.flops_training):
        assert f"{value:,}" in shown
    assert "2 rows of 9 tokens" in shown and "attention overtakes at" in shown and "1,048,576 tokens" in shown


def test_walk_prints_every_step_and_the_sums(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["walk", *TINY, "position=rope", "length=9"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:18]] == [str(number) for number in range(1, 18)]
    found = zoo.count(
        {"family": "gpt", "dim": 16, "depth": 2, "heads": 2, "vocab_size": 24, "position": "rope"}, length=9
    )
    assert f"{found.params:,}" in lines[18] and f"{found.flops_forward:,}" in lines[18]


def test_diff_prints_fields_and_counts_that_differ_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", *TINY, *TINY, "mixer=mamba2", "mixer.state_size=8", "depth=3", "length=9"]) == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()[1:] if line.strip()}
    assert rows["depth"].split() == ["depth", "2", "3"]
    assert rows["mixer"].split()[1:] == ["attention", "mamba2", "(state_size=8)"]
    assert "parameters" in rows and "dim" not in rows and "mixer.state_size" not in rows


def test_diff_of_families_names_both(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", *TINY, "model=bert", *TINY[1:]]) == 0
    shown = capsys.readouterr().out
    assert "family" in shown and "residual" in shown and "post" in shown


def test_a_saved_model_is_named_by_its_folder(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    model = zoo.create_model("gpt", dim=16, depth=1, heads=2, vocab_size=24, max_len=8)
    folder = zoo.save_pretrained(model, tmp_path / "model")
    assert main(["count", f"model={folder}", "length=8"]) == 0
    assert f"{sum(p.numel() for p in model.parameters()):,}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["count", "length=5"], "model: is required"),
        (["count", "model=gtp"], "unknown model 'gtp', did you mean 'gpt'"),
        (["count", "model=gpt", "mixr=gla"], "model.mixr: unknown key, did you mean 'mixer'"),
        (["count", "model=gpt", "length=-5"], "length: should be a whole number of at least 1, got '-5'"),
        (["count", "model=gpt", "dtype=fp8"], "dtype: should be float32 or bfloat16 or float16, got 'fp8'"),
        (["count", "model=gpt", "dim=[8"], "dim: cannot read '[8'"),
        (["count", "gpt"], "'gpt' is not key=value"),
        (["count", "model=gpt", "length="], "length: has no value"),
        (["count", "model=gpt", "lenght=3"], "lenght: unknown key, did you mean 'length'? keys: model,"),
        (["diff", "model=gpt2", "model=gpt2", "length=5000"], "5000"),
        (["walk", "model=rnn"], "'rnn' is not made of a stack of blocks"),
        (["diff", "model=gpt"], "model: two models are compared, got 1"),
        (["diff", "dim=8", "model=gpt"], "dim: stands before the first model="),
    ],
)
def test_what_is_wrong_is_told_in_one_line(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    error = capsys.readouterr().err
    assert told in error and error.count("\n") == 1


@pytest.mark.parametrize("verb", ["count", "walk", "diff"])
def test_help_shows_commands(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "--help"]) == 0
    assert f"python -m zoo {verb} model=" in capsys.readouterr().out


def test_no_field_of_a_model_is_taken_for_a_misspelt_key() -> None:
    families = [entry.make for name in names("model") if not (entry := describe("model", name)).is_preset]
    fields = {field for family in families for field in family.model_fields}  # type: ignore[attr-defined]
    assert "mixer" in fields
    assert not [field for field in fields if get_close_matches(field, KEYS, n=1, cutoff=0.8)]


def test_a_model_does_not_differ_from_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "model=gpt2", "model=gpt2"]) == 0
    assert capsys.readouterr().out == "nothing differs\n"
