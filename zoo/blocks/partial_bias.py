"""A linear map with a bias on some of its outputs: keys need none beside queries and values in one fused projection."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["PartialBiasLinear"]


class PartialBiasLinear(nn.Linear):
    """(..., I) -> (..., O); the `count` outputs from `start` on have no bias, so `bias` is (O - count,)."""

    def __init__(self, inputs: int, outputs: int, *, start: int, count: int) -> None:
        super().__init__(inputs, outputs, bias=False)
        self.start, self.count = start, count
        self.bias = nn.Parameter(torch.zeros(outputs - count))

    def whole_bias(self) -> Tensor:
        """(O,), zeros where there is none."""
        bias = self.bias
        return torch.cat((bias[: self.start], bias.new_zeros(self.count), bias[self.start :]))

    def plain(self) -> nn.Linear:
        """The same map as an nn.Linear that shares the weight, for passes without gradients."""
        linear = nn.Linear(self.in_features, self.out_features, device="meta")
        linear.weight, linear.bias = self.weight, nn.Parameter(self.whole_bias().detach())
        return linear

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight, self.whole_bias())  # (..., O)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, without bias: {self.start} to {self.start + self.count - 1}"
