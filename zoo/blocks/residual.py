"""How a branch joins the residual stream. A block holds one object of these per sublayer and has no flags.

    pre         x + f(N(x))                        sandwich     x + N(f(N(x)))
    res_post    x + N(f(x))
    post        N(x + f(x))                        deepnorm     N(a x + b f(x))
    layerscale  x + g * f(N(x))                    adaln, adaln_zero: with a condition, adaln.py

Dropout and stochastic depth act on f's output, before it is scaled and added.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from zoo.blocks.api import Context, NormConfig, ResidualConfig, Slot
from zoo.blocks.norms import NoNormConfig
from zoo.registry import register

__all__ = [
    "DeepNormConfig",
    "LayerScaleConfig",
    "PostConfig",
    "PreConfig",
    "ResPostConfig",
    "Residual",
    "SandwichConfig",
    "StochasticDepth",
]

Branch = Callable[[Tensor], Tensor]


class StochasticDepth(nn.Module):
    """Drops a whole row's branch with probability `rate` while training (Huang et al. 2016, arXiv:1603.09382)."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0.0:
            return x
        keep = x.new_empty(x.shape[0], *[1] * (x.dim() - 1)).bernoulli_(1.0 - self.rate)  # (B, 1, 1)
        return x * keep.div_(1.0 - self.rate)  # (B, T, D)

    def extra_repr(self) -> str:
        return f"rate={self.rate}"


class Residual(nn.Module):
    """Base: `forward(x (B, T, D), branch, context) -> (B, T, D)`."""

    def __init__(self, slot: Slot, norm: NormConfig) -> None:
        super().__init__()
        self.norm = norm.build(slot.dim)
        self.weight = slot.branch_weight
        drops: list[nn.Module] = []
        if slot.dropout:
            drops.append(nn.Dropout(slot.dropout))
        if slot.drop_path:
            drops.append(StochasticDepth(slot.drop_path))
        self.drop = nn.Sequential(*drops) if drops else None

    def dropped(self, y: Tensor) -> Tensor:
        """What is added of a branch's output (B, T, D)."""
        if self.drop is not None:
            y = self.drop(y)
        return y if self.weight == 1.0 else y * self.weight

    def forward(self, x: Tensor, branch: Branch, context: Context) -> Tensor:
        raise NotImplementedError


@register("residual", "pre", paper="Xiong et al. 2020, arXiv:2002.04745")
class PreConfig(ResidualConfig):
    """Norm on the branch's input; the stream itself is never normalised (pre-norm)."""

    first_norm: bool = True
    """False: none before the very first branch, whose input has a norm of its own (ModernBERT)."""

    def build(self, slot: Slot, norm: NormConfig) -> Residual:
        return Pre(slot, norm if self.first_norm or not slot.first else NoNormConfig())


class Pre(Residual):
    def forward(self, x: Tensor, branch: Branch, context: Context) -> Tensor:
        return x + self.dropped(branch(self.norm(x)))  # (B, T, D)


@register("residual", "post", paper="Vaswani et al. 2017, arXiv:1706.03762")
class PostConfig(ResidualConfig):
    """Norm after the addition, on the stream (post-norm)."""

    normalised: ClassVar[bool] = True

    def build(self, slot: Slot, norm: NormConfig) -> Residual:
        return Post(slot, norm)


class Post(Residual):
    def forward(self, x: Tensor, branch: Branch, context: Context) -> Tensor:
        return self.norm(x + self.dropped(branch(x)))  # (B, T, D)


@register("residual", "res_post", paper="Liu et al. 2021, arXiv:2111.09883")
class ResPostConfig(ResidualConfig):
    """Norm on the branch's output, inside the residual connection (Swin v2, OLMo 2)."""

    def build(self, slot: Slot, norm: NormConfig) -> Residual:
        return ResPost(slot, norm)


class ResPost(Residual):
    def forward(self, x: Tensor, branch: Branch, context: Context) -> Tensor:
        return x + self.dropped(self.norm(branch(x)))  # (B, T, D)


@register("residual", "sandwich", paper="Ding et al. 2021, arXiv:2105.13290")
class SandwichConfig(ResidualConfig):
    """Norm on the branch's input and on its output."""

    def build(self, slot: Slot, norm: NormConfig) -> Residual:
        return Sandwich(slot, norm)


class Sandwich(Residual):
    def __init__(self, slot: Slot, norm: NormConfig) -> None:
        super().__init__(slot, norm)
        self.out_norm = norm.build(slot.dim)

    def forward(self, x: Tensor, branch: Branch, context: Context) -> Tensor:
        return x + self.dropped(self.out_norm(branch(self.norm(x))))  # (B, T, D)


@register("residual", "deepnorm", paper="Wang et al. 2022, arXiv:2203.00555")
class DeepNormConfig(ResidualConfig):
    """Post-norm with the stream scaled up by (2 L)^(1/4) and branches started down by (8 L)^(-1/4).

    The factors are the paper's for a stack of one kind, encoder or decoder; those of an encoder-decoder differ. With
    `input_norm` in the stack it is MiniMax-01's (2025, arXiv:2501.08313): each norm there stands before the branch and
    the stream that goes by it, x = N(x), then a x + b f(x), and the last one behind the stack.
    """

    normalised: ClassVar[bool] = True

    alpha: Annotated[float, Field(gt=0)] | None = None
    """Factor a on the stream; None: (2 L)^(1/4)."""
    branch: Annotated[float, Field(gt=0)] = 1.0
    """Factor b on the branch's output (MiniMax's beta; the paper's is the one on initial weights)."""

    def stream(self, depth: int) -> float:
        """The factor a in a stack of `depth` layers."""
        return (2.0 * depth) ** 0.25 if self.alpha is None else self.alpha

    def branch_gain(self, depth: int) -> float:
        return (8.0 * depth) ** -0.25

    def build(self, slot: Slot, norm: NormConfig) -> Residual:
        return DeepNorm(slot.at(branch_weight=self.branch * slot.branch_weight), norm, self.stream(slot.depth))


class DeepNorm(Residual):
    def __init__(self, slot: Slot, norm: NormConfig, alpha: float) -> None:
        super().__init__(slot, norm)
        self.alpha = alpha

    def forward(self, x: Tensor, branch: Branch, context: Context) -> Tensor:
        return self.norm(self.alpha * x + self.dropped(branch(x)))  # (B, T, D)


@register("residual", "layerscale", paper="Touvron et al. 2021, arXiv:2103.17239")
class LayerScaleConfig(ResidualConfig):
    """Pre-norm with a learned scale per channel on the branch, started small."""

    initial: float = 1e-4

    def build(self, slot: Slot, norm: NormConfig) -> Residual:
        return LayerScale(slot, norm, self.initial)


class LayerScale(Residual):
    undecayed: tuple[str, ...] = ("gamma",)

    def __init__(self, slot: Slot, norm: NormConfig, initial: float) -> None:
        super().__init__(slot, norm)
        self.initial = initial
        self.gamma = nn.Parameter(torch.empty(slot.dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.gamma, self.initial)

    def forward(self, x: Tensor, branch: Branch, context: Context) -> Tensor:
        return x + self.dropped(self.gamma * branch(self.norm(x)))  # (B, T, D)
