"""A linear map through few numbers, what KDA's and RWKV-7's gates are made of (Hu et al. 2021, arXiv:2106.09685)."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from zoo.blocks.api import Slot
from zoo.blocks.init import init_linear

__all__ = ["LowRank"]


class LowRank(nn.Module):
    """(..., D) -> (..., E): up(activation(down(x))), with R numbers between the two.

    `up` starts at `gain` times the slot's standard deviation; the bias, where there is one, is `up`'s.
    """

    def __init__(
        self,
        slot: Slot,
        rank: int,
        width: int,
        *,
        activation: Callable[[Tensor], Tensor] | None = None,
        bias: bool = False,
        gain: float = 1.0,
    ) -> None:
        super().__init__()
        self.down = nn.Linear(slot.dim, rank, bias=False)
        self.up = nn.Linear(rank, width, bias=bias)
        self.activation = activation
        self._stds = (slot.std(slot.dim), gain * slot.std(rank))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for linear, std in zip((self.down, self.up), self._stds, strict=True):
            init_linear(linear, std)

    def forward(self, x: Tensor) -> Tensor:
        low = self.down(x)  # (..., R)
        return self.up(low if self.activation is None else self.activation(low))  # (..., E)
