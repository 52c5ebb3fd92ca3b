"""Mamba: a linear state space whose step, input and output depend on the token. Gu & Dao 2023, arXiv:2312.00752.

    h_t = exp(d_t A) h_{t-1} + d_t B_t x_t     h (N,) for each of C = expand D channels, A < 0 for each of a channel's N
    y_t = C_t' h_t + D x_t                     d_t one per channel, B_t and C_t (N,) for all channels

    x (B, T, D) --in_proj--> x, z (B, T, C);  x --short conv, SiLU--> x
    x --x_proj--> step (rank R), B, C;  d = softplus(dt_proj(step) + dt_bias)
    y --times SiLU(z)--> out

Initial values are the authors' (mamba_ssm, mamba_simple.py): A = -1 ... -N in every channel, D = 1, steps between 0.001
and 0.1, dt_proj uniform within 1 / sqrt(R), so that steps begin near their bias whatever the width.
"""

from __future__ import annotations

import math
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.blocks.api import Context, NormConfig, Slot, Step
from zoo.blocks.decay import init_step_bias, step_size
from zoo.blocks.fixed_state import FixedState
from zoo.blocks.init import init_linear
from zoo.blocks.recurrent_mixer import RecurrentConfig, RecurrentMixer, Tokens
from zoo.blocks.short_conv import ShortConv
from zoo.ops.few_rows import few_rows
from zoo.ops.gated import gated
from zoo.ops.selective_scan import selective_scan, selective_scan_step
from zoo.registry import ConfigError, part, register

__all__ = ["Mamba", "MambaConfig"]


@register("mixer", "mamba", paper="Gu & Dao 2023, arXiv:2312.00752")
class MambaConfig(RecurrentConfig):
    """A selective state space: what is kept and what is read depends on the token."""

    state_field: ClassVar[str | None] = "state_size"

    expand: Annotated[float, Field(gt=0)] = 2.0
    """Channels C over D."""
    state_size: Annotated[int, Field(ge=1)] = 16
    """States N of each channel."""
    conv: Annotated[int, Field(ge=0)] = 4
    """Width of the short convolution; 0: none."""
    conv_bias: bool = True
    dt_rank: Annotated[int, Field(ge=1)] | None = None
    """Rank R of the map from x to the steps; None: D / 16, rounded up."""
    bias: bool = False
    """Biases of `in_proj` and `out`."""
    selective: bool = True
    """False: d, B and C are learned constants, so the scan is a time-invariant filter. All channels share B and C, as
    they do where they select; in S4D (Gu et al. 2022, arXiv:2206.11893) each has its own."""
    inner_norm: Annotated[NormConfig | None, part("norm")] = None
    """Norms over the step's R channels, B and C before they are used (Jamba; Lieber et al. 2024, arXiv:2403.19887)."""

    def build_causal(self, slot: Slot) -> Mamba:
        return Mamba(self, slot)


