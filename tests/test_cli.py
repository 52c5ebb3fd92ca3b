"""The command line: what words come to, what is refused and how, sweeps, and runs that are taken up again.

Everything runs in this process with a stand-in for `recipes.launch`, since each new process pays for its imports.
"""

from __future__ import annotations

import copy
import errno
import functools
import json
import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from zoo import __main__ as verbs
from zoo import paths, predict, run
from zoo.cli.settings import KEYS, join, rewrite
from zoo.registry import ConfigError, decode, encode, names

Launch = Callable[[dict[str, Any], Path], dict[str, Any]]


class Launched:
    """A stand-in for recipes.launch: keeps what it was given and does what `act` says."""

    def __init__(self) -> None:
        self.settings: list[dict[str, Any]] = []
        self.command_lines: list[list[str]] = []
        self.predicted: list[tuple[Path, list[str]]] = []
        self.act: Launch = lambda settings, out: {}

    def launch(self, settings: dict[str, Any], out: Path) -> dict[str, Any]:
        self.settings.append(settings)
        self.command_lines.append(sys.argv[1:])
        result = {"status": "ok", "metrics": {"val/accuracy": 0.5}, **self.act(settings, out)}
        (out / "config.yaml").write_text(yaml.safe_dump(settings))
        (out / "result.json").write_text(json.dumps(result))
        return result

    def predict(self, folder: Path, words: list[str]) -> int:
        self.predicted.append((folder, words))
        return 0


@pytest.fixture(autouse=True)
def launched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Launched:
    """An empty working directory, and no real run."""
    made = Launched()
    module = types.ModuleType("recipes.launch")
    module.launch, module.predict = made.launch, made.predict  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "recipes.launch", module)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    return made


@functools.cache
def _composed(*words: str) -> dict[str, Any]:
    return run.compose(words)


def composed(*words: str) -> dict[str, Any]:
    """The settings of these words, composed once for all tests."""
    return copy.deepcopy(_composed(*words))


def files(folder: Path) -> set[str]:
    return {file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()}


def fails(capsys: pytest.CaptureFixture[str], *words: str, code: int = 2, main: Any = run.main) -> str:
    """The one line on stderr with which a command line ends."""
    assert main(list(words)) == code
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("error: ")
    return lines[0].removeprefix("error: ")


def finished_run(folder: Path, **changes: Any) -> dict[str, Any]:
    """A run folder as a finished run leaves it, and its settings."""
    made = composed("recipe=vit") | {"out": str(folder)} | changes
    (folder / "model").mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(made, sort_keys=False))
    (folder / "result.json").write_text('{"status": "ok"}')
    return made


# What words come to


def test_settings_are_complete_and_of_plain_types() -> None:
    made = run.compose(["recipe=vit", "model.patch_size=[4,2]", "task.list=[1,{a: [2]}]"])
    assert tuple(made) == KEYS
    assert made["model"]["patch_size"] == [4, 2]

    def walk(value: Any) -> None:
        assert type(value) in (dict, list, str, int, float, bool, type(None)), type(value)
        for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            walk(item)

    walk(made)


def test_default_folder_is_new_each_time() -> None:
    first, second = run.compose(["recipe=vit"])["out"], composed("recipe=vit")["out"]
    assert first.startswith("runs/vit/")
    assert first != second


def test_parts_go_into_the_model_in_any_order() -> None:
    one = run.compose(["recipe=vit", "mixer=attention", "mixer.window=8", "norm=rmsnorm", "out=x"])
    two = run.compose(["mixer.window=8", "norm=rmsnorm", "out=x", "mixer=attention", "recipe=vit"])
    assert one == two
    assert one["model"]["mixer"] == {"name": "attention", "window": 8}
    assert one["model"]["norm"] == {"name": "rmsnorm"}
    assert "mixer" not in one


def test_a_part_may_be_given_whole() -> None:
    made = run.compose(["recipe=vit", "mixer={name: attention, window: 8}", "mixer.qk_norm=true"])
    assert made["model"]["mixer"] == {"name": "attention", "window": 8, "qk_norm": True}


