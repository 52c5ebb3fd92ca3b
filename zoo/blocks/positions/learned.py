"""Learned absolute positions: one vector a position, added to the input.

Gehring et al. 2017, arXiv:1705.03122. On a grid (images) the table is resampled when the grid at hand differs from the
one it was built for (Dosovitskiy et al. 2020, arXiv:2010.11929, section 3.2).
"""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from zoo.blocks.api import Context, PositionConfig, Slot
from zoo.blocks.embeddings import resample_grid
from zoo.blocks.positions.indices import token_positions
from zoo.registry import ConfigError, register

__all__ = ["LearnedPositionConfig", "LearnedPositions"]


@register("position", "learned", paper="Gehring et al. 2017, arXiv:1705.03122")
class LearnedPositionConfig(PositionConfig):
    """Learned absolute positions, resampled to other image grids."""

    place: ClassVar[Literal["input", "rotary", "bias", "none"]] = "input"

    antialias: bool = True
    """Low-pass filter when the table is resampled to a smaller grid, as timm and big_vision do."""

    offset: Annotated[int, Field(ge=0)] = 0
    """Rows at the start of the table that no position uses (RoBERTa and BART: 2). Not with a grid."""

    def build(self, slot: Slot) -> LearnedPositions:
        if slot.grid is not None and self.offset:
            raise ConfigError(f"offset {self.offset} has no meaning on a grid; leave it at 0", f"{slot.where}.position")
        if slot.grid is None and slot.max_len < 1:
            raise ConfigError(
                f"position 'learned' needs max_len >= 1 or a grid, got max_len {slot.max_len}; set max_len, "
                "or choose sinusoidal, rope, alibi or t5_bias",
                slot.where,
            )
        return LearnedPositions(self, slot)


class LearnedPositions(nn.Module):
    """(B, T, D) -> (B, T, D): adds row `position` of the table.

    With a grid the table is (prefix + prod(grid), D): the rows of class and register tokens, then the grid's, row by
    row; masks do not matter, since a token's place on the grid is its position. Else it is (offset + max_len, D).
    Explicit `context.positions` index the table (resampled first), so a subset of the patches may be given.
    Rows start normal with the family's `init_std`, and are not decayed.

    Raises ConfigError when a position has no row. Positions that only the device knows are checked on CPU tensors
    outside of compilation; elsewhere the lookup's own device assertion stops them.
    """

    undecayed: tuple[str, ...] = ("weight",)
    is_table = True

    def __init__(self, config: LearnedPositionConfig, slot: Slot) -> None:
        super().__init__()
        self.antialias, self.grid, self.where = config.antialias, slot.grid, slot.where
        self.prefix = slot.prefix if slot.grid is not None else 0
        self.offset = config.offset
        rows = config.offset + slot.max_len if slot.grid is None else self.prefix + math.prod(slot.grid)
        self.init_std = slot.std(slot.dim)
        self.weight = nn.Parameter(torch.empty(rows, slot.dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.init_std)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        length = x.shape[1]
        table = self.weight  # (rows, D)
        if self.grid is not None:
            table = self.resampled(context.grid or self.grid)  # (prefix + h w, D)
            if context.positions is None:
                if length != table.shape[0]:
                    raise ConfigError(
                        f"{length} tokens do not fit the grid {context.grid or self.grid} after {self.prefix} prefix "
                        f"tokens, which makes {table.shape[0]}; give context.grid or context.positions",
                        self.where,
                    )
                return x + table  # (B, T, D)
        elif context.positions is None and context.token_mask is None and context.documents is None:
            self._refuse(length)
            return x + table[self.offset : self.offset + length]  # (B, T, D)
        positions = token_positions(length, context, device=x.device)  # (T,) or (B, T)
        if not torch.compiler.is_compiling() and positions.device.type == "cpu" and positions.numel():
            low, high = torch.aminmax(positions)
            self._refuse(int(high) + 1, int(low), rows=table.shape[0] - self.offset)
        if self.offset:
            positions = positions + self.offset
        return x + F.embedding(positions, table)  # (B, T, D)

    def resampled(self, grid: tuple[int, ...]) -> Tensor:
        """Table (prefix + prod(grid), D) for another grid; the prefix rows as they are, the same grid untouched."""
        if self.grid is None or tuple(grid) == self.grid:
            return self.weight
        rows = resample_grid(self.weight[self.prefix :], self.grid, tuple(grid), antialias=self.antialias)
        return torch.cat((self.weight[: self.prefix], rows))

    def _refuse(self, needed: int, lowest: int = 0, rows: int | None = None) -> None:
        available = self.weight.shape[0] - self.offset if rows is None else rows
        if needed > available or lowest < 0:
            wrong = needed - 1 if needed > available else lowest
            raise ConfigError(
                f"position {wrong} is outside the learned table of {available} rows; "
                f"build with max_len >= {needed}, or choose sinusoidal, rope, alibi or t5_bias",
                self.where,
            )

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, {self.weight.shape[1]}, grid={self.grid}, prefix={self.prefix}"
