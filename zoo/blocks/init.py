"""Initial values: each module knows its own, so a block starts the same alone, in a model, and after a meta build."""

from __future__ import annotations

import torch
from torch import nn

__all__ = ["init_linear", "materialise"]


def init_linear(linear: nn.Linear, std: float) -> None:
    """Normal weights cut at 2 standard deviations' distance, zero bias (as BERT, GPT-2 and ViT start)."""
    nn.init.trunc_normal_(linear.weight, std=std, a=-2 * std, b=2 * std)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)


def materialise(module: nn.Module, device: torch.device | str = "cpu") -> nn.Module:
    """Give a module built under `torch.device("meta")` memory on `device` and its initial values.

    `reset_parameters` runs from the leaves to the root, so a block's own rule comes after torch's defaults.
    """
    module.to_empty(device=device)
    for child in reversed(list(module.modules())):
        reset = getattr(child, "reset_parameters", None)
        if callable(reset):
            reset()
    return module