def test_a_key_without_a_name_is_merged_and_another_name_starts_afresh() -> None:
    base = composed("recipe=vit")["model"]["ffn"]
    assert run.compose(["recipe=vit", "ffn.bias=false"])["model"]["ffn"] == {**base, "bias": False}
    assert run.compose(["recipe=vit", "ffn=swiglu"])["model"]["ffn"] == {"name": "swiglu"}
    assert run.compose(["recipe=vit", "model.ffn=swiglu"])["model"]["ffn"] == {"name": "swiglu"}


def test_another_model_starts_afresh_and_keeps_the_parts_that_were_named() -> None:
    words = ["recipe=vit", "model=timm", "model.name=resnet18"]
    assert run.compose(words)["model"] == {"family": "timm", "name": "resnet18"}
    made = run.compose(["recipe=vit", "model=vit_tiny_patch16_224", "mixer.window=8", "model.depth=3"])["model"]
    assert made == {"family": "vit_tiny_patch16_224", "depth": 3, "mixer": {"window": 8}}


@pytest.mark.parametrize(
    ("base", "change", "joined"),
    [
        ({"name": "a", "x": 1}, {"x": 2}, {"name": "a", "x": 2}),
        ({"name": "a", "x": 1}, {"name": "a", "y": 2}, {"name": "a", "x": 1, "y": 2}),
        ({"name": "a", "x": 1}, {"name": "b", "y": 2}, {"name": "b", "y": 2}),
        ({"name": "a", "x": 1}, "b", {"name": "b"}),
        ({"name": "a", "x": 1}, "a", {"name": "a", "x": 1}),
        ("a", {"x": 1}, {"name": "a", "x": 1}),
        ("a", {"name": "b"}, {"name": "b"}),
        ("a", "b", "b"),
        (None, {"x": 1}, {"x": 1}),
        ({"x": 1}, {}, {"x": 1}),
        ({"x": {"name": "a", "y": 1}}, {"x": {"name": "b"}}, {"x": {"name": "b"}}),
        ({"family": "timm", "name": "a"}, {"name": "b"}, {"family": "timm", "name": "b"}),
        ({"family": "vit", "depth": 3}, {"family": "gpt"}, {"family": "gpt"}),
        ({"x": [1, 2]}, {"x": [3]}, {"x": [3]}),
        ({"x": 1}, None, None),
    ],
)
def test_joining(base: Any, change: Any, joined: Any) -> None:
    assert join(base, change) == joined


def test_command_line_wins_over_tuning_and_tuning_over_the_recipe() -> None:
    plain = composed("recipe=vit")
    tuned = composed("recipe=vit", "data=mnist5k")
    assert plain["data"]["name"] == "digits"
    assert tuned["data"]["name"] == "mnist5k"
    assert plain["model"]["patch_size"] != tuned["model"]["patch_size"]
    assert run.compose(["recipe=vit", "data=mnist5k", "model.patch_size=14"])["model"]["patch_size"] == 14


def test_a_chosen_optimizer_wins_over_the_recipe() -> None:
    plain, sgd = composed("recipe=vit")["optim"], run.compose(["recipe=vit", "optim=sgd"])["optim"]
    assert (plain["name"], sgd["name"]) == ("adamw", "sgd")
    assert sgd["lr"] != plain["lr"]
    assert sgd["schedule"] == plain["schedule"]
    assert run.compose(["optim.lr=0.3", "recipe=vit", "optim=sgd"])["optim"]["lr"] == 0.3


def test_interpolations_follow_the_command_line() -> None:
    made = run.compose(["recipe=vit", "trainer.max_steps=7", "task.half=${trainer.max_steps}"])
    assert made["task"]["half"] == 7


