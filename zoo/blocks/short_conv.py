"""A short causal depthwise convolution as a layer with its own initial values; the operator is zoo/ops/conv.py."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.blocks.fixed_state import FixedState
from zoo.blocks.recurrent_mixer import Tokens
from zoo.ops.conv import causal_conv

__all__ = ["ShortConv"]


class ShortConv(nn.Module):
    """(B, T, C) -> (B, T, C), then SiLU unless `activation` is False. Its state is a tail of W - 1 inputs."""

    def __init__(
        self, channels: int, width: int, *, bias: bool = False, activation: bool = True, dilation: int = 1
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, width))
        self.bias = nn.Parameter(torch.empty(channels)) if bias else None
        self.activation, self.dilation = activation, dilation
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As torch's Conv1d: uniform within 1 / sqrt(W), the number of a channel's inputs."""
        bound = self.weight.shape[1] ** -0.5
        nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            nn.init.uniform_(self.bias, -bound, bound)

    def empty(self, batch: int, device: torch.device, dtype: torch.dtype) -> Tensor:
        """The tail of `batch` empty rows, (B, (W - 1) dilation, C)."""
        channels, width = self.weight.shape
        return torch.zeros(batch, (width - 1) * self.dilation, channels, device=device, dtype=dtype)

    def forward(self, x: Tensor, tokens: Tokens, state: FixedState | None, name: str = "tail") -> Tensor:
        """x (B, T, C) -> (B, T, C); reads and writes the tail `name` of the state."""
        tail = None if state is None else state[name]
        y, new_tail = causal_conv(
            x,
            self.weight,
            self.bias,
            tail=tail,
            lengths=tokens.lengths,
            starts=tokens.starts,
            dilation=self.dilation,
        )
        if state is not None:
            state[name] = new_tail
        return F.silu(y) if self.activation else y

    def step(self, state: FixedState, name: str = "tail") -> Callable[[Tensor], Tensor]:
        """`forward` for one new token x (N, C) of every row, without gradients: -> (N, C)."""
        wide = torch.promote_types(self.weight.dtype, torch.float32)
        taps, bias, dilation = self.weight.mT.to(wide).contiguous(), self.bias, self.dilation  # (W, C)

        def step(x: Tensor) -> Tensor:
            inputs = torch.cat((state[name].to(x.dtype), x[:, None]), dim=1)  # (N, (W - 1) dilation + 1, C)
            state[name] = inputs[:, 1:]
            y = ((inputs if dilation == 1 else inputs[:, ::dilation]) * taps).sum(1)
            y = (y if bias is None else y.add_(bias)).to(x.dtype)
            return F.silu(y, inplace=True) if self.activation else y

        return step

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, width={self.weight.shape[1]}, dilation={self.dilation}"
