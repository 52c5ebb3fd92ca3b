"""Gated DeltaNet: a matrix that forgets, and that overwrites what it holds under a key. Yang et al. 2024, arXiv:2412.06464.

    S_t = exp(g_t) (1 - beta_t k_t k_t') S_{t-1} + beta_t k_t v_t'      S (K, V) per head
    o_t = S_t' q_t / sqrt(K)                                            decay first, then the delta rule, then the read

    x --q, k, v--> short conv, SiLU --> q, k to length 1
      --alpha---> g = -exp(A) softplus(alpha + dt)     one per head, A and dt as in Mamba
      --beta----> sigmoid, times 2 for negative eigenvalues (Grazzi et al. 2024, arXiv:2411.12537)
    o --RMS norm per head, times SiLU(gate)--> out
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.blocks.api import Slot
from zoo.blocks.decay import init_log_uniform, init_step_bias, log_decay, step_size
from zoo.blocks.fixed_state import FixedState
from zoo.blocks.init import init_linear
from zoo.blocks.output_gate import GateName, OutputNorm
from zoo.blocks.recurrent_mixer import RecurrentConfig, RecurrentMixer, Tokens, heads_of
from zoo.blocks.short_conv import ShortConv
from zoo.ops.features import unit
from zoo.ops.recurrence import at_least_fp32, recurrence, shared_heads
from zoo.registry import ConfigError, register

__all__ = ["GatedDelta", "GatedDeltaConfig"]


@register("mixer", "gated_delta", paper="Yang et al. 2024, arXiv:2412.06464")
class GatedDeltaConfig(RecurrentConfig):
    """The delta rule with a forgetting factor per head and token."""

    heads: Annotated[int, Field(ge=1)] | None = None
    """Query and key heads; None: the family's."""
    value_heads: Annotated[int, Field(ge=1)] | None = None
    """Value heads H, a multiple of `heads`: neighbours share a query and a key (Qwen3-Next); None: as many."""
    head_dim: Annotated[int, Field(ge=1)] | None = None
    """Key width K; None: D / heads."""
    expand_v: Annotated[float, Field(gt=0)] = 2.0
    """Value width V over K."""
    conv: Annotated[int, Field(ge=0)] = 4
    """Width of the short convolutions over q, k and v; 0: none."""
    gate: GateName = "silu"
    """Gate of x on the heads' outputs."""
    norm: bool = True
    """RMS norm of each head's output."""
    norm_eps: Annotated[float, Field(gt=0)] = 1e-5
    negative_eigenvalues: bool = False
    """Write strength up to 2: a state may be reflected, which parity and permutations need."""
    decay: bool = True
    """Forgetting factor; without it this is the delta rule (see `delta`)."""
    chunk: Annotated[int, Field(ge=1)] = 64
    """Tokens of a chunk in the form made of matrix products."""

    def build_causal(self, slot: Slot) -> GatedDelta:
        return GatedDelta(self, slot)


class GatedDelta(RecurrentMixer):
    """(B, T, D) -> (B, T, D). See GatedDeltaConfig for the choices and the module docstring for the formula."""

    undecayed = ("A_log", "dt_bias")

    def __init__(self, config: GatedDeltaConfig, slot: Slot) -> None:
        super().__init__()
        self.config, self.where = config, slot.where
        self.heads, self.key_dim = heads_of(slot, config.heads, config.head_dim)
        self.value_heads = config.value_heads or self.heads
        if self.value_heads % self.heads:
            raise ConfigError(
                f"value_heads {self.value_heads} is not a multiple of heads {self.heads}; change one", slot.where
            )
        self.value_dim = max(1, int(self.key_dim * config.expand_v))
        keys, values = self.heads * self.key_dim, self.value_heads * self.value_dim
        self.widths = (keys, keys, values)
        self.qkv = nn.Linear(slot.dim, sum(self.widths), bias=False)
        self.conv = ShortConv(sum(self.widths), config.conv) if config.conv else None
        self.beta = nn.Linear(slot.dim, self.value_heads, bias=False)
        self.alpha = nn.Linear(slot.dim, self.value_heads, bias=False) if config.decay else None
        if config.decay:
            self.A_log = nn.Parameter(torch.empty(self.value_heads))
            self.dt_bias = nn.Parameter(torch.empty(self.value_heads))
        self.gate = nn.Linear(slot.dim, values, bias=False) if config.gate != "none" else None
        self.norm = OutputNorm(self.value_dim, gate=config.gate, norm=config.norm, eps=config.norm_eps)
        self.out = nn.Linear(values, slot.dim, bias=False)
        self._std, self._out_std = slot.std(slot.dim), slot.output_std(values)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for linear in (self.qkv, self.beta, self.alpha, self.gate):
            if linear is not None:
                init_linear(linear, self._std)
        init_linear(self.out, self._out_std)
        if self.alpha is not None:
            init_log_uniform(self.A_log, 0.0, 16.0)
            init_step_bias(self.dt_bias)

    def mix(self, x: Tensor, tokens: Tokens, state: FixedState | None) -> Tensor:
        qkv = self.qkv(x)  # (B, T, 2 G K + H V)
        qkv = F.silu(qkv) if self.conv is None else self.conv(qkv, tokens, state)
        q, k, v = qkv.split(self.widths, dim=-1)
        q = unit(q.unflatten(-1, (self.heads, self.key_dim))) * self.key_dim**-0.5  # (B, T, G, K)
        k = unit(k.unflatten(-1, (self.heads, self.key_dim)))
        q, k = shared_heads(q, self.value_heads), shared_heads(k, self.value_heads)  # (B, T, H, K)
        v = v.unflatten(-1, (self.value_heads, self.value_dim))  # (B, T, H, V)
        beta = torch.sigmoid(at_least_fp32(self.beta(x)))[..., None]  # (B, T, H, 1)
        write = (2.0 * beta if self.config.negative_eigenvalues else beta) * k  # (B, T, H, K)
        decay = None
        if self.alpha is not None:
            decay = log_decay(self.A_log, step_size(self.alpha(x), self.dt_bias))  # (B, T, H)
        y, matrix = recurrence(
            q,
            write,
            v,
            decay,
            -write,
            k,
            state=None if state is None else state["matrix"],
            mask=tokens.mask,
            starts=tokens.starts,
            chunk=self.config.chunk,
        )  # (B, T, H, V), (B, H, K, V)
        if state is not None:
            state["matrix"] = matrix
        return self.out(self.norm(y, None if self.gate is None else self.gate(x)))  # (B, T, D)

    def empty(self, batch: int, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        shape = (batch, self.value_heads, self.key_dim, self.value_dim)
        matrix = torch.zeros(shape, device=device, dtype=torch.promote_types(dtype, torch.float32))
        tail = {} if self.conv is None else {"tail": self.conv.empty(batch, device, dtype)}
        return {"matrix": matrix, **tail}

    def core_flops(self, batch: int, length: int, memory_length: int = 0) -> int:
        """The recurrence as written: decay, read, two writes and the output, 2 a multiply-add; and the convolution."""
        cells = self.value_heads * self.key_dim * self.value_dim
        taps = sum(self.widths) * self.config.conv
        return batch * length * (8 * cells + (cells if self.config.decay else 0) + 2 * taps)
