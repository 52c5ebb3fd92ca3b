"""Settings under `trainer`: Lightning's own Trainer arguments, checked, and the few that are ours.

The names and types are read from the signature of Lightning's Trainer, so whatever the installed version takes can be
given on the command line, and everything else is refused in one line before anything starts. Arguments that the run
itself decides (where files go, what is logged) are refused with the setting to use instead.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import Field

from recipes.lightning_import import Trainer
from recipes.recipe import decode_as
from zoo.registry import Config, ConfigError, nearest

DECIDED = {
    "logger": "use logger=csv, tensorboard or mlflow",
    "callbacks": "a recipe is extended in Python, see recipes/callbacks/",
    "plugins": "choose trainer.strategy and trainer.precision",
    "default_root_dir": "use out=FOLDER",
    "enable_checkpointing": "use trainer.save_every and trainer.keep",
    "enable_model_summary": "the parameters are counted in RUN_DIR/result.json",
    "check_val_every_n_epoch": "use trainer.val_check_interval: steps, or a share of an epoch written with a point",
    "num_sanity_val_steps": "validation is checked at the first trainer.val_check_interval",
    "use_distributed_sampler": "the loader divides the examples among the ranks itself",
    "reload_dataloaders_every_n_epochs": "the loader orders each epoch anew by itself",
    "limit_test_batches": "the test split is evaluated whole",
    "limit_predict_batches": "see `python -m zoo predict`",
    "fast_dev_run": "use trainer.max_steps",
    "overfit_batches": "use data.limit",
    "barebones": "logs and checkpoints cost little here; see trainer.log_every_n_steps and trainer.save_every",
    "enable_autolog_hparams": "use logger=csv to log no settings elsewhere",
    "model_registry": "the model is exported to RUN_DIR/model",
    "inference_mode": "evaluation always runs without gradients",
}

POSITIVE = ("accumulate_grad_batches", "limit_train_batches")
"""Arguments of which 0 would train nothing, or end in a division by it."""


class RunOptions(Config):
    """Keys under `trainer` that are ours, or that we act on in Lightning's stead."""

    save_every: int = Field(default=200, ge=1)
    """Optimizer steps between two checkpoints; a stopped run also writes one."""
    keep: int = Field(default=2, ge=1)
    """Checkpoints that stay."""
    log_every_n_steps: int = Field(default=50, ge=1)
    val_check_interval: int | float | None = Field(default=None, gt=0)
    """Optimizer steps between two validations, or a share of an epoch written with a point; null: 20 in the run."""
    limit_val_batches: int | float | None = Field(default=None, ge=0)
    """Batches of a validation, or a share of them written with a point; null for all, 0 for no validation."""
    enable_progress_bar: bool | None = None
    """null: a bar at a terminal, a plain line every log_every_n_steps elsewhere."""

    def validate_every(self, total_steps: int, steps_an_epoch: int) -> int:
        """Optimizer steps between two validations."""
        if self.val_check_interval is None:
            return max(total_steps // 20, 1) if total_steps else 20 * self.log_every_n_steps
        if isinstance(self.val_check_interval, float):
            return max(round(self.val_check_interval * steps_an_epoch), 1)
        return self.val_check_interval

    def validation_batches(self, available: int) -> int:
        """Batches of one validation."""
        if self.limit_val_batches is None:
            return available
        if isinstance(self.limit_val_batches, float):
            return round(min(self.limit_val_batches, 1.0) * available)
        return min(self.limit_val_batches, available)


def decode_trainer(value: Any) -> tuple[RunOptions, dict[str, Any]]:
    """(our options, arguments for Lightning's Trainer) from plain settings. Raises ConfigError."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"should be a dict, got {value!r}", "trainer")
    ours = {key: item for key, item in value.items() if key in RunOptions.model_fields}
    options = decode_as(RunOptions, ours, "trainer")
    parameters, problems = trainer_parameters(), []
    choices = sorted({*parameters, *RunOptions.model_fields} - set(DECIDED))
    arguments: dict[str, Any] = {"devices": 1}
    for key, item in value.items():
        if key in ours:
            continue
        if key in DECIDED:
            problems.append(((key,), f"is decided by the run; {DECIDED[key]}"))
        elif key not in parameters:
            problems.append(((key,), f"unknown key{nearest(key, choices)}; choices: {', '.join(choices)}"))
        elif not fits(item, parameters[key]):
            kind = parameters[key]
            problems.append(((key,), f"should be {expected(kind)}, got {item!r}{_closest(item, kind)}"))
        elif key in POSITIVE and item is not None and item <= 0:
            problems.append(((key,), f"should be greater than 0, got {item!r}"))
        else:
            arguments[key] = item
    if problems:
        raise ConfigError(problems, "trainer")
    if not any(arguments.get(key) is not None for key in ("max_steps", "max_epochs", "max_time")):
        raise ConfigError("set max_steps or max_epochs: how long to train", "trainer")
    return options, arguments


def build_trainer(arguments: Mapping[str, Any], **decided: Any) -> Trainer:
    """The Trainer. What Lightning refuses (no such accelerator, a negative number ...) becomes a ConfigError."""
    from lightning.pytorch.callbacks import Timer
    from lightning.pytorch.utilities.exceptions import MisconfigurationException

    quiet: dict[str, Any] = {
        "enable_checkpointing": False,
        "enable_model_summary": False,
        "enable_progress_bar": False,
        "use_distributed_sampler": False,
        "num_sanity_val_steps": 0,
        "limit_val_batches": 0,
    }
    if arguments.get("strategy") == "fsdp":  # Lightning's own of this name is the older form, for GPUs alone
        from recipes.sharding import Sharded

        arguments = {**arguments, "strategy": Sharded()}
    try:
        trainer = Trainer(**{**quiet, **arguments, **decided})
    except (MisconfigurationException, ValueError, TypeError) as error:
        raise ConfigError(" ".join(str(error).split()), "trainer") from None
    # Lightning puts the watch of max_time last; the others have to know that it makes this step the last one.
    callbacks: list[Any] = getattr(trainer, "callbacks", [])
    callbacks.sort(key=lambda callback: not isinstance(callback, Timer))
    return trainer


@cache
def trainer_parameters() -> dict[str, Any]:
    """Names and types of the arguments of Lightning's Trainer."""
    hints = typing.get_type_hints(Trainer.__init__)
    return {name: hints.get(name, Any) for name in list(inspect.signature(Trainer.__init__).parameters)[1:]}


def fits(value: Any, kind: Any) -> bool:
    """Whether a plain value has the annotated type, strictly: "8" and 8.0 are no int, True is none either."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return any(fits(value, part) for part in parts)
    if origin is Literal:
        return any(value == part and type(value) is type(part) for part in parts)
    if origin is list:
        return isinstance(value, list) and all(fits(item, parts[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(fits(k, parts[0]) and fits(v, parts[1]) for k, v in value.items())
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return kind is Any or (isinstance(kind, type) and isinstance(value, kind))


def expected(kind: Any) -> str:
    """The annotated type in words, without the classes that no plain value can be."""
    words = list(dict.fromkeys(_words(kind)))
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _words(kind: Any) -> list[str]:
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return [word for part in parts for word in _words(part)]
    if origin is Literal:
        return [repr(part) for part in parts]
    known = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", type(None): "null"}
    if origin is list:
        return [f"a list of which each is {expected(parts[0])}"]
    if origin is dict:
        return [f"a dict whose values are each {expected(parts[1])}"]
    return [known[kind]] if kind in known else []


def _closest(value: Any, kind: Any) -> str:
    return nearest(str(value), [word.strip("'") for word in _words(kind) if word.startswith("'")])