def test_own_recipes_inherit_from_ours(tmp_path: Path, launched: Launched) -> None:
    (tmp_path / "my" / "recipe").mkdir(parents=True)
    text = "# @package _global_\n# Mine, and better\ndefaults: [vit, _self_]\nseed: 7\n"
    (tmp_path / "my" / "recipe" / "mine.yaml").write_text(text)
    assert run.main(["--config-dir", "my", "recipe=mine", "model.depth=2", "out=x"]) == 0
    made = launched.settings[0]
    assert (made["name"], made["seed"], made["model"]["depth"]) == ("vit", 7, 2)
    assert made["model"]["heads"] == composed("recipe=vit")["model"]["heads"]


@pytest.mark.parametrize("kind", ["data", "optim", "logger"])
def test_every_config_is_accepted_by_its_part(kind: str) -> None:
    from recipes import loggers, optim
    from recipes.data import load_kinds

    for module in (loggers, optim):
        assert module
    load_kinds()
    for file in sorted((paths.config_dir() / kind).glob("*.yaml")):
        extra = {"path": "somewhere"} if file.stem in ("image_folder", "audio_folder") else {}
        decode(kind, yaml.safe_load(file.read_text()) | extra, kind)


@settings(deadline=None)
@given(st.text(st.characters(min_codepoint=32, max_codepoint=0x2FFF, blacklist_characters="$"), min_size=1))
def test_any_folder_name_reaches_us_as_it_was_written(name: str) -> None:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    if name[0] in "'\"[{" or name == "null":  # these are Hydra's own grammar: already quoted, a list, nothing
        return
    (override,) = OverridesParser.create().parse_overrides([rewrite(f"out={name}")])
    assert override.value() == name


def test_rewriting_twice_changes_nothing() -> None:
    words = ["recipe=vit", "mixer=attention", "mixer.window=8", "model=gpt", "data.limit=3", "data=digits", "out='a b'"]
    once = [rewrite(word) for word in words]
    assert [rewrite(word) for word in once] == once


