"""Gated linear attention: each key channel forgets at a rate of its own. Yang et al. 2023, arXiv:2312.06635.

    S_t = diag(alpha_t) S_{t-1} + k_t v_t'      alpha_t = sigmoid(W2 W1 x_t + b)^(1/16), W1 (16, D): a low-rank gate
    o_t = S_t' q_t / sqrt(K)

    x --q, k, v--> (short conv, SiLU) --> o --RMS norm per head, times SiLU(gate)--> out        H K = D / 2, H V = D

The paper has a layer norm on each head and a bias in its output gate; its authors' code, flash-linear-attention, has an
RMS norm and no bias, and so has this.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.blocks.api import Slot
from zoo.blocks.fixed_state import FixedState
from zoo.blocks.init import init_linear
from zoo.blocks.low_rank import LowRank
from zoo.blocks.matrix_mixer import Inputs, MatrixMixer
from zoo.blocks.output_gate import GateName, OutputNorm
from zoo.blocks.recurrent_mixer import RecurrentConfig, Tokens, heads_of
from zoo.blocks.short_conv import ShortConv
from zoo.ops.recurrence import at_least_fp32
from zoo.registry import register

__all__ = ["GLA", "GLAConfig"]


@register("mixer", "gla", paper="Yang et al. 2023, arXiv:2312.06635")
class GLAConfig(RecurrentConfig):
    """Linear attention with a forgetting factor per key channel and token."""

    state_field: ClassVar[str | None] = "expand_k"

    heads: Annotated[int, Field(ge=1)] | None = None
    """Heads H; None: the family's."""
    expand_k: Annotated[float, Field(gt=0)] = 0.5
    """Key width of all heads over D."""
    expand_v: Annotated[float, Field(gt=0)] = 1.0
    """Value width of all heads over D."""
    gate_rank: Annotated[int, Field(ge=1)] = 16
    """Width between the two matrices that make the forgetting factors."""
    gate_power: Annotated[float, Field(gt=0)] = 16.0
    """The factors are sigmoids to the power of 1 over this, so that they start near 1."""
    conv: Annotated[int, Field(ge=0)] = 0
    """Width of short convolutions over q, k and v; 0: none."""
    gate: GateName = "silu"
    """Gate of x on the heads' outputs."""
    norm: bool = True
    """RMS norm of each head's output."""
    norm_eps: Annotated[float, Field(gt=0)] = 1e-5
    chunk: Annotated[int, Field(ge=1)] = 64
    """Tokens of a chunk in the form made of matrix products."""

    def build_causal(self, slot: Slot) -> GLA:
        return GLA(self, slot)


class GLA(MatrixMixer):
    """(B, T, D) -> (B, T, D). See GLAConfig for the choices and the module docstring for the formula."""

    def __init__(self, config: GLAConfig, slot: Slot) -> None:
        super().__init__()
        self.config, self.where = config, slot.where
        self.heads, head_dim = heads_of(slot, config.heads, None)
        self.key_dim = max(1, int(head_dim * config.expand_k))
        self.value_dim = max(1, int(head_dim * config.expand_v))
        self.sizes = (self.heads, self.key_dim, self.value_dim)
        keys, values = self.heads * self.key_dim, self.heads * self.value_dim
        self.widths = (keys, keys, values)
        self.qkv = nn.Linear(slot.dim, sum(self.widths), bias=False)
        if config.conv:
            self.conv = ShortConv(sum(self.widths), config.conv)
        self.decay = LowRank(slot, config.gate_rank, keys, bias=True)
        self.gate = nn.Linear(slot.dim, values, bias=False) if config.gate != "none" else None
        self.norm = OutputNorm(self.value_dim, gate=config.gate, norm=config.norm, eps=config.norm_eps)
        self.out = nn.Linear(values, slot.dim, bias=False)
        self._std, self._out_std = slot.std(slot.dim), slot.output_std(values)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        init_linear(self.qkv, self._std)
        init_linear(self.out, self._out_std)
        if self.gate is not None:
            init_linear(self.gate, self._std)

    def inputs(self, x: Tensor, tokens: Tokens, state: FixedState | None) -> Inputs:
        qkv = self.qkv(x)  # (B, T, 2 H K + H V)
        qkv = qkv if self.conv is None else self.conv(qkv, tokens, state)
        q, k, v = qkv.split(self.widths, dim=-1)
        logits = at_least_fp32(self.decay(x))  # (B, T, H K)
        q, k, logits = (z.unflatten(-1, (self.heads, self.key_dim)) for z in (q, k, logits))  # (B, T, H, K)
        v = v.unflatten(-1, (self.heads, self.value_dim))  # (B, T, H, V)
        decay = F.logsigmoid(logits) / self.config.gate_power  # (B, T, H, K)
        return Inputs(q * self.key_dim**-0.5, k, v, decay, rest=(x,))

    def core_flops(self, batch: int, length: int, memory_length: int = 0) -> int:
        """The recurrence as written: decay, write and read, 2 a multiply-add; and the convolution."""
        cells = self.heads * self.key_dim * self.value_dim
        return batch * length * (5 * cells + 2 * sum(self.widths) * self.config.conv)
