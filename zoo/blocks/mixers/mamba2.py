"""Mamba-2: a matrix per head that forgets at a rate of its own and the token's. Dao & Gu 2024, arXiv:2405.21060.

    S_t = exp(d_t A) S_{t-1} + B_t (d_t x_t)'     S (N, P) per head, A < 0 and d_t one number per head
    y_t = S_t' C_t + D x_t                        B_t and C_t (N,) shared by the heads of a group

    x (B, T, D) --in_proj--> z, x, B, C, d;  x, B, C --short conv, SiLU-->;  d = softplus(d + dt_bias)
    y --norm(y SiLU(z)), one root mean square per group--> out

Linear attention with queries C, keys B, values d x and a decay per head: zoo/ops/recurrence.py computes it. Initial
values are the authors' (mamba_ssm, mamba2.py): -A uniform in 1 ... 16, D = 1, steps between 0.001 and 0.1.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.blocks.api import Slot
from zoo.blocks.decay import init_log_uniform, init_step_bias, log_decay, step_size
from zoo.blocks.fixed_state import FixedState
from zoo.blocks.init import init_linear
from zoo.blocks.matrix_mixer import Inputs, MatrixMixer
from zoo.blocks.recurrent_mixer import RecurrentConfig, Tokens
from zoo.blocks.short_conv import ShortConv
from zoo.ops.gated import gated
from zoo.ops.rms_norm import rms_norm
from zoo.registry import ConfigError, register

__all__ = ["GroupRMSNorm", "Mamba2", "Mamba2Config"]

HEAD_DIM = 64


@register("mixer", "mamba2", paper="Dao & Gu 2024, arXiv:2405.21060")
class Mamba2Config(RecurrentConfig):
    """State space duality: a selective state space with one decay per head, and linear attention with a decay."""

    state_field: ClassVar[str | None] = "state_size"

    expand: Annotated[float, Field(gt=0)] = 2.0
    """Inner width C over D."""
    head_dim: Annotated[int, Field(ge=1)] | None = None
    """Width P of a head, a divisor of C; None: 64, or C where that is less."""
    state_size: Annotated[int, Field(ge=1)] = 128
    """States N of each of a head's channels."""
    groups: Annotated[int, Field(ge=1)] = 1
    """Groups G of heads that share B and C: 1 multi-value attention, as many as heads multi-head attention."""
    conv: Annotated[int, Field(ge=0)] = 4
    """Width of the short convolution over x, B and C; 0: none."""
    conv_bias: bool = True
    bias: bool = False
    """Biases of `in_proj` and `out`."""
    norm: bool = True
    """RMS norm of each group's outputs, beside the gate."""
    norm_before_gate: bool = False
    """norm(y) SiLU(z) in the place of norm(y SiLU(z))."""
    norm_eps: Annotated[float, Field(gt=0)] = 1e-5
    chunk: Annotated[int, Field(ge=1)] = 64
    """Tokens of a chunk in the form made of matrix products."""

    def build_causal(self, slot: Slot) -> Mamba2:
        return Mamba2(self, slot)


class GroupRMSNorm(nn.Module):
    """(..., C) -> (..., C): a root mean square of 1 over each of G groups of channels, then a learned scale."""

    def __init__(self, width: int, groups: int, eps: float) -> None:
        super().__init__()
        self.groups, self.eps = groups, eps
        self.weight = nn.Parameter(torch.empty(width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)

    def forward(self, y: Tensor) -> Tensor:
        if self.groups == 1:
            return rms_norm(y, self.weight, self.eps)
        y = y.unflatten(-1, (self.groups, -1))  # (..., G, C / G)
        return rms_norm(y, y.new_ones(y.shape[-1]), self.eps).flatten(-2) * self.weight

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, groups={self.groups}, eps={self.eps}"


class Mamba2(MatrixMixer):
    """(B, T, D) -> (B, T, D). See Mamba2Config for the choices and the module docstring for the formula."""

    undecayed = ("A_log", "D", "dt_bias")

    def __init__(self, config: Mamba2Config, slot: Slot) -> None:
        super().__init__()
        self.config, self.where = config, slot.where
        width = max(1, int(config.expand * slot.dim))
        self.head_dim = config.head_dim or min(HEAD_DIM, width)
        if width % self.head_dim:
            raise ConfigError(
                f"expand * dim is {width}, no multiple of head_dim {self.head_dim}; choices of head_dim: "
                f"{', '.join(str(p) for p in range(1, width + 1) if width % p == 0)}",
                slot.where,
            )
        self.heads = width // self.head_dim
        if self.heads % config.groups:
            raise ConfigError(
                f"heads {self.heads} (expand * dim / head_dim) is not a multiple of groups {config.groups}; "
                f"choices: {', '.join(str(g) for g in range(1, self.heads + 1) if self.heads % g == 0)}",
                slot.where,
            )
        self.sizes = (self.heads, config.state_size, self.head_dim)
        shared = config.groups * config.state_size
        self.widths = (width, shared, shared)
        self.in_proj = nn.Linear(slot.dim, width + sum(self.widths) + self.heads, bias=config.bias)
        if config.conv:
            self.conv = ShortConv(sum(self.widths), config.conv, bias=config.conv_bias)
        self.dt_bias = nn.Parameter(torch.empty(self.heads))
        self.A_log = nn.Parameter(torch.empty(self.heads))
        self.D = nn.Parameter(torch.empty(self.heads))
        self.norm = GroupRMSNorm(width, config.groups, config.norm_eps) if config.norm else None
        self.out = nn.Linear(width, slot.dim, bias=config.bias)
        self._std, self._out_std = slot.std(slot.dim), slot.output_std(width)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        init_linear(self.in_proj, self._std)
        init_linear(self.out, self._out_std)
        init_step_bias(self.dt_bias)
        init_log_uniform(self.A_log, 1.0, 16.0)
        nn.init.ones_(self.D)

    def inputs(self, x: Tensor, tokens: Tokens, state: FixedState | None) -> Inputs:
        config = self.config
        z, xbc, step = self.in_proj(x).split((self.widths[0], sum(self.widths), self.heads), dim=-1)
        xbc = F.silu(xbc) if self.conv is None else self.conv(xbc, tokens, state)  # (B, T, C + 2 G N)
        x, b, c = xbc.split(self.widths, dim=-1)
        x = x.unflatten(-1, (self.heads, self.head_dim))  # (B, T, H, P)
        b, c = (part.unflatten(-1, (config.groups, config.state_size)) for part in (b, c))  # (B, T, G, N)
        step = step_size(step, self.dt_bias)  # (B, T, H)
        return Inputs(c, b, step[..., None] * x, log_decay(self.A_log, step), rest=(x, z))

    def outputs(self, y: Tensor, made: Inputs) -> Tensor:
        x, z = made.rest  # (B, T, H, P), (B, T, C)
        y = (y + self.D[:, None] * x).flatten(-2)  # (B, T, C)
        return self.out(self._gated(y, z.to(y.dtype)).to(z.dtype))  # (B, T, D)

    def _gated(self, y: Tensor, z: Tensor) -> Tensor:
        """y times SiLU(z), and the norm."""
        if self.norm is None:
            return gated("silu", z, y)
        return gated("silu", z, self.norm(y)) if self.config.norm_before_gate else self.norm(gated("silu", z, y))

    def core_flops(self, batch: int, length: int, memory_length: int = 0) -> int:
        """The recurrence as written: decay, write and read, 5 a state; and the convolution."""
        cells = self.widths[0] * self.config.state_size
        return batch * length * (5 * cells + 2 * sum(self.widths) * self.config.conv)
