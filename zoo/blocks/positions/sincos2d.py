"""Fixed 2-D sine-cosine positions of image patches, as in MAE and DiT or as in big_vision.

He et al. 2021, arXiv:2111.06377; Peebles & Xie 2022, arXiv:2212.09748; Beyer et al. 2022, arXiv:2205.01580. With y the
row and x the column of a patch, both forms are

    sin(x w), cos(x w), sin(y w), cos(y w)        D/4 channels each: the column comes first

(MAE's code calls the first half `emb_h`, but feeds it the grid of w). They differ in the frequencies:

    "mae"         w_i = 10000^(-i / (D/4))        computed in fp64 there
    "big_vision"  w_i = 10000^(-i / (D/4 - 1))
"""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from zoo.blocks.api import Context, PositionConfig, Slot
from zoo.registry import ConfigError, register

__all__ = ["Sincos2dConfig", "Sincos2dPositions", "sincos2d_table"]

Convention = Literal["mae", "big_vision"]


def sincos2d_table(
    grid: tuple[int, ...],
    dim: int,
    *,
    base: float = 10000.0,
    convention: Convention = "mae",
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> Tensor:
    """(h w, D) in `dtype` for a grid (h, w), row by row; D a multiple of 4."""
    height, width = grid
    steps = dim // 4 if convention == "mae" else dim // 4 - 1
    omega = torch.exp(torch.arange(dim // 4, dtype=dtype, device=device) * (-math.log(base) / steps))  # (D/4,)
    x = torch.arange(width, dtype=dtype, device=device)[:, None] * omega  # (w, D/4)
    y = torch.arange(height, dtype=dtype, device=device)[:, None] * omega  # (h, D/4)
    columns = torch.cat((x.sin(), x.cos()), dim=-1).expand(height, -1, -1)  # (h, w, D/2)
    rows = torch.cat((y.sin(), y.cos()), dim=-1)[:, None].expand(-1, width, -1)  # (h, w, D/2)
    return torch.cat((columns, rows), dim=-1).flatten(0, 1)


@register("position", "sincos2d", paper="He et al. 2021, arXiv:2111.06377")
class Sincos2dConfig(PositionConfig):
    """Fixed sines and cosines of a patch's row and column, added to the input, for any grid."""

    place: ClassVar[Literal["input", "rotary", "bias", "none"]] = "input"
    needs_grid: ClassVar[bool] = True

    base: Annotated[float, Field(gt=1)] = 10000.0
    convention: Convention = "mae"
    """Frequencies: "mae" divides the exponent by D/4, "big_vision" by D/4 - 1."""

    def build(self, slot: Slot) -> Sincos2dPositions:
        least = 4 if self.convention == "mae" else 8
        if slot.dim % 4 or slot.dim < least:
            raise ConfigError(f"sincos2d needs a multiple of 4, {least} or more, as dim, got {slot.dim}", slot.where)
        return Sincos2dPositions(self, slot)


class Sincos2dPositions(nn.Module):
    """(B, prefix + h w, D) -> the same; class and register tokens (the prefix) get zero.

    The grid is `context.grid`, or the slot's. Explicit `context.positions` pick rows of prefix + grid, so a subset of
    the patches may be given. Nothing is stored: angles are made in fp32 (fp64 for fp64 x) in every pass.
    Raises ConfigError without a 2-D grid, or when the tokens do not fill it.
    """

    def __init__(self, config: Sincos2dConfig, slot: Slot) -> None:
        super().__init__()
        self.config, self.grid, self.prefix, self.where = config, slot.grid, slot.prefix, slot.where

    def forward(self, x: Tensor, context: Context) -> Tensor:
        grid, prefix = (self.grid, self.prefix) if context.grid is None else (context.grid, context.prefix)
        if grid is None or len(grid) != 2:
            raise ConfigError(f"sincos2d needs a grid (height, width) of tokens, got {grid}", self.where)
        dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
        config = self.config
        table = sincos2d_table(
            grid, x.shape[2], base=config.base, convention=config.convention, dtype=dtype, device=x.device
        )
        table = F.pad(table, (0, 0, prefix, 0))  # (prefix + h w, D)
        if context.positions is not None:
            table = F.embedding(context.positions, table)  # (T, D) or (B, T, D)
        elif x.shape[1] != table.shape[0]:
            raise ConfigError(
                f"{x.shape[1]} tokens do not fit the grid {grid} after {prefix} prefix tokens, which makes "
                f"{table.shape[0]}; give context.grid or context.positions",
                self.where,
            )
        return (x + table).to(x.dtype)  # (B, T, D)

    def extra_repr(self) -> str:
        return f"base={self.config.base}, convention={self.config.convention!r}, grid={self.grid}"
