"""vit: classify images.   python -m zoo.run recipe=vit

Loss: cross entropy with label smoothing (Szegedy et al. 2015, arXiv:1512.00567) or with the soft labels of mixup and
CutMix. A distilled model (`model.distilled=true`, Touvron et al. 2020, arXiv:2012.12877) has a second head: with
`task.teacher=RUN_DIR` it learns the teacher's hard decision, one half of the loss each, and without a teacher both
heads learn the labels. Figures: accuracy, loss, top5, calibration_error, on val and test.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from recipes.data.preprocess import Preprocess
from recipes.recipe import Batch, Metrics, Recipe, TaskConfig, fed, wide
from zoo.blocks.api import ModelConfig
from zoo.files import write_text
from zoo.registry import ConfigError, decode, describe


class VitTask(TaskConfig):
    """Keys of `task`."""

    label_smoothing: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    teacher: str | None = None
    """Run folder of the teacher of a distilled model."""
    teacher_share: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.5
    """Share of the teacher's decision in the loss."""


class Vit(Recipe):
    """Image classification with any model of images (B, C, H, W) to logits (B, classes)."""

    task_type = VitTask
    headline = ("test/accuracy", "test/top5", "test/loss")
    task: VitTask
    _tokens = 1
    teacher: nn.Module | None = None

    def load(self) -> Any:
        data = self.data_config.load(self.settings.get("seed") or 0)
        if not len(data.test):
            raise ConfigError("the set has no test images", "data")
        return data

    def model_config(self, data: Any) -> ModelConfig:
        value = self.settings.get("model") or "vit"
        value = {"family": value} if isinstance(value, str) else dict(value)
        value.setdefault("family", "vit")
        made = describe("model", value["family"]).make
        fields = (made if isinstance(made, type) else type(made())).model_fields
        prepared = data.preprocess
        facts = {
            "image_size": list(prepared.image_size),
            "channels": prepared.channels,
            "num_classes": len(data.classes),
        }
        value |= {key: fact for key, fact in facts.items() if key in fields and value.get(key) is None}
        config = decode("model", value, "model")
        if getattr(config, "num_classes", len(data.classes)) < len(data.classes):
            text = f"should be the {len(data.classes)} classes of the data or more, got {config.num_classes}"
            raise ConfigError(text, "model.num_classes")
        if "num_classes" not in fields:
            raise ConfigError(f"'{value['family']}' does not classify images", "model")
        return config

    def prepare(self, model: nn.Module, data: Any) -> None:
        image = self.example_inputs(data)[0]
        try:
            self._tokens = _token_count(model, image)
        except (RuntimeError, ValueError, AssertionError, IndexError) as error:
            config: Any = getattr(model, "config", None)
            name = getattr(config, "name", None) or getattr(config, "registered_name", type(model).__name__)
            size = " x ".join(str(side) for side in image.shape[-2:])
            why = (str(error).splitlines() or [type(error).__name__])[0]
            raise ConfigError(f"'{name}' does not take images of {size}: {why}", "model") from None
        if self.task.teacher is not None:
            self.teacher = self._load_teacher(self.task.teacher, model, data)

    def _load_teacher(self, run: str, model: nn.Module, data: Any) -> nn.Module:
        if not getattr(getattr(model, "config", None), "distilled", False):
            raise ConfigError("needs a model with a distillation token; add model.distilled=true", "task.teacher")
        folder = Path(run) / "model"
        if not folder.is_dir():
            raise ConfigError(f"'{run}' is not a run folder with an exported model", "task.teacher")
        theirs = Preprocess.load(folder / "preprocess.json")
        if theirs.classes != data.classes or theirs.image_size != data.preprocess.image_size:
            raise ConfigError(f"'{run}' was trained on other classes or another image size", "task.teacher")
        return self.load_exported(folder).requires_grad_(False)

    @property
    def example_tokens(self) -> int:
        return self._tokens

    def example_inputs(self, data: Any) -> tuple[Any, ...]:
        return (data.test.batch([0], None)["image"],)

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Mapping[str, Tensor]]:
        images, labels = batch["image"], batch["label"]  # (B, C, H, W), (B,)
        made = model(fed(model, images))
        if not model.training:
            made = wide(made)
            return F.cross_entropy(made, labels, reduction="sum"), {"accuracy": _hits(made, labels)}
        targets = batch.get("soft_label", labels)  # (B, classes) under mixup and CutMix
        logits, distilled = made if isinstance(made, tuple) else (made, None)  # (B, classes) each
        loss = self._cross_entropy(logits, targets)
        if distilled is not None:
            share = self.task.teacher_share
            loss = (1 - share) * loss + share * self._distillation_loss(distilled, images, targets)
        return loss, {"accuracy": _hits(logits, labels)}

    def _cross_entropy(self, logits: Tensor, targets: Tensor) -> Tensor:
        logits = wide(logits)
        if targets.is_floating_point():  # soft labels
            targets = targets.to(logits.dtype)
        return F.cross_entropy(logits, targets, reduction="sum", label_smoothing=self.task.label_smoothing)

    def _distillation_loss(self, logits: Tensor, images: Tensor, targets: Tensor) -> Tensor:
        if self.teacher is None:
            return self._cross_entropy(logits, targets)
        with torch.no_grad():
            self.teacher.to(images.device)
            decision = self.teacher(fed(self.teacher, images)).argmax(dim=1)  # (B,)
        return F.cross_entropy(wide(logits), decision, reduction="sum")

    def evaluate(self, model: nn.Module, data: Any, split: str) -> Metrics:
        from recipes.vision.metrics import classification_metrics, predictions

        logits, labels = predictions(model, self.eval_batches(getattr(data, split)))
        return {f"{split}/{name}": value for name, value in classification_metrics(logits, labels).items()}

    def baselines(self, data: Any) -> dict[str, Metrics]:
        from recipes.vision.baselines import image_baselines

        return image_baselines(data)

    def figures(self, model: nn.Module, data: Any, folder: Path) -> list[Path]:
        from recipes.figures import learning_curves
        from recipes.vision.figures import attention, confusion_matrix, mistakes
        from recipes.vision.metrics import predictions

        logits, labels = predictions(model, self.eval_batches(data.test))
        drawn = [
            learning_curves(folder.parent / "metrics.csv", folder / "learning_curves.png"),
            confusion_matrix(logits, labels, data.classes, folder / "confusion_matrix.png"),
            mistakes(logits, data.test, data.classes, folder / "mistakes.png"),
            attention(model, data.test, folder / "attention.png"),
        ]
        return [path for path in drawn if path is not None]

    def export(self, model: nn.Module, data: Any, folder: Path) -> None:
        import json

        from zoo.library import save_pretrained
        from zoo.registry import encode

        save_pretrained(model, folder)
        write_text(folder / "preprocess.json", json.dumps(encode(data.preprocess), indent=2, ensure_ascii=False) + "\n")

    def load_exported(self, folder: Path) -> nn.Module:
        from zoo.library import load_pretrained

        return load_pretrained(folder)

    def check_fits(self, model: nn.Module, data: Any) -> None:
        ours: Any = getattr(model, "config", None)
        classes = getattr(ours, "num_classes", len(data.classes))
        channels = getattr(ours, "channels", data.preprocess.channels)
        if (classes, channels) != (len(data.classes), data.preprocess.channels):
            found = f"{len(data.classes)} classes and {data.preprocess.channels} channels"
            raise ConfigError(f"the model has {classes} classes and {channels} channels, the data {found}", "data")

    @classmethod
    def predict(cls, run: Path, argv: Sequence[str]) -> int:
        from recipes.vision.answer import answer
        from zoo.library import load_pretrained

        preprocess = Preprocess.load(run / "model" / "preprocess.json")
        return answer(load_pretrained(run / "model"), preprocess, argv)


@torch.no_grad()
def _token_count(model: nn.Module, image: Tensor) -> int:
    """Tokens of one image (1, C, H, W); 1 for a model whose features are no row of tokens."""
    features: Any = getattr(model, "forward_features", None)
    if features is None:
        return 1
    model.eval()
    made = features(fed(model, image))
    model.train()
    return made.shape[1] if isinstance(made, Tensor) and made.ndim == 3 else 1


def _hits(logits: Tensor, labels: Tensor) -> Tensor:
    return (logits.detach().argmax(dim=1) == labels).sum()


RECIPE = Vit
