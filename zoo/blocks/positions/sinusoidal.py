"""Sinusoidal absolute positions (Vaswani et al. 2017, arXiv:1706.03762, section 3.5), and Whisper's variant.

    PE(p, 2i) = sin(p w_i), PE(p, 2i + 1) = cos(p w_i), w_i = 10000^(-2i / D)

PE(p + k) is a linear map of PE(p), the same for every p: each pair turns by k w_i.
"""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from zoo.blocks.api import Context, PositionConfig, Slot
from zoo.blocks.positions.indices import token_positions
from zoo.registry import ConfigError, register

__all__ = ["SinusoidalConfig", "SinusoidalPositions", "sinusoid"]

Convention = Literal["vaswani", "whisper", "halves"]


def sinusoid(
    positions: Tensor,
    dim: int,
    *,
    base: float = 10000.0,
    convention: Convention = "vaswani",
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Positions (...) of any numbers -> (..., D) in `dtype`, which should be fp32 or fp64; D even.

    "vaswani": sines and cosines interleaved, w_i = base^(-i / (D/2)).
    "halves": the same w_i, all sines, then all cosines (Marian).
    "whisper": all sines, then all cosines, w_i = base^(-i / (D/2 - 1)) (tensor2tensor, openai/whisper model.py).
    """
    steps = dim // 2 - 1 if convention == "whisper" else dim // 2
    index = torch.arange(dim // 2, dtype=dtype, device=positions.device)
    angles = positions[..., None].to(dtype) * torch.exp(index * (-math.log(base) / steps))  # (..., D/2)
    pair = (angles.sin(), angles.cos())
    return torch.stack(pair, dim=-1).flatten(-2) if convention == "vaswani" else torch.cat(pair, dim=-1)


@register("position", "sinusoidal", paper="Vaswani et al. 2017, arXiv:1706.03762")
class SinusoidalConfig(PositionConfig):
    """Fixed sines and cosines added to the input, for any length."""

    place: ClassVar[Literal["input", "rotary", "bias", "none"]] = "input"

    base: Annotated[float, Field(gt=1)] = 10000.0
    convention: Convention = "vaswani"
    """ "vaswani" (interleaved, divided by D/2), "halves" (sines then cosines, D/2) or "whisper" (the same, D/2 - 1)."""

    def build(self, slot: Slot) -> SinusoidalPositions:
        least = 4 if self.convention == "whisper" else 2
        if slot.dim % 2 or slot.dim < least:
            raise ConfigError(f"sinusoidal positions need an even dim of {least} or more, got {slot.dim}", slot.where)
        return SinusoidalPositions(self)


class SinusoidalPositions(nn.Module):
    """(B, T, D) -> (B, T, D). Nothing is stored: angles are made in fp32 (fp64 for fp64 x) in every pass."""

    def __init__(self, config: SinusoidalConfig) -> None:
        super().__init__()
        self.config = config

    def forward(self, x: Tensor, context: Context) -> Tensor:
        positions = token_positions(x.shape[1], context, device=x.device)  # (T,) or (B, T)
        dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
        config = self.config
        table = sinusoid(positions, x.shape[2], base=config.base, convention=config.convention, dtype=dtype)
        return (x + table).to(x.dtype)  # (B, T, D)

    def extra_repr(self) -> str:
        return f"base={self.config.base}, convention={self.config.convention!r}"
