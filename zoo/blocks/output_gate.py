"""What recurrent mixers do to their heads' outputs before the output projection: a norm for each head, and a gate.

Sun et al. 2023 (RetNet, arXiv:2307.08621) put a norm on each head, because a state of any age reads at any size; the
gate of the token's own input is theirs too, with SiLU. Kimi Linear (arXiv:2510.26692) found sigmoid better.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.blocks.norms import RMSNorm

__all__ = ["GateName", "OutputNorm"]

GateName = Literal["none", "silu", "sigmoid"]


class OutputNorm(nn.Module):
    """(..., H, V) and the gate's logits (..., H V) -> (..., H V): RMS norm over V, times the gate."""

    def __init__(self, value_dim: int, *, gate: GateName, norm: bool = True, eps: float = 1e-5) -> None:
        super().__init__()
        self.norm = RMSNorm(value_dim, eps=eps) if norm else None
        self.gate = gate

    def forward(self, y: Tensor, gate: Tensor | None) -> Tensor:
        y = y if self.norm is None else self.norm(y)  # (..., H, V)
        y = y.flatten(-2)  # (..., H V)
        if gate is None:
            return y
        return y * (F.silu(gate) if self.gate == "silu" else torch.sigmoid(gate))
