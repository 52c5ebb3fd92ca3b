"""From command-line words to the settings of a run, through Hydra."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from zoo import paths
from zoo.cli.budget import check_budget
from zoo.cli.errors import explain, refuse
from zoo.cli.options import Options
from zoo.cli.settings import PARTS, check, join, plain, read_run, rewrite, settle

__all__ = ["Composer", "finish", "now"]


class Composer:
    """The words of one command line, rewritten for Hydra.

    A run that is taken up again (resume=, checkpoint=) needs no recipe: configs/saved.yaml is composed instead of
    configs/config.yaml, and the run's own config.yaml stands below what it gives.
    Raises ConfigError for what can be told wrong without composing.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        groups = [entry.name for folder in options.config_dirs for entry in folder.iterdir() if entry.is_dir()]
        self.words = [rewrite(word, sweep=options.multirun, groups=groups) for word in options.overrides]
        self.written = dict(zip(self.words, options.overrides, strict=True))
        taken_up = [key for key in ("resume", "checkpoint") if options.value(key) not in (None, "null")]
        self.config_name = "saved" if taken_up else "config"
        if taken_up:
            self._leave_recipe_out(taken_up[0])
        elif options.value("recipe") in (None, "", "null"):
            recipes = list(paths.catalogue("recipe", *options.config_dirs))
            raise refuse(f"name one, e.g. recipe={recipes[0]}; choices: {', '.join(recipes)}", "recipe")
        if options.multirun and "resume" in taken_up:
            raise refuse("takes one run; leave -m away", "resume")
        if options.config_dirs:
            folders = ", ".join(f"'file://{escaped(str(folder))}'" for folder in options.config_dirs)
            self.words.append(f"hydra.searchpath=[{folders}]")

    def compose(self) -> dict[str, Any]:
        """Settings of the one run. Raises ConfigError."""
        import hydra
        from hydra.core.hydra_config import HydraConfig
        from omegaconf import OmegaConf

        with self.in_own_words(), hydra.initialize_config_dir(str(paths.config_dir()), "zoo", "1.3"):
            config = hydra.compose(self.config_name, self.words, return_hydra_config=True)
            HydraConfig.instance().set_config(config)  # for ${hydra:...} in configs
            check_budget(config.hydra.runtime.choices)
            try:
                composed: Any = OmegaConf.to_container(config, resolve=False)
                del composed["hydra"]
                return finish(composed)
            finally:
                HydraConfig.instance().cfg = None

    @property
    def repeatable(self) -> list[str]:
        """Words that give the same settings again, all but the folder."""
        return [word for word in self.words if not word.startswith("out=")]

    @contextlib.contextmanager
    def in_own_words(self) -> Iterator[None]:
        """Hydra's reports speak of the rewritten words; the user reads the words that he wrote."""
        try:
            yield
        except Exception as error:
            told = explain(error)
            if told is None and type(error) is ValueError:  # Hydra's own complaints of a wrong type of choice
                told = str(error), 2
            if told is None or told[1] != 2 or os.environ.get("ZOO_TRACEBACK") == "1":
                raise
            text = told[0]
            for rewritten, written in self.written.items():
                text = text.replace(rewritten, written)
            raise refuse(text.replace("++given.", "").replace("given.", "")) from None

    def _leave_recipe_out(self, where: str) -> None:
        """`recipe=` beside resume= or checkpoint= may only repeat what that run was."""
        recipe, folder = self.options.value("recipe"), self.options.value(where) or ""
        self.words = [word for word in self.words if not word.startswith("recipe=")]
        if not self.options.multirun:
            name = read_run(folder, where)["name"]
            if recipe not in (None, name):
                raise refuse(f"'{folder}' holds a run of {name}, not of {recipe}; leave recipe= away", where)


def finish(composed: Mapping[str, Any]) -> dict[str, Any]:
    """The final settings from what Hydra composed (plain containers, interpolations as text). Raises ConfigError."""
    rest = dict(composed)
    given = rest.pop("given", None) or {}
    for where in ("resume", "checkpoint"):
        folder = rest.get(where)
        if folder is not None:
            if not isinstance(folder, str):
                raise refuse(f"should be a run folder, got {folder!r}", where)
            if where == "checkpoint":
                _refuse_model(given, rest)
            rest = _over_saved(read_run(folder, where), rest, where, os.path.abspath(folder))
            break
    settings = plain(settle(rest, given))
    check(settings)
    return settings


def _refuse_model(*layers: Mapping[str, Any]) -> None:
    """An exported model is what it is: settings of it beside checkpoint= would change nothing."""
    for layer in layers:
        for key in ("model", *PARTS):
            if layer.get(key) not in (None, {}):
                raise refuse("mode=eval evaluates the model as the run exported it; leave the setting away", key)


def _over_saved(saved: dict[str, Any], chosen: dict[str, Any], where: str, folder: str) -> dict[str, Any]:
    """The settings of the run in `folder` with those that were chosen now on top."""
    out = chosen.get("out")
    if where == "resume":
        if out is not None and os.path.abspath(out) != folder:
            raise refuse("a resumed run goes on in its own folder; leave out= away", "out")
        out = chosen["resume"]
    settings = {**saved, "mode": "train", "resume": None, "checkpoint": None}
    for key, value in chosen.items():
        if value is not None:
            settings[key] = join(settings.get(key), value)
    return {**settings, where: folder, "out": out or f"runs/{saved['name']}/{now()}"}


def now() -> str:
    """The time as the name of a folder, to the microsecond."""
    return datetime.now().strftime("%Y-%m-%d_%H-%M-%S-%f")


def escaped(text: str) -> str:
    """Text inside single quotes of Hydra's grammar."""
    return text.replace("'", "\\'")
