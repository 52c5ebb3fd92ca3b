"""A mixer that is causal by nature in a two-sided place: one reads forwards, one backwards, and their mean is taken.

Schuster & Paliwal 1997, doi:10.1109/78.650093; for state spaces and images Zhu et al. 2024, arXiv:2401.09417. The
doubled cost shows in parameters and FLOPs. On a grid the tokens may be read row by row, column by column, or row by row
in alternating directions (snake), so that neighbours in the scan are neighbours in the image.

What layers share (`Slot.shared`, `Context.memo`) each direction and order shares with itself alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from zoo.blocks.api import Context, Slot, Sublayer
from zoo.blocks.checks import check_row
from zoo.registry import ConfigError

if TYPE_CHECKING:
    from zoo.blocks.recurrent_mixer import RecurrentConfig, RecurrentMixer

__all__ = ["TwoWay", "scan_order"]


class TwoWay(Sublayer):
    """(B, T, D) -> (B, T, D): the mean of `forwards` and of `backwards`, which reads every row from its end."""

    def __init__(self, config: RecurrentConfig, slot: Slot) -> None:
        super().__init__()
        if config.scan != "row" and (slot.grid is None or len(slot.grid) != 2):
            raise ConfigError(
                f"'{config.scan}' needs a grid of tokens, and this family has none; choices: row", f"{slot.where}.scan"
            )
        self.scan, self.where = config.scan, slot.where

        def built(direction: str) -> RecurrentMixer:
            shared = slot.shared.setdefault((direction, config.scan), {})
            return config.build_causal(slot.at(causal=True, shared=shared, where=f"{slot.where}.{direction}"))

        self.forwards = built("forwards")
        self.backwards = None if config.tied else built("backwards")

    def forward(self, x: Tensor, context: Context, state: Any = None) -> Tensor:
        check_row(x, context, self.where)
        backwards = self.forwards if self.backwards is None else self.backwards
        order, inverse = None, None
        if self.scan != "row":
            if context.grid is None or len(context.grid) != 2:
                raise ValueError(f"{self.where}: scan '{self.scan}' needs context.grid (height, width)")
            order = scan_order(self.scan, context.grid, context.prefix, x.shape[1], x.device)  # (T,)
            inverse = order.argsort()
        x, context = _ordered(x, context, order, self.scan)
        last_first = torch.arange(x.shape[1] - 1, -1, -1, device=x.device)  # (T,)
        back_x, back_context = _ordered(x, context, last_first, "backwards", sign=-1)
        y = 0.5 * (self.forwards(x, context) + backwards(back_x, back_context).flip(1))  # (B, T, D)
        return y if inverse is None else y[:, inverse]

    def core_flops(self, batch: int, length: int, memory_length: int = 0) -> int:
        return 2 * self.forwards.core_flops(batch, length, memory_length)


def _ordered(x: Tensor, context: Context, order: Tensor | None, name: str, sign: int = 1) -> tuple[Tensor, Context]:
    """x and all of the context that belongs to tokens, in another order (T,); all layers get the same context.

    sign -1 lets given positions grow in the order of reading, as those do that are counted.
    """
    if order is None:
        return x, context
    key = ("order", name, context.token_mask, context.documents, context.positions)
    return x[:, order], context.once(key, lambda: _in_order(context, order, sign))


def _in_order(context: Context, order: Tensor, sign: int) -> Context:
    mask, documents, positions = context.token_mask, context.documents, context.positions
    return replace(
        context,
        token_mask=None if mask is None else mask[:, order],
        documents=None if documents is None else documents[:, order],
        positions=None if positions is None else sign * positions[..., order],
        memo={},
    )


def scan_order(scan: str, grid: tuple[int, ...], prefix: int, length: int, device: torch.device) -> Tensor:
    """(T,) int: which token is read first, second ...; the `prefix` tokens and those after the grid stay in place."""
    height, width = grid
    cells = torch.arange(height * width, device=device).view(height, width)
    if scan == "column":
        cells = cells.T
    elif scan == "snake":
        cells = torch.where(torch.arange(height, device=device)[:, None] % 2 == 1, cells.flip(1), cells)
    rest = torch.arange(prefix + height * width, length, device=device)
    return torch.cat([torch.arange(prefix, device=device), cells.flatten() + prefix, rest])
