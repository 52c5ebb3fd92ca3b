"""The settings of a run: from command-line words to one plain, resolved dict.

Two layers, the later one wins:
    1. configs/: config.yaml, the recipe, its tuning for the chosen data, the chosen groups   (composed by Hydra)
       or, with resume= and checkpoint=, the config.yaml of that run
    2. what stands on the command line under a free node: model.*, mixer=, data.*, optim.* ...

Free nodes take any key: `rewrite` turns `model.depth=3` into `++given.model.depth=3`, so Hydra composes, sweeps and
interpolates it but does not judge it; `settle` folds `given` into the settings, and the strict decoding of the parts
says what is wrong with a key, in their own words. Naming another part (`mixer=mamba2`, `model=gpt2`) starts that part
afresh instead of mixing its choices with those of the part it replaces.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from zoo.cli.errors import refuse
from zoo.paths import catalogue

__all__ = ["FREE", "GROUPS", "KEYS", "MODES", "PARTS", "join", "plain", "read_run", "rewrite", "settle"]

PARTS = ("mixer", "ffn", "norm", "residual", "position")
"""Parts of the model that the command line names at the top level."""
GROUPS = ("data", "optim", "trainer", "logger")
"""Settings that are also a folder of configs/: `data=mnist5k` chooses a file."""
FREE = ("model", *PARTS, *GROUPS, "task")
KEYS = ("name", "seed", "mode", "checkpoint", "resume", "out", "model", "data", "optim", "trainer", "logger", "task")
"""What a run's settings hold, in this order."""
MODES = ("train", "eval")
FOLDERS = ("out", "resume", "checkpoint")
PATHS = (*FOLDERS, "data.path")
TYPED = re.compile(r"^(?P<sign>~|\+\+|\+)?(?P<key>[^=]+)=(?P<value>.*)$", re.DOTALL)


def rewrite(argument: str, *, sweep: bool = False, groups: Iterable[str] = ()) -> str:
    """One override in the words that Hydra takes. Already rewritten ones come back as they are.

    `groups` are further top-level keys that a user's own config folder brings. Raises ConfigError.
    """
    if argument.startswith("~"):
        return argument
    match = TYPED.match(argument)
    if match is None or argument.startswith("-"):
        raise _no_value(argument)
    sign, key, value = match["sign"] or "", match["key"].strip(), match["value"]
    head = key.partition(".")[0].partition("@")[0].partition("/")[0]
    if key in ("hydra.run.dir", "hydra.sweep.dir") and "LOCAL_RANK" not in os.environ:  # Lightning gives it to ranks
        raise refuse("use out=FOLDER", key)
    if head in ("given", "hydra"):
        return argument
    if key in FOLDERS and not value.strip(" '\""):
        raise refuse("needs a folder", key)
    if key in PATHS and not sweep:
        value = _quoted(value)
    if head not in (*KEYS, *PARTS, "recipe", "budget", *groups) and not sign:
        choices = ("recipe", "budget", *KEYS, *PARTS)
        raise refuse(f"unknown key{_nearest(head, choices)}; choices: {', '.join(choices)}", key)
    if key in ("recipe", "budget", "model", *PARTS, *GROUPS) and not value.strip():
        raise refuse("needs a name", key)
    if key in GROUPS and value.strip() == "null" and not sign:
        raise refuse(f"needs a name, got null; choices: {', '.join(catalogue(key))}", key)
    if head in KEYS and head not in FREE and key != head:
        raise refuse(f"'{head}' is a single value with nothing below it; write {head}=...", key)
    if key in ("recipe", "budget", *GROUPS) and not sweep and not re.match(r"['\"]?[A-Za-z_]|[{$]", value):
        raise refuse(f"should be a name, got {value}; choices: {', '.join(catalogue(key))}", key)
    if head not in FREE or (key in GROUPS and "{" not in value):
        return f"{sign}{key}={value}"
    if key != head or head == "task" or value == "null" or value.lstrip()[:1] in "{[" or "{" in value:
        return f"++given.{key}={value}"
    return f"++given.{key}.{'family' if head == 'model' else 'name'}={value}"


