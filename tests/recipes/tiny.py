"""A small task with unequal numbers of targets, for tests of the loop; and settings of a small real run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from recipes.data.loader import EpochLoader
from recipes.lightning_import import Trainer
from recipes.recipe import Batch, Recipe, TaskConfig
from recipes.task import Task
from zoo.registry import encode


class Rows:
    """Regression of rows of 1 to 12 tokens, of which the masked ones are no targets."""

    def __init__(self, lengths: Sequence[int], dtype: torch.dtype = torch.float64) -> None:
        draw = torch.Generator().manual_seed(1)
        size = len(lengths)
        self.x = torch.randn(size, 12, 3, dtype=dtype, generator=draw)
        self.y = torch.randn(size, 12, dtype=dtype, generator=draw)
        self.mask = torch.arange(12) < torch.tensor(list(lengths))[:, None]

    def __len__(self) -> int:
        return len(self.x)

    def batch(self, indices: Sequence[int], key: tuple[int, ...] | None) -> Batch:
        rows = list(indices)
        return {"x": self.x[rows], "y": self.y[rows], "mask": self.mask[rows]}

    def targets(self, batch: Batch) -> int:
        return int(batch["mask"].sum())


class RowsRecipe(Recipe):
    """Squared error over the real tokens. The model config is not needed: the model is handed to the Task."""

    def __init__(self, lengths: Sequence[int], batch_size: int) -> None:
        self.settings: dict[str, Any] = {"seed": 0}
        self.task = TaskConfig(batch_size=batch_size)
        self.rows = Rows(lengths)

    def load(self) -> Any:
        return self.rows

    def model_config(self, data: Any) -> Any:
        raise NotImplementedError

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Mapping[str, Tensor]]:
        error = (model(batch["x"])[..., 0] - batch["y"]).square() * batch["mask"]
        return error.sum(), {"tokens": batch["mask"].sum()}

    def evaluate(self, model: nn.Module, data: Any, split: str) -> dict[str, float]:
        raise NotImplementedError

    def export(self, model: nn.Module, data: Any, folder: Path) -> None:
        raise NotImplementedError

    def load_exported(self, folder: Path) -> nn.Module:
        raise NotImplementedError


def quiet_trainer(**arguments: Any) -> Trainer:
    """A Trainer without any output, as the runs use it."""
    quiet = {"logger": False, "enable_checkpointing": False, "enable_model_summary": False}
    quiet |= {"enable_progress_bar": False, "use_distributed_sampler": False}
    return Trainer(accelerator="cpu", devices=1, **quiet, **arguments)


def rows_task(recipe: RowsRecipe, model: nn.Module, optim: Any, *, accumulate: int = 1, shuffle: bool = False) -> Task:
    """A Task over the rows, in their own order unless shuffled."""

    def loader(rank: int, ranks: int) -> EpochLoader:
        return EpochLoader(
            recipe.rows,
            recipe.task.batch_size,
            shuffle=shuffle,
            seed=0,
            accumulate=accumulate,
            rank=rank,
            world_size=ranks,
        )

    return Task({"optim": encode(optim)}, recipe, model, loader)


def run_settings(**changes: Any) -> dict[str, Any]:
    """Settings of a ViT on digits that trains a few steps in a second; groups are merged key by key."""
    settings: dict[str, Any] = {
        "name": "vit",
        "seed": 0,
        "mode": "train",
        "checkpoint": None,
        "resume": None,
        "model": {"family": "vit", "patch_size": [4, 4], "dim": 8, "depth": 1, "heads": 2, "pool": "mean"},
        "data": {"name": "digits", "limit": 96, "augment": {"shift": 0.5}},
        "optim": {"name": "adamw", "lr": 3e-3, "ema": 0.9, "schedule": {"name": "cosine", "warmup": 2}},
        "trainer": {"max_steps": 6, "log_every_n_steps": 2, "save_every": 2, "val_check_interval": 3},
        "logger": {"name": "csv"},
        "task": {"batch_size": 32, "label_smoothing": 0.1},
    }
    for key, value in changes.items():
        settings[key] = {**settings[key], **value} if isinstance(value, dict) else value
    return settings
