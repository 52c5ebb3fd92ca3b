"""Equal parameters in a model: the hidden width of the feed-forwards makes up for what a mixer has more or less."""

from __future__ import annotations

from typing import Any

import torch

from zoo.blocks.api import ModelConfig
from zoo.inspection.count import count_parameters
from zoo.inspection.match import solve
from zoo.registry import ConfigError, decode, encode

__all__ = ["match_params", "params_of"]


def match_params(config: ModelConfig, target: int, tolerance: float) -> tuple[ModelConfig, int]:
    """The model with `target` parameters, within a share `tolerance` of them, and the hidden width that it takes.

    A feed-forward keeps a quarter of the model's width at least. Raises ConfigError where no width does it.
    """
    width: int = getattr(config, "dim")  # noqa: B009  every family has one, and their base does not say so
    found = solve(
        lambda hidden: params_of(_with_hidden(config, hidden)),
        target,
        low=max(width // 4, 1),
        high=16 * width,
        tolerance=tolerance,
        what="parameters",
        knob="model.ffn.hidden",
    )
    return _with_hidden(config, found.value), found.value


def params_of(config: ModelConfig) -> int:
    """Parameters of the model that a config builds, shared ones once."""
    with torch.device("meta"):
        return count_parameters(config.build())[0]


def _with_hidden(config: Any, hidden: int) -> ModelConfig:
    if "hidden" not in type(config.ffn).model_fields:
        raise ConfigError(f"'{config.ffn.registered_name}' has no hidden width to match parameters by", "model.ffn")
    return decode("model", encode(config) | {"ffn": encode(config.ffn) | {"hidden": hidden}})