# What is refused, and how


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("", ["recipe", "choices:", "vit"]),
        ("seed=1", ["recipe=bert", "choices: bert, decision, dit, gpt"]),
        ("recipe=", ["recipe", "name"]),
        ("recipe=null", ["recipe", "choices:", "vit"]),
        ("recipe=vitt", ["recipe", "'vitt'", "did you mean 'vit'", "choices:"]),
        ("recipe=3", ["recipe", "3", "choices:", "vit"]),
        ("vit", ["'vit'", "recipe=vit"]),
        ("recipe=vit model.depth", ["'model.depth'", "="]),
        ("recipe=vit =3", ["'=3'", "key"]),
        ("recipe=vit data=digit", ["data", "'digit'", "did you mean 'digits'", "choices:", "mnist5k"]),
        ("recipe=vit optim=adamww", ["optim", "'adamww'", "did you mean 'adamw'", "choices:", "sgd"]),
        ("recipe=vit logger=cvs", ["logger", "'cvs'", "did you mean 'csv'", "choices:"]),
        ("recipe=vit trainer=debgu", ["trainer", "'debgu'", "did you mean 'debug'"]),
        ("recipe=vit trainer=1", ["trainer", "1", "choices: debug"]),
        ("recipe=vit data=null", ["data: needs a name, got null", "choices:", "digits"]),
        ("recipe=vit optim=null", ["optim: needs a name, got null", "choices:", "adamw"]),
        ("recipe=vit trainer=null", ["trainer: needs a name, got null", "choices: debug"]),
        ("recipe=vit out=", ["out: needs a folder"]),
        ("recipe=vit out=''", ["out: needs a folder"]),
        ("resume=", ["resume: needs a folder"]),
        ("mode=eval checkpoint=", ["checkpoint: needs a folder"]),
        ("recipe=vit mxer=attention", ["mxer", "did you mean 'mixer'", "choices:"]),
        ("recipe=vit sede=3", ["sede", "did you mean 'seed'", "choices:"]),
        ("recipe=vit +foo=3", ["foo", "unknown key", "choices:"]),
        ("recipe=vit seed=abc", ["seed", "'abc'", "whole number"]),
        ("recipe=vit seed=-1", ["seed", "-1"]),
        ("recipe=vit seed=1.5", ["seed", "1.5"]),
        ("recipe=vit seed.x=1", ["seed"]),
        ("recipe=vit mode=evall", ["mode", "'evall'", "did you mean 'eval'", "choices: train, eval"]),
        ("recipe=vit mode=eval", ["checkpoint=RUN_DIR"]),
        ("recipe=vit mixer=", ["mixer", "name"]),
        ("recipe=vit seed=1,2", ["seed=1,2", "-m", "seed=[1,2]"]),
        ("recipe=vit mixer.window=1,2", ["mixer.window=1,2", "-m", "mixer.window=[1,2]"]),
        ("recipe=vit model.depth='a", ["model.depth='a", "quote"]),
        ("recipe=vit model.a=f(x", ["model.a=f(x", "quotes"]),
        ("recipe=vit model.depth=${nothing}", ["model.depth", "nothing"]),
        ("recipe=vit --foo", ["--foo", "--help"]),
        ("--recipe=vit", ["--recipe=vit", "without dashes"]),
        ("recipe=vit --config-dir nowhere", ["--config-dir", "'nowhere'"]),
        ("recipe=vit --config-dir", ["--config-dir"]),
        ("resume=nowhere", ["resume", "no such folder", "'nowhere'"]),
        ("mode=eval checkpoint=nowhere", ["checkpoint", "no such folder", "'nowhere'"]),
        ("recipe=vit hydra.run.dir=x", ["hydra.run.dir", "out=FOLDER"]),
        ("-m recipe=vit hydra.sweep.dir=x", ["hydra.sweep.dir", "out=FOLDER"]),
        ("-m resume=a,b", ["resume", "-m"]),
        ("-m recipe=vit --cfg", ["--cfg", "-m"]),
        ("-m recipe=vit,vitt", ["recipe", "'vitt'", "did you mean 'vit'"]),
        ("-m recipe=vit data=digits,mnist5", ["data", "'mnist5'", "did you mean 'mnist5k'"]),
    ],
)
def test_mistakes_end_in_one_line_and_leave_nothing(
    words: str, told: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, launched: Launched
) -> None:
    line = fails(capsys, *words.split())
    assert not [word for word in told if word not in line], line
    assert "given" not in line
    assert not launched.settings
    assert not list(tmp_path.iterdir())


def test_what_a_part_refuses_is_told_the_same_way(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, launched: Launched
) -> None:
    def refuse(settings: dict[str, Any], out: Path) -> dict[str, Any]:
        raise ConfigError("unknown key, did you mean 'depth'?; choices: dim, depth", "model.dpeth")

    launched.act = refuse
    line = fails(capsys, "recipe=vit", "model.dpeth=3")
    assert line == "model.dpeth: unknown key, did you mean 'depth'?; choices: dim, depth"
    assert not list(tmp_path.iterdir()), "the folder of a run that never began should be gone"


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "out/last.ckpt"), 1, "the disk is full"),
        (RuntimeError("write failed: No space left on device (os error 28)"), 1, "the disk is full"),
        (PermissionError(errno.EACCES, "Permission denied", "out/x"), 1, "out/x: Permission denied"),
    ],
)
def test_a_failing_disk_ends_in_one_line(
    error: Exception, code: int, told: str, capsys: pytest.CaptureFixture[str], launched: Launched
) -> None:
    def fail(settings: dict[str, Any], out: Path) -> dict[str, Any]:
        (out / "metrics.csv").write_text("kept")
        raise error

    launched.act = fail
    assert told in fails(capsys, "recipe=vit", "out=out", code=code)
    assert Path("out/metrics.csv").read_text() == "kept"


