"""DeltaNet: a matrix memory that overwrites what it holds under a key. Yang et al. 2024, arXiv:2406.06484.

    S_t = (1 - beta_t k_t k_t') S_{t-1} + beta_t k_t v_t'      S (K, V) per head, keys of length 1
    o_t = S_t' q_t / sqrt(K)

    x --q, k, v--> short conv, SiLU --> q and k to length 1
      --beta----> sigmoid, times 2 for negative eigenvalues (Grazzi et al. 2024, arXiv:2411.12537)
    o --RMS norm per head, gate--> out

The rule is Schlag et al.'s (2021, arXiv:2102.11174): a part beta of what a key held is replaced. With a beta of 2 it is
reflected, and one layer computes parity. The delta rules that forget, Gated DeltaNet and KDA, are this module with a
decay, and their files hold no more.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.blocks.api import Slot
from zoo.blocks.fixed_state import FixedState
from zoo.blocks.init import init_linear
from zoo.blocks.matrix_mixer import Inputs, MatrixMixer
from zoo.blocks.output_gate import GateName, OutputNorm
from zoo.blocks.recurrent_mixer import RecurrentConfig, Tokens, heads_of
from zoo.blocks.short_conv import ShortConv
from zoo.ops.features import unit
from zoo.ops.recurrence import at_least_fp32, shared_heads
from zoo.registry import ConfigError, register

__all__ = ["DeltaConfig", "DeltaRule"]


@register("mixer", "delta", paper="Yang et al. 2024, arXiv:2406.06484")
class DeltaConfig(RecurrentConfig):
    """The delta rule: what a key held is replaced, and nothing is forgotten."""

    state_field: ClassVar[str | None] = "head_dim"

    heads: Annotated[int, Field(ge=1)] | None = None
    """Query and key heads G; None: the family's."""
    value_heads: Annotated[int, Field(ge=1)] | None = None
    """Value heads H, a multiple of `heads`: neighbours share a query and a key, and each has its own write strength and
    decay (Qwen3-Next); None: as many."""
    head_dim: Annotated[int, Field(ge=1)] | None = None
    """Key width K; None: D / heads."""
    expand_v: Annotated[float, Field(gt=0)] = 1.0
    """Value width V over K."""
    conv: Annotated[int, Field(ge=0)] = 4
    """Width of the short convolutions over q, k and v; 0: none."""
    gate: GateName = "none"
    """Gate of x on the heads' outputs."""
    norm: bool = True
    """RMS norm of each head's output."""
    norm_eps: Annotated[float, Field(gt=0)] = 1e-5
    negative_eigenvalues: bool = False
    """Write strength up to 2: a state may be reflected, which parity and permutations need."""
    chunk: Annotated[int, Field(ge=1)] = 64
    """Tokens of a chunk in the form made of matrix products."""

    def build_causal(self, slot: Slot) -> DeltaRule:
        return DeltaRule(self, slot)

    def value_dim(self, key_dim: int) -> int:
        """Value width V for this key width."""
        return max(1, int(key_dim * self.expand_v))

    def build_decay(self, slot: Slot, heads: int, key_dim: int) -> nn.Module | None:
        """A module x (B, T, D) -> log decays (B, T, H) or (B, T, H, K), H value heads; None: nothing is forgotten."""
        return None

    def build_gate(self, slot: Slot, heads: int, value_dim: int) -> nn.Module | None:
        """A module x (B, T, D) -> the gate's logits (B, T, H V); None: no gate."""
        return nn.Linear(slot.dim, heads * value_dim, bias=False) if self.gate != "none" else None


class DeltaRule(MatrixMixer):
    """(B, T, D) -> (B, T, D), with the decay and the gate that the config builds."""

    def __init__(self, config: DeltaConfig, slot: Slot) -> None:
        super().__init__()
        self.config, self.where = config, slot.where
        self.key_heads, self.key_dim = heads_of(slot, config.heads, config.head_dim)
        self.heads = config.value_heads or self.key_heads
        if self.heads % self.key_heads:
            raise ConfigError(
                f"value_heads {self.heads} is not a multiple of heads {self.key_heads}; change one", slot.where
            )
        self.value_dim = config.value_dim(self.key_dim)
        self.sizes = (self.heads, self.key_dim, self.value_dim)
        keys, values = self.key_heads * self.key_dim, self.heads * self.value_dim
        self.widths = (keys, keys, values)
        self.qkv = nn.Linear(slot.dim, sum(self.widths), bias=False)
        if config.conv:
            self.conv = ShortConv(sum(self.widths), config.conv)
        self.beta = nn.Linear(slot.dim, self.heads, bias=False)
        self.decay = config.build_decay(slot, self.heads, self.key_dim)
        self.gate = config.build_gate(slot, self.heads, self.value_dim)
        self.norm = OutputNorm(self.value_dim, gate=config.gate, norm=config.norm, eps=config.norm_eps)
        self.out = nn.Linear(values, slot.dim, bias=False)
        self._std, self._out_std = slot.std(slot.dim), slot.output_std(values)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for linear in (self.qkv, self.beta, self.gate):
            if isinstance(linear, nn.Linear):
                init_linear(linear, self._std)
        init_linear(self.out, self._out_std)

    def inputs(self, x: Tensor, tokens: Tokens, state: FixedState | None) -> Inputs:
        qkv = self.qkv(x)  # (B, T, 2 G K + H V)
        qkv = F.silu(qkv) if self.conv is None else self.conv(qkv, tokens, state)
        qk, v = qkv.split((2 * self.widths[0], self.widths[2]), dim=-1)
        q, k = unit(qk.unflatten(-1, (2, self.key_heads, self.key_dim))).unbind(-3)  # 2 (B, T, G, K)
        q, k = shared_heads(q * self.key_dim**-0.5, self.heads), shared_heads(k, self.heads)  # (B, T, H, K)
        v = v.unflatten(-1, (self.heads, self.value_dim))  # (B, T, H, V)
        beta = torch.sigmoid(at_least_fp32(self.beta(x)))[..., None]  # (B, T, H, 1)
        write = (2.0 * beta if self.config.negative_eigenvalues else beta) * k  # (B, T, H, K)
        decay = None if self.decay is None else self.decay(x)  # (B, T, H) or (B, T, H, K)
        return Inputs(q, write, v, decay, a=-write, b=k, rest=(x,))

    def core_flops(self, batch: int, length: int, memory_length: int = 0) -> int:
        """The recurrence as written: decay, read, two writes and the output, 2 a multiply-add; and the convolution."""
        cells = self.heads * self.key_dim * self.value_dim
        taps = sum(self.widths) * self.config.conv
        return batch * length * (8 * cells + (0 if self.decay is None else cells) + 2 * taps)
