"""The arms of the downstream comparison: what fine-tuning and a probe make of an encoder, over the draws of labels."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from recipes.masked.corpus import MaskedData
from recipes.masked.downstream import (
    DownstreamTask,
    accuracy,
    drawn,
    encoder_of,
    fine_tuned,
    labelled_examples,
    pooled_features,
    probe_accuracy,
)
from recipes.recipe import Metrics
from zoo.files import write_text
from zoo.library import load_pretrained, save_pretrained

__all__ = ["DownstreamArms", "classes_of", "mean_over_draws"]

CLASSES_FILE = "classes.json"


class DownstreamArms:
    """The pre-trained arm, trained once a run and exported with it, and the arm from scratch.

    length: longest row in tokens. exported: folder of a model whose classifiers are taken as they are.
    """

    def __init__(self, task: DownstreamTask, length: int, eval_batch_size: int) -> None:
        self.task, self.length, self.eval_batch_size = task, length, eval_batch_size
        self.exported: Path | None = None
        self.found: dict[str, Metrics] = {}
        """Metrics of the pre-trained arm by split, once it was asked for."""
        self._classifiers: list[nn.Module] | None = None

    def pretrained(self, model: nn.Module, data: MaskedData) -> dict[str, Metrics]:
        """Metrics of the fine-tuned model and of the probe by split; {} where there are no labels."""
        if data.labelled is not None and not self.found:
            self.found = self._arm(model, data, scratch=False)
        return self.found

    def from_scratch(self, fresh: nn.Module, data: MaskedData) -> dict[str, Metrics]:
        """The same of a model with initial weights."""
        return self._arm(fresh, data, scratch=True)

    def draws(self, data: MaskedData) -> list[Any]:
        """Labelled texts of each draw."""
        assert data.labelled is not None
        return [drawn(data.labelled.train, self.task.labels, draw) for draw in range(self.task.draws)]

    def export(self, model: nn.Module, data: MaskedData, folder: Path) -> None:
        """Write the classifiers and the names of their classes."""
        if data.labelled is None or not self.task.steps:
            return
        if torch.cuda.is_available():
            model.to("cuda")  # where it was trained
        for number, made in enumerate(self._fine_tuned(model, data, scratch=False)):
            save_pretrained(made, folder / f"classifier_{number}")
        write_text(folder / CLASSES_FILE, json.dumps(list(data.labelled.classes), ensure_ascii=False, indent=1) + "\n")

    def _examples(self, rows: Any, data: MaskedData) -> Any:
        return labelled_examples(rows, data.tokenizer, self.length)

    def _arm(self, model: nn.Module, data: MaskedData, *, scratch: bool) -> dict[str, Metrics]:
        labelled, encoder = data.labelled, encoder_of(model)
        assert labelled is not None
        sets = {split: self._examples(getattr(labelled, split), data) for split in ("val", "test")}
        found: dict[str, dict[str, list[float]]] = {split: {"accuracy": [], "probe": []} for split in sets}
        if self.task.steps:
            for made in self._fine_tuned(model, data, scratch=scratch):
                for split in ("test",) if scratch else sets:  # nothing is tuned on the arm from scratch
                    found[split]["accuracy"].append(accuracy(made, sets[split], self.eval_batch_size))
        if self.task.probe:
            held = {split: pooled_features(encoder, examples) for split, examples in sets.items()}
            truth = {split: examples.labels.numpy() for split, examples in sets.items()}
            for rows in self.draws(data):
                examples = self._examples(rows, data)
                known = {"train": pooled_features(encoder, examples), **held}
                for split, value in probe_accuracy(known, {"train": examples.labels.numpy(), **truth}).items():
                    found[split]["probe"].append(value)
        return {split: mean_over_draws(values) for split, values in found.items()}

    def _fine_tuned(self, model: nn.Module, data: MaskedData, *, scratch: bool) -> list[nn.Module]:
        """One classifier a draw; those of an exported run as they were exported."""
        assert data.labelled is not None
        if not scratch and self._classifiers is not None:
            return self._classifiers
        classes = data.labelled.classes
        folders = sorted(self.exported.glob("classifier_*")) if self.exported and not scratch else []
        if folders and classes_of(self.exported) == list(classes):
            device = next(model.parameters()).device
            made = [load_pretrained(folder).to(device) for folder in folders]
        else:
            options = {"classes": len(classes), "task": self.task, "scratch": scratch}
            draws = [self._examples(rows, data) for rows in self.draws(data)]
            made = [fine_tuned(encoder_of(model), examples, **options) for examples in draws]
        if not scratch:
            self._classifiers = made
        return made


def classes_of(folder: Path | None) -> list[str]:
    """Names of the classes that the classifiers of an exported model tell; [] where it has none."""
    path = folder / CLASSES_FILE if folder is not None else None
    return json.loads(path.read_text(encoding="utf-8")) if path is not None and path.is_file() else []


def mean_over_draws(values: Mapping[str, list[float]]) -> Metrics:
    """Means over the draws, and the standard deviation of the fine-tuned accuracy between them."""
    found: Metrics = {}
    if accuracies := values.get("accuracy"):
        found["downstream_accuracy"] = statistics.fmean(accuracies)
        if len(accuracies) > 1:
            found["downstream_accuracy_std"] = statistics.stdev(accuracies)
    if probes := values.get("probe"):
        found["downstream_probe"] = statistics.fmean(probes)
    return found
