"""What a model costs, for result.json and for the utilisation in the logs."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
from torch import nn

from recipes.peak import peak_flops
from recipes.recipe import Recipe, fed


def sizes(recipe: Recipe, model: nn.Module, data: Any) -> dict[str, Any]:
    """Parameters, all and active, and, where every operator can be counted, flops_per_token of a forward pass."""
    from zoo.inspection.count import count, count_parameters, idle_parameters

    (params, params_non_embedding), idle = count_parameters(model), idle_parameters(model)
    found: dict[str, Any] = {
        "params": params,
        "params_non_embedding": params_non_embedding,
        "params_active": params - idle,
        "params_active_non_embedding": params_non_embedding - idle,
    }
    inputs = [fed(model, value) if isinstance(value, torch.Tensor) else value for value in recipe.example_inputs(data)]
    if inputs:
        training = model.training
        model.eval()  # a batch norm refuses the one example in training
        with suppress(NotImplementedError, RuntimeError):  # an operator without a meta form
            found["flops_per_token"] = count(model, *inputs).flops_forward / recipe.example_tokens
        model.train(training)
    return found


class PeakShare:
    """Model FLOPs utilisation of a rate in examples a second; what it takes is found out at the first call.

    A training step counts as 3 forward passes. None where the FLOPs cannot be counted.
    """

    def __init__(self, recipe: Recipe, data: Any, task: Any) -> None:
        self.recipe, self.data, self.task = recipe, data, task
        self._per_example: float | None = None

    def __call__(self, rate: float) -> float | None:
        if self._per_example is None:
            self._per_example = self._find_out()
        return self._per_example * rate or None

    def _find_out(self) -> float:
        """Share of the peak that one example a second takes."""
        flops = sizes(self.recipe, self.task.model, self.data).get("flops_per_token", 0.0)
        trainer = self.task.trainer
        peak = peak_flops(self.task.device, _dtype(str(trainer.precision))) * trainer.world_size
        return 3 * flops * self.recipe.example_tokens / peak


def _dtype(precision: str) -> torch.dtype:
    if precision.startswith("bf16"):
        return torch.bfloat16
    return {"16": torch.float16, "64": torch.float64}.get(precision[:2], torch.float32)
