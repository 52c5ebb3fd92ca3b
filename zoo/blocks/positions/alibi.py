"""ALiBi: a penalty linear in distance on each head's scores, without parameters (Press et al. 2021, arXiv:2108.12409).

    bias(i, j) = -m_h |i - j|        m_h = 2^(-8 h / H), h = 1..H, for H a power of two

For other H, as in the authors' code: the slopes of the power of two P below H, then every second slope of 2P from its
first on. 12 heads: those of 8, then 2^-0.5, 2^-1.5, 2^-2.5, 2^-3.5.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from zoo.blocks.api import PositionConfig, Slot
from zoo.registry import register

__all__ = ["AlibiBias", "AlibiConfig", "alibi_slopes", "naive_alibi"]


def alibi_slopes(heads: int, *, dtype: torch.dtype = torch.float32, device: torch.device | str | None = None) -> Tensor:
    """m (H,), positive."""
    power = 1 << (heads.bit_length() - 1)  # largest power of two <= H
    first = torch.arange(1, power + 1, dtype=dtype, device=device) * (8 / power)
    rest = (2 * torch.arange(heads - power, dtype=dtype, device=device) + 1) * (4 / power)
    return torch.exp2(-torch.cat((first, rest)))


@register("position", "alibi", paper="Press et al. 2021, arXiv:2108.12409")
class AlibiConfig(PositionConfig):
    """A fixed penalty on the scores, linear in distance; a two-sided slot uses |i - j|."""

    place: ClassVar[Literal["input", "rotary", "bias", "none"]] = "bias"

    def build(self, slot: Slot) -> AlibiBias:
        return AlibiBias(slot.heads)


class AlibiBias(nn.Module):
    """q_positions (T,) or (B, T), k_positions (S,) or (B, S) -> bias (H, T, S) or (B, H, T, S).

    In `dtype`, fp32 unless asked otherwise: bf16 cannot tell distances above 256 apart.
    """

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads

    def forward(self, q_positions: Tensor, k_positions: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        distance = (k_positions[..., None, :] - q_positions[..., :, None]).abs().to(dtype)  # (T, S) or (B, T, S)
        slopes = alibi_slopes(self.heads, dtype=dtype, device=distance.device)
        return distance.unsqueeze(-3) * -slopes[:, None, None]  # (H, T, S) or (B, H, T, S)

    def extra_repr(self) -> str:
        return f"heads={self.heads}"


def naive_alibi(heads: int, length: int) -> Tensor:
    """(H, T, T) fp64 by loops, with the recursive slopes of the authors' code."""

    def slopes(n: int) -> list[float]:
        if math.log2(n).is_integer():
            return [2 ** (-8 * h / n) for h in range(1, n + 1)]
        below = 2 ** math.floor(math.log2(n))
        return slopes(below) + slopes(2 * below)[0::2][: n - below]

    rows = [[[-m * abs(i - j) for j in range(length)] for i in range(length)] for m in slopes(heads)]
    return torch.tensor(rows, dtype=torch.float64)
