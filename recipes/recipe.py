"""What a recipe must say: one task's data, model, loss, evaluation, baselines, pictures and answers to users.

`recipes/<name>.py` holds one subclass and names it RECIPE. Everything else (the loop, accumulation, averaging,
checkpoints, logs, results, tables) is shared, so a recipe never speaks of Lightning, files or schedules.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Annotated, Any, ClassVar, TypeVar

import torch
from pydantic import Field
from torch import Tensor, nn

import zoo.library  # noqa: F401  registers every part
from recipes.data import load_kinds
from recipes.data.loader import EpochLoader, Examples
from zoo.blocks.api import ModelConfig
from zoo.registry import Config, ConfigError, decode, nearest

Batch = dict[str, Tensor]
Metrics = dict[str, float]
ConfigT = TypeVar("ConfigT", bound=Config)
Count = Annotated[int, Field(gt=0)]


class TaskConfig(Config):
    """Keys of `task` that every recipe has."""

    batch_size: Count = 96
    eval_batch_size: Count = 256
    workers: Annotated[int, Field(ge=0)] = 0
    """Processes that prepare batches; 0 prepares them in the training process."""


class Recipe(ABC):
    """One task. It is made from plain settings, which it checks before anything is loaded or written."""

    task_type: ClassVar[type[TaskConfig]] = TaskConfig
    headline: tuple[str, ...] = ()
    """Metrics of the result table, the main one first."""
    loader_type: ClassVar[type[EpochLoader]] = EpochLoader
    optional_lr_scale: ClassVar[tuple[str, ...]] = ()
    """Keys of the recipe's own optim.lr_scale whose parameters go when a part of the model is exchanged."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = dict(settings)
        self.task = decode_as(self.task_type, settings.get("task") or {}, "task")
        self.data_config: Any = self.decode_data(settings.get("data"))

    def decode_data(self, value: Any) -> Config:
        """The config of the data; raises ConfigError."""
        load_kinds()
        return decode("data", value, "data")

    @abstractmethod
    def load(self) -> Any:
        """The data, with `train`, `val` and `test` Examples. Raises ConfigError where they cannot be had."""

    @abstractmethod
    def model_config(self, data: Any) -> ModelConfig:
        """The full model config: the settings, and what only the data can say (sizes, classes, vocabulary)."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Loss SUMMED over the batch's real targets, and other sums over the same targets to be logged as means.

        `model.training` tells training from validation.
        """

    @abstractmethod
    def evaluate(self, model: nn.Module, data: Any, split: str) -> Metrics:
        """Metrics `<split>/<name>` of a model in eval mode on a split. The same weights give the same figures."""

    @abstractmethod
    def export(self, model: nn.Module, data: Any, folder: Path) -> None:
        """Write all that `load_exported` and `predict` need."""

    @abstractmethod
    def load_exported(self, folder: Path) -> nn.Module:
        """The model that `export` wrote, in eval mode."""

    def train_batches(self, data: Any, accumulate: int, rank: int, ranks: int) -> Any:
        """The batches of training, in the order of the run's seed, from where a checkpoint left off."""
        return self.loader_type(
            data.train,
            self.task.batch_size,
            shuffle=True,
            seed=self.settings.get("seed") or 0,
            workers=self.task.workers,
            accumulate=accumulate,
            rank=rank,
            world_size=ranks,
        )

    def eval_batches(self, examples: Examples) -> EpochLoader:
        """All examples of a split, in order and not augmented."""
        return self.loader_type(examples, self.task.eval_batch_size, shuffle=False, seed=0)

    def prepare(self, model: nn.Module, data: Any) -> None:  # noqa: B027  (most recipes need none)
        """Called once before training; a place to load a teacher."""

    def baselines(self, data: Any) -> dict[str, Metrics]:
        """Simple methods on the same split: name to metrics, named as in `evaluate`."""
        return {}

    def figures(self, model: nn.Module, data: Any, folder: Path) -> list[Path]:
        """Pictures of the result, written into `folder`."""
        return []

    def example_inputs(self, data: Any) -> tuple[Any, ...]:
        """Arguments of the model for one example, for counting parameters and FLOPs."""
        return ()

    @property
    def example_tokens(self) -> int:
        """Tokens that the model reads in the example of `example_inputs`."""
        return 1

    def tokens(self, batch: Batch) -> int:
        """Tokens that the model reads in a batch."""
        return len(batch["index"]) * self.example_tokens

    def check_fits(self, model: nn.Module, data: Any) -> None:  # noqa: B027  (most recipes need none)
        """Raises ConfigError where a finished model cannot be evaluated on this data."""

    @classmethod
    def predict(cls, run: Path, argv: Sequence[str]) -> int:
        """Answer for a user's own input with the model of a run; returns the exit code."""
        raise ConfigError(f"recipe {cls.__module__.rpartition('.')[2]} answers no user input")


def decode_as(kind: type[ConfigT], value: Any, where: str) -> ConfigT:
    """A config of a known class from a plain dict, with its place in errors. Raises ConfigError."""
    if isinstance(value, kind):
        return value
    if not isinstance(value, Mapping):
        raise ConfigError(f"should be a dict, got {value!r}", where)
    try:
        return kind(**{str(key): item for key, item in value.items()})
    except ConfigError as error:
        raise ConfigError(error.problems, where) from None


def fed(model: Any, value: Tensor) -> Tensor:
    """A tensor where the parameters of `model` are and, where both are of floats, in their dtype (64-true, bf16-true).

    As it is for a model that is a mere function.
    """
    first = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    if first is None:
        return value
    floats = value.is_floating_point() and first.is_floating_point()
    return value.to(first.device, first.dtype if floats else None)


def wide(value: Tensor) -> Tensor:
    """A tensor of half precision in float32, in which losses and sums are taken; any other as it is."""
    return value.float() if value.dtype in (torch.float16, torch.bfloat16) else value


def recipe_names() -> list[str]:
    """Names of the recipes beside this file: modules that hold a RECIPE, found without importing them."""
    folder = Path(__file__).parent
    return sorted(
        found.name
        for found in iter_modules([str(folder)])
        if not found.ispkg and "\nRECIPE = " in (folder / f"{found.name}.py").read_text(encoding="utf-8")
    )


def find_recipe(name: Any) -> type[Recipe]:
    """The recipe class called `name`. Raises ConfigError with the nearest match."""
    known = recipe_names()
    if name not in known:
        raise ConfigError(f"unknown recipe '{name}'{nearest(str(name), known)}; choices: {', '.join(known)}", "recipe")
    return import_module(f"recipes.{name}").RECIPE
