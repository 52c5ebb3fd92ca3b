"""The package as users get it: a wheel, unpacked away from the checkout, run from an empty folder in every form.

`recipes.launch` is replaced by a stand-in in the child processes, so that no form pays for training.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest
import yaml

WORDS = ("recipe=vit", "data=mnist5k", "mixer=attention", "mixer.window=8", "out=here")
LAUNCH = """
import json, sys, types

def launch(settings, out):
    import recipes
    print("recipes:", recipes.__file__)
    (out / "result.json").write_text(json.dumps({"status": "ok", "metrics": {}}))
    return {"status": "ok", "metrics": {}}

sys.modules["recipes.launch"] = types.ModuleType("recipes.launch")
sys.modules["recipes.launch"].launch = launch
"""
SCRIPT = "import sys; from {module} import {function}; sys.exit({function}())"


@pytest.fixture(scope="module")
def wheel(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from hatchling.builders.wheel import WheelBuilder

    folder = tmp_path_factory.mktemp("wheel")
    before = os.getcwd()
    try:
        (built,) = WheelBuilder(str(root)).build(directory=str(folder), versions=["standard"])
    finally:
        os.chdir(before)
    return Path(built)


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel unpacked, as an installer does it."""
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture(scope="module")
def console_script(site: Path) -> list[str]:
    """What an installer writes into bin/zoo."""
    (found,) = [point for dist in distributions(path=[str(site)]) for point in dist.entry_points]
    assert (found.group, found.name) == ("console_scripts", "zoo")
    return ["-c", SCRIPT.format(module=found.module, function=found.attr)]


def call(*words: str, path: Path, cwd: Path, launch: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Python with `path` first on its import path and nothing of the checkout's."""
    places = [str(place) for place in (launch, path) if place is not None]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= {"PYTHONPATH": os.pathsep.join(places), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, cwd=cwd, env=environment)


def settings_of(*words: str, path: Path, cwd: Path) -> dict[str, Any]:
    done = call(*words, *WORDS, "--cfg", path=path, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return yaml.safe_load(done.stdout)


def test_the_wheel_holds_one_package_and_all_that_a_run_needs(wheel: Path, root: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    tops = {name.partition("/")[0] for name in held}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"zoo"}
    assert not [name for name in held if "__pycache__" in name or "/tests/" in name]
    for folder in ("recipes", "configs", "benchmarks"):
        for file in (root / folder).rglob("*"):
            if file.suffix in (".py", ".yaml", ".json"):
                assert f"zoo/_bundle/{file.relative_to(root).as_posix()}" in held
    for file in (root / "zoo").rglob("*.py"):
        if "_bundle" not in file.parts:
            assert file.relative_to(root).as_posix() in held
    assert [name for name in held if name.endswith("licenses/LICENSE")]


def test_every_form_composes_the_same_settings(
    site: Path, root: Path, console_script: list[str], tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    forms = {
        "wheel, module": settings_of("-m", "zoo.run", path=site, cwd=tmp_path),
        "wheel, verb": settings_of("-m", "zoo", "run", path=site, cwd=tmp_path / "elsewhere"),
        "wheel, console script": settings_of(*console_script, "run", path=site, cwd=tmp_path),
        "checkout": settings_of("-m", "zoo.run", path=root, cwd=root),
        "checkout from elsewhere, as an editable install": settings_of("-m", "zoo.run", path=root, cwd=tmp_path),
    }
    first = forms["checkout"]
    assert first["model"]["mixer"] == {"name": "attention", "window": 8}
    assert [name for name, settings in forms.items() if settings != first] == []
    assert [path.name for path in tmp_path.iterdir()] == ["elsewhere"]


def test_runs_from_a_wheel_write_where_they_are_told_and_nowhere_else(
    site: Path, console_script: list[str], tmp_path: Path
) -> None:
    (tmp_path / "launch").mkdir()
    (tmp_path / "launch" / "sitecustomize.py").write_text(LAUNCH)
    cwd = tmp_path / "empty"
    (cwd / "recipes").mkdir(parents=True)  # the user's own, which must not be taken for ours
    (cwd / "recipes" / "__init__.py").touch()
    where = {"path": site, "cwd": cwd, "launch": tmp_path / "launch"}

    one = call("-m", "zoo.run", *WORDS, **where)
    assert one.returncode == 0, one.stderr
    assert str(site / "zoo" / "_bundle" / "recipes") in one.stdout
    two = call(*console_script, "run", "-m", "recipe=vit", "seed=0,1", "out=both", **where)
    assert two.returncode == 0, two.stderr
    written = {file.relative_to(cwd).as_posix() for file in cwd.rglob("*") if file.is_file()}
    assert written == {
        "recipes/__init__.py",
        "here/result.json",
        "both/multirun.yaml",
        "both/0/result.json",
        "both/1/result.json",
    }


def test_a_misspelt_recipe_is_told_from_a_wheel(site: Path, console_script: list[str], tmp_path: Path) -> None:
    done = call(*console_script, "run", "recipe=vitt", path=site, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: recipe: unknown recipe 'vitt', did you mean 'vit'?; choices: ")
    assert len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())
