"""Whole mixers, with projections and convolutions, beside transformers' layers: Mamba and MiniMax's lightning.

Batch 2, width 256. Both sides have the same parameters. Forward and backward of transformers' Mamba takes seconds at
256 tokens and grows by more than the square, so it is called once, and not at greater lengths.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.speed.arms import BACKWARD, FORWARD, OURS, Arm, Family, Target, supervised

__all__ = ["PART", "BlockCase", "layer_arm"]

DEPTH = 4
"""Lightning's decays depend on the layer's place in a stack."""


@dataclass(frozen=True, kw_only=True)
class BlockCase:
    name: str
    mixer: str
    length: int
    batch: int = 2
    dim: int = 256
    heads: int = 4
    smoke: bool = False

    def rows(self) -> Tensor:
        return torch.randn(self.batch, self.length, self.dim)  # (B, T, D)


PART: Family[BlockCase] = Family(
    "mixers",
    cases=(
        *(BlockCase(name=f"block-mamba-{n}", mixer="mamba", length=n) for n in (256, 1024)),
        *(BlockCase(name=f"block-lightning-{n}", mixer="lightning", length=n) for n in (512, 2048)),
        *(
            BlockCase(name=f"smoke-block-{name}", mixer=name, length=16, dim=32, heads=2, smoke=True)
            for name in ("mamba", "lightning")
        ),
    ),
    targets=(
        Target("time", 1 / 30, peer="transformers", mode=BACKWARD, case="block-mamba-256"),
        *(Target("time", 0.5, peer="transformers", mode=FORWARD, case=f"block-mamba-{n}") for n in (256, 1024)),
    ),
    patience=1.0,
)


class _Called(nn.Module):
    """`layer` with what it needs beside x, made anew for every pass. x has a gradient, as within a model."""

    def __init__(self, layer: nn.Module, needs: Callable[[], dict[str, Any]]) -> None:
        super().__init__()
        self.layer, self.needs = layer, needs

    def forward(self, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_(torch.is_grad_enabled())
        result = self.layer(x, **self.needs())
        return result[0] if isinstance(result, tuple) else result


def layer_arm(layer: nn.Module, x: Tensor, needs: Callable[[], dict[str, Any]] = dict) -> Arm:
    """`layer(x, **needs())`, and its sum backward."""
    made = supervised(_Called(layer, needs), [x], [], loss=lambda y: y.sum())
    return Arm(made.calls, made.module)


@PART.peer(OURS)
def zoo(case: BlockCase) -> Arm:
    from zoo import create_mixer
    from zoo.blocks.api import Context

    sizes: dict[str, Any] = {"dim": case.dim, "heads": case.heads, "causal": True}
    if case.mixer == "lightning":
        mixer = create_mixer("lightning", **sizes, depth=DEPTH, slopes="transformers")
    else:
        mixer = create_mixer("mamba", **sizes)
    return layer_arm(mixer, case.rows(), lambda: {"context": Context()})


@PART.peer("transformers")
def transformers(case: BlockCase) -> Arm:
    if case.mixer == "mamba":
        from transformers.models.mamba.modeling_mamba import MambaConfig, MambaMixer

        config = MambaConfig(hidden_size=case.dim, num_hidden_layers=1, use_bias=False)
        made = layer_arm(MambaMixer(config, 0), case.rows())
        if not case.smoke and case.length > 256:
            del made.calls[BACKWARD]
        made.once = frozenset({BACKWARD})
        return made
    from transformers.models.minimax.modeling_minimax import MiniMaxConfig, MiniMaxLightningAttention

    config = MiniMaxConfig(
        hidden_size=case.dim,
        num_attention_heads=case.heads,
        head_dim=case.dim // case.heads,
        num_hidden_layers=DEPTH,
        layer_types=["linear_attention"] * DEPTH,
    )
    needs = {"position_embeddings": None, "attention_mask": None}
    return layer_arm(MiniMaxLightningAttention(config, 0), case.rows(), lambda: needs)
