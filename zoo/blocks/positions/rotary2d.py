"""Axial rotary positions for images: half of the channel pairs turn with the row, half with the column.

Heo et al. 2024, arXiv:2403.13298, section 3.2 (RoPE-Axial); the rotation is that of rotary.py. Of the R/2 pairs, the
first R/4 turn by row w_i and the others by column w_i, with w_i = base^(-4i / R) and base 100. Class and register
tokens do not turn.
"""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from zoo.blocks.api import Context, PositionConfig, Slot
from zoo.blocks.positions.rotary import Fraction, Layout, rotary_tables, rotary_width, rotate
from zoo.blocks.positions.rotary_scaling import inverse_frequencies
from zoo.registry import ConfigError, register

__all__ = ["Rope2d", "Rope2dConfig"]


@register("position", "rope2d", paper="Heo et al. 2024, arXiv:2403.13298")
class Rope2dConfig(PositionConfig):
    """Rotation of queries and keys by row and column on an image's grid."""

    place: ClassVar[Literal["input", "rotary", "bias", "none"]] = "rotary"
    needs_grid: ClassVar[bool] = True

    base: Annotated[float, Field(gt=1)] = 100.0
    fraction: Fraction = 1.0
    layout: Layout = "half"

    def build(self, slot: Slot) -> Rope2d:
        """The slot's D / H is taken as the head width K; a mixer with another K passes slot.at(dim=H * K)."""
        return Rope2d(self, slot)


class Rope2d(nn.Module):
    """q (B, H, T, K), k (B, G, T, K) -> both rotated, in their own dtypes; angles as precise and shared as Rope's.

    The grid is `context.grid`, or the slot's. Tokens that fill prefix + grid take their places on it, whatever the
    mask; other numbers of tokens (a subset, a causal step) take them from `positions` (T,) or (B, T), which count
    prefix and grid row by row, as explicit `context.positions` always do.
    Raises ConfigError without a 2-D grid, or for more tokens than it holds.
    """

    def __init__(self, config: Rope2dConfig, slot: Slot) -> None:
        super().__init__()
        self.config, self.where, self.grid, self.prefix = config, slot.where, slot.grid, slot.prefix
        rotary_width(slot.dim // slot.heads, config.fraction, 4, slot.where)
        self._key = repr(config)

    def forward(self, q: Tensor, k: Tensor, positions: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        cos, sin = self._tables(q, positions, context)
        return rotate(q, cos, sin, self.config.layout), rotate(k, cos, sin, self.config.layout)

    def turn(self, x: Tensor, positions: Tensor, context: Context) -> Tensor:
        """x (B, H, T, K) rotated, queries and keys side by side in one call: a causal step over the grid."""
        cos, sin = self._tables(x, positions, context)
        return rotate(x, cos, sin, self.config.layout)

    def _tables(self, q: Tensor, positions: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """cos and signed sin (T, R) or (B, 1, T, R), made once a pass."""
        width = rotary_width(q.shape[-1], self.config.fraction, 4, self.where)
        dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
        grid, prefix = (self.grid, self.prefix) if context.grid is None else (context.grid, context.prefix)
        if grid is None or len(grid) != 2:
            raise ConfigError(f"rope2d needs a grid (height, width) of tokens, got {grid}; try rope", self.where)
        length, places = q.shape[-2], prefix + math.prod(grid)
        if length > places:
            raise ConfigError(f"{length} tokens do not fit the grid {grid} after {prefix} prefix tokens", self.where)
        given = positions if context.positions is not None or length != places else None

        def make() -> tuple[Tensor, Tensor]:
            index = torch.arange(length, device=q.device) if given is None else given.to(q.device)
            angles = self.angles(index, grid[1], prefix, width, dtype)  # (T, R/2) or (B, T, R/2)
            angles = angles.unsqueeze(-3) if angles.dim() == 3 else angles  # (B, 1, T, R/2)
            return rotary_tables(angles, self.config.layout)

        key = ("rope2d", self._key, width, given, tuple(grid), prefix, dtype, str(q.device))
        return context.once(key, make)

    def angles(self, index: Tensor, columns: int, prefix: int, width: int, dtype: torch.dtype) -> Tensor:
        """Angles (T, R/2) or (B, T, R/2) of tokens (T,) or (B, T), counted over prefix and grid."""
        frequencies = inverse_frequencies(width // 2, self.config.base, dtype=dtype, device=index.device)  # (R/4,)
        place = index - prefix
        row, column = torch.div(place, columns, rounding_mode="floor"), place % columns
        angles = torch.cat([axis[..., None].to(dtype) * frequencies for axis in (row, column)], dim=-1)
        return torch.where(place[..., None] < 0, 0.0, angles)

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.config) + f", grid={self.grid}"
