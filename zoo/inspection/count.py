"""What a model costs: parameters, in all and those that one token passes through, and the FLOPs of a forward pass.

"Active parameters" has no fixed convention: MiniMax leaves the looked-up tables out, DeepSeek and Qwen count them, so
both figures are given.

FLOPs are 2 per multiply-add, of matrix products, convolutions and attention scores; causal attention counts as the
full square. They are counted by torch's own counter on the meta device, where fused attention is seen (on a CPU
the counter reads 0 for it).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from zoo.blocks.api import ModelConfig, Sublayer

__all__ = ["Count", "count", "count_parameters", "idle_parameters"]


@dataclass(frozen=True)
class Count:
    """Parameters, shared ones once, and the FLOPs of one forward pass on the inputs that were given."""

    params: int
    params_non_embedding: int
    """Without tables that are looked up: token embeddings and learned positions."""
    params_active: int
    """Without the experts that a token leaves aside."""
    params_active_non_embedding: int
    """Without these and without the tables."""
    flops_forward: int


def count_parameters(model: nn.Module) -> tuple[int, int]:
    """(all, without looked-up tables); tied weights count once, and a table that is also a head counts as a table."""
    tables = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, nn.Embedding) or getattr(module, "is_table", False)
        for parameter in module.parameters(recurse=False)
    }
    sizes = [(id(parameter) in tables, parameter.numel()) for parameter in model.parameters()]
    return sum(size for _, size in sizes), sum(size for table, size in sizes if not table)


def idle_parameters(model: nn.Module) -> int:
    """Parameters that one token does not pass through: those of the experts that it leaves aside."""
    return sum(module.idle_parameters() for module in model.modules() if isinstance(module, Sublayer))


def count(model: nn.Module, *inputs: Any, **keywords: Any) -> Count:
    """Count `model(*inputs, **keywords)`; the model itself is not run and may lie on any device."""
    config = getattr(model, "config", None)
    if isinstance(config, ModelConfig):
        with torch.device("meta"):
            twin = config.build()
    else:
        twin = copy.deepcopy(model).to("meta")
    twin.train(model.training)
    arguments = [_meta(value) for value in inputs]
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        twin(*arguments, **{name: _meta(value) for name, value in keywords.items()})
    params, params_non_embedding = count_parameters(model)
    idle = idle_parameters(model)
    return Count(params, params_non_embedding, params - idle, params_non_embedding - idle, counter.get_total_flops())


def _meta(value: Any) -> Any:
    return value.to("meta") if isinstance(value, Tensor) else value
