"""Adaptive LayerNorm: a condition shifts, scales and gates every branch. Peebles & Xie 2022, arXiv:2212.09748.

    c (B, C) --silu, linear--> shift b, scale s, gate g, (B, D) each, for every branch
    adaln         x + f(N(x) (1 + s) + b)
    adaln_zero    x + g * f(N(x) (1 + s) + b)          starts as the identity, since all three start at 0

N has no weights of its own. A family may give its stack a shared `Modulation`: one matrix product then serves all
layers. Norms told by a condition: Perez et al. 2017, arXiv:1709.07871.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.blocks.api import Context, NormConfig, ResidualConfig, Slot
from zoo.blocks.residual import Branch, Residual
from zoo.registry import ConfigError, register

__all__ = ["AdaLN", "AdaLNConfig", "AdaLNZero", "AdaLNZeroConfig", "Modulation", "modulate", "plain_norm"]


def modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """x (B, T, D) (1 + scale) + shift, (B, 1, D) both, in one pass over x."""
    return torch.addcmul(shift, x, 1.0 + scale)  # (B, T, D)


def plain_norm(norm: NormConfig, dim: int) -> nn.Module:
    """The norm without weights of its own: the condition gives them."""
    if "affine" in type(norm).model_fields:
        norm = norm.model_copy(update={"affine": False})
    return norm.build(dim)


class Modulation(nn.Module):
    """c (B, C) -> one (B, 1, D) for every shift, scale and gate that was claimed, from one matrix product.

    Built in two steps: whoever needs vectors claims them, then `finish` makes the weights. They start at zero.
    """

    def __init__(self, cond_dim: int, dim: int) -> None:
        super().__init__()
        self.cond_dim, self.dim, self.claimed = cond_dim, dim, 0

    def claim(self, vectors: int) -> slice:
        """The place of so many vectors in what `forward` returns."""
        first, self.claimed = self.claimed, self.claimed + vectors
        return slice(first, self.claimed)

    def finish(self) -> Modulation:
        self.projection = nn.Linear(self.cond_dim, self.claimed * self.dim)
        self.reset_parameters()
        return self

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.projection.weight)
        nn.init.zeros_(self.projection.bias)

    def forward(self, cond: Tensor) -> Sequence[Tensor]:
        rows = self.projection(F.silu(cond))  # (B, n D)
        # One split of all: its backward is one concatenation, where slices would each fill a gradient of the whole.
        return rows.unsqueeze(1).split(self.dim, dim=-1)  # n of (B, 1, D)


@register("residual", "adaln", paper="Peebles & Xie 2022, arXiv:2212.09748")
class AdaLNConfig(ResidualConfig):
    """Pre-norm whose scale and shift come from the condition; starts as a plain pre-norm."""

    def build(self, slot: Slot, norm: NormConfig) -> Residual:
        return AdaLN(slot, norm)


@register("residual", "adaln_zero", paper="Peebles & Xie 2022, arXiv:2212.09748")
class AdaLNZeroConfig(ResidualConfig):
    """Norm without own parameters, shifted, scaled and gated by the condition; starts as the identity."""

    def build(self, slot: Slot, norm: NormConfig) -> Residual:
        return AdaLNZero(slot, norm)


class AdaLN(Residual):
    """`context.cond` is c (B, C), or what the stack's shared Modulation made of it."""

    vectors: ClassVar[int] = 2

    def __init__(self, slot: Slot, norm: NormConfig) -> None:
        if slot.cond_dim is None:
            name = "adaln" if self.vectors == 2 else "adaln_zero"
            raise ConfigError(
                f"residual '{name}' needs a condition, and there is none here; "
                "choices without one: pre, post, res_post, sandwich, deepnorm, layerscale",
                slot.where,
            )
        super().__init__(slot, norm)
        self.norm = plain_norm(norm, slot.dim)
        shared = slot.shared.get(Modulation)
        modulation = shared or Modulation(slot.cond_dim, slot.dim)
        self.place = modulation.claim(self.vectors)
        self.modulation = modulation.finish() if shared is None else None

    def modulations(self, context: Context) -> Sequence[Tensor]:
        """Shift, scale and, with a gate, gate: (B, 1, D) each."""
        cond = context.cond
        if isinstance(cond, Tensor) and self.modulation is not None:
            cond = self.modulation(cond)
        elif isinstance(cond, Tensor) or cond is None or self.modulation is not None:
            wanted = "the vectors of the shared Modulation" if self.modulation is None else "(B, C)"
            raise ValueError(f"adaln needs context.cond, {wanted}, got {type(cond).__name__}")
        return cond[self.place]

    def forward(self, x: Tensor, branch: Branch, context: Context) -> Tensor:
        shift, scale = self.modulations(context)
        return x + self.dropped(branch(modulate(self.norm(x), shift, scale)))  # (B, T, D)


class AdaLNZero(AdaLN):
    """The same with a gate on the branch."""

    vectors: ClassVar[int] = 3

    def forward(self, x: Tensor, branch: Branch, context: Context) -> Tensor:
        shift, scale, gate = self.modulations(context)
        y = branch(modulate(self.norm(x), shift, scale))  # (B, T, D)
        return torch.addcmul(x, gate, self.dropped(y))  # (B, T, D)
