"""dit: make images of a class that is asked for.   python -m zoo.run recipe=dit

A Diffusion Transformer (Peebles & Xie 2022, arXiv:2212.09748) learns to take noise off images of -1..1, told their
class, or at times no class. Loss: of `task.process`, a rectified flow or diffusion (zoo/diffusion/).
Figures, of images made of noise: frechet_distance to the training images, class_fidelity, nearest_neighbour, each
explained in recipes/generation/evaluation.py; beside held-out images and four simple makers of images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from recipes.data.images import ImageData, ImageDataConfig
from recipes.data.keys import seed_of
from recipes.generation.evaluation import MOST, Images, Ruler
from recipes.generation.sampling import image_shape, samples, spread_labels
from recipes.generation.scaling import centred
from recipes.recipe import Batch, Metrics, Recipe, TaskConfig, fed, wide
from zoo.blocks.api import ModelConfig
from zoo.diffusion import FlowConfig, Process, ProcessConfig
from zoo.files import write_text
from zoo.models.dit import DiTConfig
from zoo.registry import ConfigError, decode, describe, part

__all__ = ["DitTask"]


class DitTask(TaskConfig):
    """Keys of `task`."""

    batch_size: Annotated[int, Field(gt=0)] = 128
    """Images a step."""
    process: Annotated[ProcessConfig, part("process")] = FlowConfig()
    """How images are noised, what is predicted, and how samples are drawn: {name: flow, sampler: heun}, {name: ddpm,
    clip: 1.0, sampler: ddim} ..."""
    guidance: Annotated[float, Field(ge=0)] = 1.0
    """Scale of classifier-free guidance in sampling; 1: none."""
    samples: Annotated[int, Field(ge=2)] = 500
    """Images that are made for each table and picture, the classes in turn."""
    classifier_steps: Annotated[int, Field(gt=0)] = 300
    """Training steps of the classifier that images are measured by."""
    guidance_curve: tuple[float, ...] = (1.5, 2.5)
    """Further scales of the picture of distances; empty: no such picture."""
    step_curve: tuple[Annotated[int, Field(ge=1)], ...] = (3, 6, 10)
    """Further numbers of sampling steps of that picture."""


class Dit(Recipe):
    """Class-conditional images with a DiT."""

    task_type = DitTask
    headline = ("test/frechet_distance", "test/class_fidelity", "test/nearest_neighbour")
    task: DitTask
    optional_lr_scale = ("modulation",)  # cross-attention and in-context conditioning have none
    _tokens = 1
    _ruler: Ruler | None = None

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__(settings)
        self.process: Process = self.task.process.build()
        self._found: dict[tuple[int, str, float, int | None], Metrics] = {}

    def load(self) -> ImageData:
        if not isinstance(self.data_config, ImageDataConfig):
            raise ConfigError(f"'{self.data_config.registered_name}' holds no images; choices: digits ...", "data")
        data = self.data_config.load(self.settings.get("seed") or 0)
        if not len(data.test):
            raise ConfigError("the set has no test images", "data")
        if data.train.augment.mixup or data.train.augment.cutmix:
            raise ConfigError("mixed images are none to learn to make; set mixup and cutmix to 0", "data.augment")
        self.headline = (*Dit.headline, f"test/frechet_distance@{min(self.task.samples, len(data.test), MOST)}")
        return centred(data)

    def model_config(self, data: ImageData) -> ModelConfig:
        value = self.settings.get("model") or "dit"
        value = {"family": value} if isinstance(value, str) else dict(value)
        value.setdefault("family", "dit")
        made = describe("model", value["family"]).make
        if not issubclass(made if isinstance(made, type) else type(made()), DiTConfig):
            raise ConfigError(f"'{value['family']}' makes no images; choose dit or a preset of it", "model")
        facts = {
            "image_size": list(data.preprocess.image_size),
            "channels": data.preprocess.channels,
            "num_classes": len(data.classes),
            "learned_sigma": self._learned_sigma,
        }
        value |= {key: fact for key, fact in facts.items() if value.get(key) is None}
        config = decode("model", value, "model")
        assert isinstance(config, DiTConfig)
        self._check(config, data)
        return config

    @property
    def _learned_sigma(self) -> bool:
        return bool(getattr(self.task.process, "learned_sigma", False))

    def _check(self, config: DiTConfig, data: ImageData) -> None:
        """Raises ConfigError where a model does not fit the data, the process or the guidance."""
        wanted = {
            "image_size": ("data", data.preprocess.image_size),
            "channels": ("data", data.preprocess.channels),
            "learned_sigma": ("process", self._learned_sigma),
        }
        for key, (whose, fact) in wanted.items():
            if (mine := getattr(config, key)) != fact:
                raise ConfigError(f"should be the {whose}'s {fact}, got {mine}", f"model.{key}")
        if config.num_classes < len(data.classes):
            text = f"should be the {len(data.classes)} classes of the data or more, got {config.num_classes}"
            raise ConfigError(text, "model.num_classes")
        if not config.label_dropout and {self.task.guidance, *self.task.guidance_curve} - {1.0}:
            text = "guidance needs a label for 'no class'; set it above 0, or task.guidance=1 task.guidance_curve=[]"
            raise ConfigError(text, "model.label_dropout")

    def prepare(self, model: nn.Module, data: ImageData) -> None:
        found: Any = model
        rows, columns = found.patches.grid(*data.preprocess.image_size)
        self._tokens = rows * columns

    @property
    def example_tokens(self) -> int:
        return self._tokens

    def example_inputs(self, data: ImageData) -> tuple[Any, ...]:
        batch = data.train.batch([0], None)
        return batch["image"], torch.full((1,), 500.0), batch["label"]

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Mapping[str, Tensor]]:
        images, labels = fed(model, batch["image"]), batch["label"]  # (B, C, H, W), (B,)
        losses = self.process.loss(lambda x, t: wide(model(x, t, labels)), wide(images))  # (B,)
        return losses.sum(), {}

    def evaluate(self, model: nn.Module, data: ImageData, split: str) -> Metrics:
        total, count = torch.zeros(()), 0
        for batch in self.eval_batches(getattr(data, split)):
            batch = {name: fed(model, value) if name == "image" else value for name, value in batch.items()}
            batch["label"] = batch["label"].to(batch["image"].device)
            total, count = total + self.loss(model, batch)[0].cpu(), count + len(batch["label"])
        return {**self._measured(model, data, split), f"{split}/loss": float(total) / count}

    def _measured(
        self, model: nn.Module, data: ImageData, split: str, guidance: float | None = None, steps: int | None = None
    ) -> Metrics:
        """Metrics of samples, made once for table and pictures; val and test have seeds of their own."""
        guidance = self.task.guidance if guidance is None else guidance
        key = (id(model), split, guidance, steps)
        if key not in self._found:
            labels = self._labels(data)
            first = seed_of("samples", split)
            images = samples(
                model,
                self.process,
                labels,
                range(first, first + len(labels)),
                guidance=guidance,
                steps=steps,
                batch_size=self.task.eval_batch_size,
            )
            self._found[key] = self._ruled(data).measure(Images(images, labels), split)
        return self._found[key]

    def _labels(self, data: ImageData) -> Tensor:
        return spread_labels(data.train.labels, self.task.samples)

    def _ruled(self, data: ImageData) -> Ruler:
        if self._ruler is None:
            self._ruler = Ruler(data, self.task.samples, self.task.classifier_steps)
        return self._ruler

    def baselines(self, data: ImageData) -> dict[str, Metrics]:
        from recipes.generation.baselines import generation_baselines

        return generation_baselines(self._ruled(data), self._labels(data))

    def figures(self, model: nn.Module, data: ImageData, folder: Path) -> list[Path]:
        from recipes.figures import learning_curves
        from recipes.generation.figures import distance_curves, sample_grid, trajectory

        about = (model, self.process, data.train.labels.unique().tolist(), data.classes)
        options: dict[str, Any] = {"guidance": self.task.guidance, "batch_size": self.task.eval_batch_size}
        drawn = [
            learning_curves(folder.parent / "metrics.csv", folder / "learning_curves.png"),
            sample_grid(*about, folder / "samples.png", **options),
            trajectory(*about, folder / "trajectory.png", **options),
        ]
        if curves := self._curves(model, data):
            split = self._curve_split(data)
            floor = self._ruled(data).measure(self._ruled(data).heldout[split], split)[f"{split}/frechet_distance"]
            drawn.append(distance_curves(curves, floor, folder / "distances.png"))
        return [path for path in drawn if path is not None]

    @staticmethod
    def _curve_split(data: ImageData) -> str:
        """Where settings may be chosen by the pictures: val, where there is one."""
        return "val" if len(data.val) else "test"

    def _curves(self, model: nn.Module, data: ImageData) -> dict[str, dict[float, tuple[float, float]]]:
        """(distance, fidelity) at each scale of guidance and at each number of steps."""
        split, task = self._curve_split(data), self.task
        own_steps: int | None = getattr(task.process, "sample_steps", None)

        def at(guidance: float | None = None, steps: int | None = None) -> tuple[float, float]:
            found = self._measured(model, data, split, guidance, steps)
            return found[f"{split}/frechet_distance"], found[f"{split}/class_fidelity"]

        curves: dict[str, dict[float, tuple[float, float]]] = {}
        if task.guidance_curve:
            curves["guidance scale"] = {scale: at(scale) for scale in {*task.guidance_curve, task.guidance}}
        if task.step_curve:
            curves["sampling steps"] = {count: at(steps=count) for count in task.step_curve}
            if own_steps is not None:
                curves["sampling steps"][own_steps] = at()
        return curves

    def export(self, model: nn.Module, data: ImageData, folder: Path) -> None:
        import json

        from recipes.generation.answer import write_process
        from zoo.library import save_pretrained
        from zoo.registry import encode

        save_pretrained(model, folder)
        write_text(folder / "preprocess.json", json.dumps(encode(data.preprocess), indent=2, ensure_ascii=False) + "\n")
        write_process(folder, self.task.process, self.task.guidance)

    def load_exported(self, folder: Path) -> nn.Module:
        from zoo.library import load_pretrained

        return load_pretrained(folder)

    def check_fits(self, model: nn.Module, data: ImageData) -> None:
        ours: Any = getattr(model, "config", None)
        theirs = (data.preprocess.channels, *data.preprocess.image_size)
        if image_shape(model) != theirs or ours.num_classes < len(data.classes):
            raise ConfigError(
                f"the model makes images of {image_shape(model)} in {ours.num_classes} classes, the data has {theirs} "
                f"in {len(data.classes)}",
                "data",
            )

    @classmethod
    def predict(cls, run: Path, argv: Sequence[str]) -> int:
        from recipes.generation.answer import answer
        from zoo.library import load_pretrained

        return answer(load_pretrained(run / "model"), run / "model", argv)


RECIPE = Dit