def test_an_interrupt_ends_quietly_and_a_fault_of_ours_does_not(
    capsys: pytest.CaptureFixture[str], launched: Launched
) -> None:
    def act(settings: dict[str, Any], out: Path) -> dict[str, Any]:
        raise (KeyboardInterrupt if settings["seed"] else ZeroDivisionError)

    launched.act = act
    assert run.main(["recipe=vit", "seed=1"]) == 130
    assert capsys.readouterr().err == "interrupted\n"
    with pytest.raises(ZeroDivisionError):
        run.main(["recipe=vit", "seed=0"])


@pytest.mark.parametrize(("status", "code"), [("ok", 0), ("failed", 1), ("interrupted", 130)])
def test_exit_code_tells_the_status(status: str, code: int, launched: Launched) -> None:
    launched.act = lambda settings, out: {"status": status}
    assert run.main(["recipe=vit"]) == code


def test_a_reader_that_goes_away_is_no_error() -> None:
    piped = f"{sys.executable} -m zoo.run --help | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", piped], capture_output=True, text=True, cwd=paths.home(), check=True)
    assert done.stderr == ""
    assert done.stdout.strip() in ("0", "141")  # 0 where the pipe still took the text


# The folder of a run


@pytest.mark.parametrize("held", ["result.json", "checkpoints/last.ckpt"])
def test_a_folder_with_results_is_refused_untouched(
    held: str, capsys: pytest.CaptureFixture[str], launched: Launched
) -> None:
    file = Path("mine") / held
    file.parent.mkdir(parents=True)
    file.write_text("precious")
    line = fails(capsys, "recipe=vit", "out=mine")
    assert "mine" in line
    assert "resume=mine" in line
    assert files(Path("mine")) == {held}
    assert file.read_text() == "precious"
    assert not launched.settings


@pytest.mark.parametrize("out", ["file", "file/below", "/proc/nowhere"])
def test_an_unwritable_folder_is_told_before_the_start(
    out: str, capsys: pytest.CaptureFixture[str], launched: Launched
) -> None:
    Path("file").write_text("precious")
    assert out in fails(capsys, "recipe=vit", f"out={out}")
    assert out in fails(capsys, "-m", "recipe=vit", "seed=0,1", f"out={out}")
    assert Path("file").read_text() == "precious"
    assert not launched.settings


@pytest.mark.parametrize("out", ["a b,(c)=d", "it's é"])
def test_folders_of_any_name(out: str, launched: Launched) -> None:
    assert run.main(["recipe=vit", f"out={out}"]) == 0
    assert (Path(out) / "result.json").is_file()
    assert launched.settings[0]["out"] == out


def test_other_ranks_start_with_the_same_settings(launched: Launched, monkeypatch: pytest.MonkeyPatch) -> None:
    def act(settings: dict[str, Any], out: Path) -> dict[str, Any]:
        os.environ["LOCAL_RANK"] = "0"
        return {}

    launched.act = act
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert run.main(["recipe=vit", "mixer=attention", "mixer.window=8", "data=mnist5k"]) == 0
    assert run.main(["-m", "recipe=vit", "mixer=attention", "norm=a,b"]) == 0

    assert "LOCAL_RANK" not in os.environ
    for line, made in zip(launched.command_lines, launched.settings, strict=True):
        assert line[0] == "run"
        assert run.compose(line[1:]) == made
    monkeypatch.setenv("LOCAL_RANK", "1")  # the folder is the first rank's, with whatever is in it by now
    assert run.main(launched.command_lines[0][1:]) == 0


# Runs that are taken up again


def test_resume_needs_no_recipe_and_stays_in_its_folder(tmp_path: Path, launched: Launched) -> None:
    made = finished_run(tmp_path / "a" / "run", seed=5)
    assert run.main(["resume=a/run", "trainer.max_steps=9"]) == 0
    folder = str(tmp_path / "a" / "run")
    expected = {**made, "resume": folder, "out": "a/run"}
    expected["trainer"] = {**made["trainer"], "max_steps": 9}
    assert launched.settings == [expected]
    assert run.main(["recipe=vit", f"resume={folder}/", f"out={folder}"]) == 0


