"""The gate of a gated feed-forward as one autograd Function: act(gate) * up, keeping only gate and up for backward.

Autograd would keep act(gate) too, a third tensor of the hidden width in each layer. Shazeer 2020, arXiv:2002.05202.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["GATED", "gated", "naive_gated"]

GATED = ("silu", "gelu", "gelu_tanh")


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gate: Tensor, up: Tensor, activation: str) -> Tensor:
        ctx.save_for_backward(gate, up)
        ctx.activation = activation
        return _act(activation, gate).mul_(up)

    @staticmethod
    def backward(ctx, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        (grad,) = grads
        gate, up = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is asked for
            with torch.enable_grad():
                out = _act(ctx.activation, gate) * up
            # a frozen side has no gradient, and none is asked for it
            sides = [side for side in (gate, up) if side.requires_grad]
            found = iter(torch.autograd.grad(out, sides, grad, create_graph=True))
            return *(next(found) if side.requires_grad else None for side in (gate, up)), None  # type: ignore[return-value]
        grad_up = _act(ctx.activation, gate).mul_(grad)
        return _slope(ctx.activation, grad * up, gate), grad_up, None


def _act(activation: str, x: Tensor) -> Tensor:
    if activation == "silu":
        return F.silu(x)
    return F.gelu(x, approximate="tanh" if activation == "gelu_tanh" else "none")


def _slope(activation: str, grad: Tensor, x: Tensor) -> Tensor:
    if activation == "silu":
        return torch.ops.aten.silu_backward(grad, x)
    return torch.ops.aten.gelu_backward(grad, x, approximate="tanh" if activation == "gelu_tanh" else "none")


def gated(activation: str, gate: Tensor, up: Tensor) -> Tensor:
    """act(gate) * up; gate, up (..., F) -> (..., F). `activation`: one of GATED; gate and up of one dtype.

    Where no gradient is recorded it overwrites gate, which nothing else may read. torch.compile, which fuses these
    operations itself, gets them one by one.
    """
    if torch.compiler.is_compiling():
        return _act(activation, gate) * up
    if torch.is_grad_enabled() and (gate.requires_grad or up.requires_grad):
        return _Gated.apply(gate, up, activation)  # type: ignore[return-value]
    if activation == "silu":
        return F.silu(gate, inplace=True).mul_(up)
    return _act(activation, gate).mul_(up)


def naive_gated(activation: str, gate: Tensor, up: Tensor) -> Tensor:
    """The formulas: silu x sigmoid(x); gelu x Phi(x); gelu_tanh with Phi by its tanh approximation."""
    if activation == "silu":
        return gate / (1 + (-gate).exp()) * up
    if activation == "gelu":
        return gate * 0.5 * (1 + torch.erf(gate / math.sqrt(2))) * up
    inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
    return gate * 0.5 * (1 + torch.tanh(inner)) * up