class Mamba(RecurrentMixer):
    """(B, T, D) -> (B, T, D). See MambaConfig for the choices and the module docstring for the formula."""

    undecayed = ("A_log", "D", "dt_bias", "B", "C")

    def __init__(self, config: MambaConfig, slot: Slot) -> None:
        super().__init__()
        self.config, self.where = config, slot.where
        channels, states = max(1, int(config.expand * slot.dim)), config.state_size
        rank = config.dt_rank or math.ceil(slot.dim / 16)
        self.channels, self.widths = channels, (rank, states, states)
        self.in_proj = nn.Linear(slot.dim, 2 * channels, bias=config.bias)
        self.conv = ShortConv(channels, config.conv, bias=config.conv_bias) if config.conv else None
        if config.selective:
            self.x_proj = nn.Linear(channels, sum(self.widths), bias=False)
            self.dt_proj = nn.Linear(rank, channels, bias=False)
        else:
            self.B = nn.Parameter(torch.empty(states))
            self.C = nn.Parameter(torch.empty(states))
        if config.inner_norm is not None:
            if not config.selective:
                raise ConfigError("norms what x selects: leave it unset, or set selective", f"{slot.where}.inner_norm")
            self.inner_norms = nn.ModuleList(config.inner_norm.build(width) for width in self.widths)
        self.dt_bias = nn.Parameter(torch.empty(channels))
        self.A_log = nn.Parameter(torch.empty(channels, states))
        self.D = nn.Parameter(torch.empty(channels))
        self.out = nn.Linear(channels, slot.dim, bias=config.bias)
        self._std, self._inner_std, self._out_std = slot.std(slot.dim), slot.std(channels), slot.output_std(channels)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        init_linear(self.in_proj, self._std)
        init_linear(self.out, self._out_std)
        if self.config.selective:
            init_linear(self.x_proj, self._inner_std)
            bound = self.widths[0] ** -0.5
            nn.init.uniform_(self.dt_proj.weight, -bound, bound)
        else:
            nn.init.ones_(self.B)
            nn.init.normal_(self.C)
        init_step_bias(self.dt_bias)
        nn.init.ones_(self.D)
        with torch.no_grad():
            self.A_log.copy_(torch.arange(1.0, self.config.state_size + 1).log())

    def mix(self, x: Tensor, tokens: Tokens, state: FixedState | None) -> Tensor:
        x, z = self.in_proj(x).chunk(2, dim=-1)  # (B, T, C) each
        x = F.silu(x) if self.conv is None else self.conv(x, tokens, state)
        step, b, c = self._selected(x)  # (B, T, C), (B, T, N), (B, T, N)
        y, hidden = selective_scan(
            x,
            step,
            -self.A_log.to(step.dtype).exp(),
            b,
            c,
            self.D,
            state=None if state is None else state["hidden"],
            mask=tokens.mask,
            starts=tokens.starts,
        )  # (B, T, C), (B, C, N)
        if state is not None:
            state["hidden"] = hidden
        return self.out(gated("silu", z, y))  # (B, T, D)

    def _selected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Steps (B, T, C) in fp32 or better, B (B, T, N) and C (B, T, N) of the tokens x (B, T, C)."""
        if not self.config.selective:
            shape = (*x.shape[:2], -1)
            return step_size(x.new_zeros(()), self.dt_bias).expand(shape), self.B.expand(shape), self.C.expand(shape)
        step, b, c = self.x_proj(x).split(self.widths, dim=-1)  # (B, T, R), (B, T, N), (B, T, N)
        if self.config.inner_norm is not None:
            step, b, c = (norm(part) for norm, part in zip(self.inner_norms, (step, b, c), strict=True))
        return step_size(self.dt_proj(step), self.dt_bias), b, c

    def step(self, state: FixedState) -> Step | None:
        kept, plain = state.tensors["hidden"], self.config.selective and self.config.inner_norm is None
        wide = kept.dtype == self.A_log.dtype and not torch.is_autocast_enabled(kept.device.type)
        if not plain or not wide or self.conv is None or state.document is not None:
            return super().step(state)
        conv = self.conv.step(state)
        in_proj, x_proj, dt_proj, out = map(few_rows, (self.in_proj, self.x_proj, self.dt_proj, self.out))
        A = -self.A_log.mT.exp().mT  # (C, N), channels innermost as the scan leaves its state
        dt_bias, d = self.dt_bias, self.D

        def step(x: Tensor, _: Context) -> Tensor:
            x, z = in_proj(x).chunk(2, dim=1)  # (N, C) each
            x = conv(x)
            low, b, c = x_proj(x).split(self.widths, dim=1)  # (N, R), (N, N), (N, N)
            delta = F.softplus(dt_proj(low) + dt_bias)  # (N, C)
            y, state["hidden"] = selective_scan_step(x, delta, A, b, c, d, state["hidden"])
            state.advance_rows(1, None)
            return out(gated("silu", z, y))  # (N, D)

        return step

    def empty(self, batch: int, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        wide = torch.promote_types(dtype, torch.float32)
        hidden = torch.zeros(batch, self.channels, self.config.state_size, device=device, dtype=wide)
        tail = {} if self.conv is None else {"tail": self.conv.empty(batch, device, dtype)}
        return {"hidden": hidden, **tail}

    def core_flops(self, batch: int, length: int, memory_length: int = 0) -> int:
        """The scan as written: d A, decay, d B, write (2) and read (2), 7 a state; the skip; and the convolution."""
        return batch * length * self.channels * (7 * self.config.state_size + 2 + 2 * self.config.conv)