def test_evaluation_takes_the_settings_of_the_run(tmp_path: Path, launched: Launched) -> None:
    made = finished_run(tmp_path / "run", seed=5)
    assert run.main(["mode=eval", "checkpoint=run", "data=mnist5k", "data.limit=9", "task.batch_size=3"]) == 0
    got = launched.settings[0]
    assert (got["mode"], got["checkpoint"], got["seed"]) == ("eval", str(tmp_path / "run"), 5)
    assert got["data"]["name"] == "mnist5k"
    assert got["data"]["limit"] == 9
    assert got["task"] == {**made["task"], "batch_size": 3}
    assert got["model"] == made["model"]
    assert got["out"].startswith("runs/vit/")
    assert run.main(["-m", "mode=eval", "checkpoint=run", "seed=0,1", "out=both"]) == 0
    assert [(made["seed"], made["out"]) for made in launched.settings[1:]] == [(0, "both/0"), (1, "both/1")]


@pytest.mark.parametrize("word", ["model.dim=64", "model=gpt", "mixer.window=8", "norm=rmsnorm"])
def test_evaluation_refuses_another_model(
    word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], launched: Launched
) -> None:
    finished_run(tmp_path / "run")
    line = fails(capsys, "mode=eval", "checkpoint=run", word)
    assert line.startswith(f"{word.partition('=')[0].partition('.')[0]}: mode=eval evaluates the model as the run")
    assert not launched.settings


def test_wrong_run_folders_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str], launched: Launched) -> None:
    finished_run(tmp_path / "run")
    Path("foreign").mkdir()
    Path("sweep").mkdir()
    Path("sweep/multirun.yaml").touch()
    Path("broken").mkdir()
    Path("broken/config.yaml").write_text("a: [")
    Path("other").mkdir()
    Path("other/config.yaml").write_text("a: 1")
    for key, mode in (("resume", ""), ("checkpoint", "mode=eval")):
        for folder, told in {
            "foreign": "not a run folder",
            "sweep": "one of its runs",
            "broken": "does not hold the settings",
            "other": "does not hold the settings",
            "run/config.yaml": "is a file",
        }.items():
            line = fails(capsys, f"{key}={folder}", *mode.split())
            assert told in line, line
            assert folder in line
            assert line.startswith(key)
    assert "not of gpt" in fails(capsys, "resume=run", "recipe=gpt")
    assert "out" in fails(capsys, "resume=run", "out=elsewhere")
    assert "resume=RUN_DIR" in fails(capsys, "checkpoint=run")
    assert "seed" in fails(capsys, "resume=run", "sede=1")
    assert "did you mean 'digits'" in fails(capsys, "resume=run", "data=digit")
    assert not launched.settings
    assert files(tmp_path / "run") == {"config.yaml", "result.json"}


# Sweeps


def test_a_sweep_makes_one_folder_a_run_and_no_stray_files(tmp_path: Path, launched: Launched) -> None:
    assert run.main(["-m", "recipe=vit", "mixer=a,b", "data=digits,mnist5k", "model.depth=2", "out=s"]) == 0
    chosen = [(made["model"]["mixer"]["name"], made["data"]["name"]) for made in launched.settings]
    assert chosen == [("a", "digits"), ("a", "mnist5k"), ("b", "digits"), ("b", "mnist5k")]
    assert [made["out"] for made in launched.settings] == [f"s/{number}" for number in range(4)]
    assert {made["model"]["depth"] for made in launched.settings} == {2}
    assert [path.name for path in tmp_path.iterdir()] == ["s"]
    assert files(tmp_path / "s") == {"multirun.yaml"} | {
        f"{number}/{file}" for number in range(4) for file in ("config.yaml", "result.json")
    }


