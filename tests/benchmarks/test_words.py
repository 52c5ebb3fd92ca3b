"""Command lines of the benchmarks: every mistake is one line with the choices, and exit code 2."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from benchmarks import startup, trainer_overhead
from benchmarks.speed.__main__ import main
from benchmarks.speed.options import parse
from benchmarks.words import WordsError


def test_defaults() -> None:
    options = parse(["model=vit"])
    assert (options.models, options.cases, options.threads, options.device) == (("vit",), (), 1, "cpu")
    assert options.control and options.memory and options.out is None


def test_every_key_is_read() -> None:
    options = parse(
        ["model=vit", "case=smoke,p4-32-b64", "rounds=3", "threads=1", "control=false", "memory=false", "out=a/b.json"]
    )
    assert options.cases == ("smoke", "p4-32-b64")
    assert options.rounds == 3
    assert not options.control and not options.memory
    assert options.out == Path("a/b.json")


def test_a_bare_name_is_a_model() -> None:
    assert parse(["vit"]).models == ("vit",)
    assert parse(["vit", "model=vit"]).models == ("vit",)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "model: is required; choices: bert, decision, decode, dit, gpt, llama, mixers, t5, vit, whisper"),
        (["rounds=3"], "model: is required"),
        (["model=vitt"], "unknown 'vitt', did you mean 'vit'?"),
        (["vitt"], "'vitt' is not key=value"),
        (["model=vit", "round=3"], "unknown key 'round', did you mean 'rounds'?"),
        (["model=vit", "rounds=0"], "rounds: should be a whole number from 1"),
        (["model=vit", "rounds=two"], "got 'two'"),
        (["model=vit", "rounds=-1"], "got '-1'"),
        (["model=vit", "rounds=²"], "got '²'"),
        (["model=vit", "threads=100000"], "threads: should be a whole number from 1 to"),
        (["model=vit", "device=cud"], "device: should be cpu or cuda, got 'cud', did you mean 'cuda'?"),
        (["model=vit", "out="], "out: has no value"),
        (["model=vit", "model=vit"], "model: given twice"),
    ],
)
def test_a_mistake_is_named(words: list[str], expected: str) -> None:
    with pytest.raises(WordsError) as error:
        parse(words)
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("words", [["model=vitt"], ["model=vit", "case=nothing"], ["model=vit", "out=/"]])
def test_a_mistake_ends_with_code_2_and_one_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1


@pytest.mark.parametrize("command", [startup.main, trainer_overhead.main])
def test_the_other_commands_refuse_alike(command, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["rouds=3"]) == 2
    assert capsys.readouterr().err.startswith("error: unknown key 'rouds', did you mean 'rounds'?")
    assert command(["rounds=0"]) == 2
    assert command(["--help"]) == 0
    assert "python -m benchmarks." in capsys.readouterr().out


def test_help_lists_families_and_keys(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["--help"], ["model=vit", "-h"]):
        assert main(words) == 0
        said = capsys.readouterr().out
        assert "families to measure: bert, decision, decode, dit, gpt, llama, mixers, t5, vit, whisper" in said
        assert "rounds=" in said


@pytest.mark.parametrize(
    "name", ["run", "report.__main__", "recall", "balance", "matrix", "gpu_check", "startup", "trainer_overhead"]
)
@pytest.mark.parametrize("word", ["-h", "--help"])
def test_a_command_explains_itself(name: str, word: str, capsys: pytest.CaptureFixture[str]) -> None:
    module = import_module(f"benchmarks.{name}")
    assert module.main([word]) == 0
    told = capsys.readouterr()
    assert "python -m benchmarks." in told.out and not told.err