def settle(composed: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with `given` folded in and the parts moved into the model; interpolations stay. Raises ConfigError."""
    settings = {key: value for key, value in composed.items() if key not in PARTS}
    unknown = [key for key in settings if key not in KEYS]
    if unknown:
        raise refuse(f"unknown key{_nearest(unknown[0], KEYS)}; choices: {', '.join(KEYS)}", unknown[0])
    settings["model"] = _with_parts(settings.get("model"), composed)
    for key in given:
        if key not in PARTS:
            settings[key] = join(settings.get(key), given[key])
    settings["model"] = _with_parts(settings["model"], given)
    return {key: settings.get(key) for key in KEYS}


def _with_parts(model: Any, layer: Mapping[str, Any]) -> Any:
    return join(model, {part: layer[part] for part in PARTS if part in layer})


def join(base: Any, change: Any) -> Any:
    """`base` with `change` merged in. A mapping that names another part than `base` replaces it.

    A bare string stands for the part of that name, on either side.
    """
    if isinstance(change, Mapping):
        if isinstance(base, str) and not _names(change):
            return {"name": base, **change}
        if not isinstance(base, Mapping):
            return join({}, change) if change else base if base is not None else {}
        if any(key in base and base[key] != change[key] for key in _names(change, base)):
            return join({}, change)
        # What is set to {} is emptied: optim.lr_scale={} takes a recipe's factors away.
        return {**base, **{key: {} if value == {} else join(base.get(key), value) for key, value in change.items()}}
    if isinstance(change, str) and isinstance(base, Mapping) and isinstance(base.get("name"), str):
        return base if base["name"] == change else {"name": change}
    return change


def plain(value: Any) -> Any:
    """Interpolations resolved, and only dicts, lists, numbers, strings and None left (no OmegaConf types)."""
    from omegaconf import OmegaConf

    return OmegaConf.to_container(OmegaConf.create(value), resolve=True, throw_on_missing=True)


def check(settings: Mapping[str, Any]) -> None:
    """The run's own keys; the parts are judged where they are decoded. Raises ConfigError."""
    for key in ("model", "data", "optim", "trainer", "logger", "task"):
        if not isinstance(settings[key], Mapping):
            raise refuse(f"should be a choice or keys under it, got {settings[key]!r}", key)
    if not isinstance(settings["name"], str):
        raise refuse(f"the recipe should set a name, got {settings['name']!r}", "name")
    seed = settings["seed"]
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**32:
        raise refuse(f"should be a whole number from 0 to 4294967295, got {seed!r}", "seed")
    mode = settings["mode"]
    if mode not in MODES:
        raise refuse(f"unknown mode {mode!r}{_nearest(str(mode), MODES)}; choices: {', '.join(MODES)}", "mode")
    if mode == "eval" and not settings["checkpoint"]:
        raise refuse("mode=eval needs the run to evaluate: checkpoint=RUN_DIR", "checkpoint")
    if mode == "train" and settings["checkpoint"]:
        raise refuse("is for mode=eval; to go on with a run use resume=RUN_DIR", "checkpoint")
    if mode == "eval" and settings["resume"]:
        raise refuse("a run goes on in mode=train; to evaluate it use mode=eval checkpoint=RUN_DIR", "resume")
    for key in FOLDERS:
        if settings[key] == "":
            raise refuse("needs a folder", key)
        if settings[key] is not None and not isinstance(settings[key], str):
            raise refuse(f"should be a folder, got {settings[key]!r}", key)


def read_run(folder: str, where: str) -> dict[str, Any]:
    """Settings that the run in `folder` was started with. `where` is the option that named it. Raises ConfigError."""
    import yaml

    path = Path(folder)
    if not path.is_dir():
        held = "is a file; name the run folder" if path.exists() else "no such folder"
        raise refuse(f"{held}: '{folder}'", where)
    file = path / "config.yaml"
    if not file.is_file():
        hint = (
            "it holds a sweep, name one of its runs" if (path / "multirun.yaml").is_file() else "no config.yaml in it"
        )
        raise refuse(f"'{folder}' is not a run folder ({hint})", where)
    try:
        settings = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError):
        settings = None
    if not isinstance(settings, dict) or not {"name", "model", "data"} <= set(settings):
        raise refuse(f"'{file}' does not hold the settings of a run", where)
    return settings


def _names(change: Mapping[str, Any], base: Mapping[str, Any] | None = None) -> tuple[str, ...]:
    """The key by which `change` names a part: `family` for models, whose `name` is a choice like any other."""
    if "family" in change or (base is not None and "family" in base):
        return ("family",) if "family" in change else ()
    return ("name",) if "name" in change else ()


def _quoted(value: str) -> str:
    """A path as Hydra's grammar takes it whatever characters it holds; null, quoted and bracketed values stay."""
    if not value or value == "null" or value[0] in "'\"[{$":
        return value
    # In Hydra's quotes a backslash is only special before a quote and at the end.
    inner = re.sub(r"(\\*)('|$)", lambda found: 2 * found[1] + ("\\'" if found[2] else ""), value)
    return f"'{inner}'"


def _no_value(argument: str) -> Exception:
    if argument.startswith("-"):
        return refuse(f"unknown option {argument!r}; settings are written without dashes, as key=value (see --help)")
    if argument.startswith("="):
        return refuse(f"{argument!r} has no key before the '='")
    recipes = catalogue("recipe")
    if argument in recipes:
        return refuse(f"{argument!r} has no '='; write recipe={argument}")
    return refuse(f"{argument!r} has no '='; settings are written key=value, e.g. recipe={next(iter(recipes), 'vit')}")


def _nearest(name: str, choices: Iterable[str]) -> str:
    from zoo.registry import nearest

    return nearest(name, choices)