def test_a_sweep_goes_into_the_recipes_folder(tmp_path: Path, launched: Launched) -> None:
    assert run.main(["recipe=vit", "seed=0,1", "--multirun"]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
    outs = [Path(made["out"]) for made in launched.settings]
    assert [out.name for out in outs] == ["0", "1"]
    assert outs[0].parent == outs[1].parent
    assert outs[0].parts[:2] == ("runs", "vit")


def test_a_failing_run_is_marked_and_the_others_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], launched: Launched
) -> None:
    def act(settings: dict[str, Any], out: Path) -> dict[str, Any]:
        if settings["seed"] == 1:
            raise ZeroDivisionError("in the middle")
        if settings["seed"] == 2:
            raise ConfigError("unknown key", "model.dpeth")
        return {}

    launched.act = act
    assert run.main(["-m", "recipe=vit", "seed=1,2,3", "out=s"]) == 1
    told = [json.loads((tmp_path / "s" / str(number) / "result.json").read_text()) for number in range(3)]
    assert [result["status"] for result in told] == ["failed", "failed", "ok"]
    assert "in the middle" in told[0]["error"]
    assert "dpeth" in told[1]["error"]
    shown = capsys.readouterr()
    assert "1 of 3" in shown.out
    assert "ZeroDivisionError" in shown.err
    assert "seed=1" in shown.err


def test_a_sweep_over_results_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], launched: Launched
) -> None:
    assert run.main(["-m", "recipe=vit", "seed=0,1", "out=s"]) == 0
    before = files(tmp_path)
    capsys.readouterr()
    assert "'s'" in fails(capsys, "-m", "recipe=vit", "seed=0,1", "out=s")
    assert files(tmp_path) == before
    assert len(launched.settings) == 2


def test_an_interrupt_ends_the_whole_sweep(capsys: pytest.CaptureFixture[str], launched: Launched) -> None:
    def act(settings: dict[str, Any], out: Path) -> dict[str, Any]:
        raise KeyboardInterrupt

    launched.act = act
    assert run.main(["-m", "recipe=vit", "seed=0,1"]) == 130
    assert len(launched.settings) == 1


# Help, verbs, lists, answers


def test_help_is_short_lists_the_recipes_and_imports_nothing_heavy() -> None:
    code = (
        "import sys; from zoo.__main__ import main; code = main(['run', '--help']);"
        "heavy = {'torch', 'lightning', 'hydra', 'omegaconf', 'datasets', 'pydantic', 'yaml'} & set(sys.modules);"
        "assert not heavy, heavy; sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=paths.home())
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) < 40
    assert max(map(len, lines)) <= 120
    for name, text in paths.catalogue("recipe").items():
        assert any(line.split()[:1] == [name] and text in line for line in lines)
        assert text


def test_settings_are_composed_without_torch() -> None:
    code = (
        "import sys; from zoo.run import main; code = main(['recipe=vit', 'mixer.window=8', '--cfg', 'job', 'out=x']);"
        "assert not {'torch', 'lightning', 'datasets'} & set(sys.modules); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=paths.home())
    assert done.returncode == 0, done.stderr
    assert yaml.safe_load(done.stdout) == run.compose(["recipe=vit", "mixer.window=8", "out=x"])


def test_every_config_file_says_what_it_is() -> None:
    for group in ("recipe", "data", "optim", "trainer", "logger"):
        found = paths.catalogue(group)
        assert found
        assert all(found.values()), found


def test_verbs(capsys: pytest.CaptureFixture[str], launched: Launched) -> None:
    assert verbs.main(["run", "recipe=vit", "out=x"]) == 0
    assert launched.settings[0]["out"] == "x"
    assert verbs.main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(verb in shown for verb in verbs.VERBS)
    assert verbs.main([]) == 2
    capsys.readouterr()
    assert "did you mean 'list'" in fails(capsys, "lsit", main=verbs.main)
    assert "run recipe=vit" in fails(capsys, "recipe=vit", main=verbs.main)


def test_list_shows_every_part_with_its_summary_and_paper(capsys: pytest.CaptureFixture[str]) -> None:
    import zoo.library  # noqa: F401
    from zoo.registry import describe

    assert verbs.main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for kind in ("mixer", "ffn", "norm", "residual", "position", "model", "schedule"):
        assert f"{kind} ({len(names(kind))})" in lines
        for name in names(kind):
            entry = describe(kind, name)
            assert any(
                line.split()[:1] == [name] and entry.summary in line and line.endswith(entry.paper) for line in lines
            ), name
            assert entry.summary
    assert f"recipe ({len(paths.catalogue('recipe'))})" in lines


def test_list_at_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    assert verbs.main(["list", "data", "logger"]) == 0
    words = capsys.readouterr().out.split()
    for name in (*paths.catalogue("data"), *paths.catalogue("logger")):
        assert name in words


def test_list_of_one_kind(capsys: pytest.CaptureFixture[str]) -> None:
    assert verbs.main(["list", "data"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("data (")
    assert len(lines) == 1 + len(paths.catalogue("data"))
    assert "did you mean 'mixer'" in fails(capsys, "list", "mixr", main=verbs.main)


def test_answers_go_to_the_recipe_of_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], launched: Launched
) -> None:
    finished_run(tmp_path / "run")
    assert predict.main(["run", "a.png", "b.png"]) == 0
    assert verbs.main(["predict", "run", "c.png"]) == 0
    assert launched.predicted == [(Path("run"), ["a.png", "b.png"]), (Path("run"), ["c.png"])]
    assert "RUN_DIR" in fails(capsys, main=predict.main)
    assert "'nowhere'" in fails(capsys, "nowhere", "a.png", main=predict.main)
    (tmp_path / "run" / "model").rmdir()
    assert "resume=run" in fails(capsys, "run", "a.png", main=predict.main)


# Where things lie


def test_our_recipes_win_over_a_folder_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "__init__.py").write_text("cakes = True")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    paths.use()
    assert sys.path[0] == str(paths.home())
    before = list(sys.path)
    paths.use()
    assert sys.path == before


def test_a_checkout_wins_over_a_stale_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "zoo"
    for place in (tmp_path, package / "_bundle"):
        (place / "configs").mkdir(parents=True)
        (place / "recipes").mkdir()
        (place / "configs" / "config.yaml").touch()
    monkeypatch.setattr(paths, "PACKAGE", package)
    assert paths.home() == tmp_path
    (tmp_path / "configs" / "config.yaml").unlink()
    assert paths.home() == package / "_bundle"


def test_settings_survive_yaml_and_encoding() -> None:
    made = run.compose(["recipe=vit", "optim.lr=1e-5"])
    assert yaml.safe_load(yaml.safe_dump(made)) == made
    assert encode(made) == made


def test_an_empty_dict_takes_a_recipes_entries_away() -> None:
    assert composed("recipe=t5")["optim"]["lr_scale"]
    assert composed("recipe=t5", "optim.lr_scale={}")["optim"]["lr_scale"] == {}


def test_a_larger_budget_lies_over_the_recipe_and_below_the_command_line() -> None:
    plain, longer = composed("recipe=transformer"), composed("recipe=transformer", "budget=long")
    assert longer["trainer"]["max_steps"] > plain["trainer"]["max_steps"]
    assert composed("recipe=transformer", "budget=long", "trainer.max_steps=7")["trainer"]["max_steps"] == 7
    assert composed("recipe=transformer", "budget=default") == {**plain, "out": ANY}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["budget=lng"], "budget: unknown budget 'lng', did you mean 'long'?; choices: default, long"),
        (["budget=3"], "budget: should be a name, got 3; choices: default, long"),
        (["budget="], "budget: needs a name"),
        (["budget=long"], "budget: recipe=vit data=digits has no budget 'long'; those that have: recipe="),
    ],
)
def test_a_wrong_budget_is_refused_in_one_line(words: list[str], told: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        composed("recipe=vit", *words)
    assert told in str(refusal.value) and "\n" not in str(refusal.value)
