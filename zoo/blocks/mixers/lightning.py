"""Lightning attention: linear attention with one fixed decay per head, SiLU on q, k and v, a norm over all heads.

    S_t = exp(-m_h) S_{t-1} + k_t v_t'        o_t = S_t' q_t

    x --q, k, v, SiLU--> o --RMS norm over H V, times sigmoid(gate)--> out

Qin et al. 2024 (Lightning Attention-2), arXiv:2401.04658; MiniMax 2025 (MiniMax-01), arXiv:2501.08313, which puts
softmax attention after every seven such layers (`hybrid`). The slopes m differ from code to code; a(h) are ALiBi's,
2^(-8h/H) with h = 1 .. H for H a power of two (zoo/blocks/positions/alibi.py), l = 0 .. L-1 is the layer:

    alibi         a(h)                                    the same in every layer
    minimax       a(h) (1 - l / (L-1) + 1e-5)             MiniMax's own code
    transformers  2^(-8h/H) (1 - l / (L-1 + 1e-5) + 1e-5) the library's port of it: any H, and another last layer
    bailing       a(h) (1 - (l-1) / (L-1) + 1e-5)         Ling and Ring
    fla           8 h / H (1 - l / L), h = 0 .. H-1       flash-linear-attention: head 0 never forgets
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.blocks.api import Slot
from zoo.blocks.fixed_state import FixedState
from zoo.blocks.init import init_linear
from zoo.blocks.matrix_mixer import Inputs, MatrixMixer
from zoo.blocks.output_gate import GateName, OutputNorm
from zoo.blocks.positions.alibi import alibi_slopes
from zoo.blocks.recurrent_mixer import RecurrentConfig, Tokens, heads_of
from zoo.registry import register

__all__ = ["Lightning", "LightningConfig", "lightning_slopes"]

SlopeName = Literal["minimax", "alibi", "transformers", "bailing", "fla"]


@register("mixer", "lightning", paper="Qin et al. 2024, arXiv:2401.04658")
class LightningConfig(RecurrentConfig):
    """Linear attention with fixed decays, as in MiniMax-01."""

    state_field: ClassVar[str | None] = "head_dim"

    heads: Annotated[int, Field(ge=1)] | None = None
    """Heads H; None: the family's."""
    head_dim: Annotated[int, Field(ge=1)] | None = None
    """Key and value width K; None: D / H."""
    slopes: SlopeName = "minimax"
    """Which code's decays; see the module docstring."""
    gate: GateName = "sigmoid"
    """Gate of x on the outputs."""
    norm: Literal["all", "head", "none"] = "all"
    """RMS norm over all heads side by side, over each head, or none."""
    norm_eps: Annotated[float, Field(gt=0)] = 1e-6
    chunk: Annotated[int, Field(ge=1)] = 64
    """Tokens of a chunk in the form made of matrix products."""

    def build_causal(self, slot: Slot) -> Lightning:
        return Lightning(self, slot)


def lightning_slopes(
    name: SlopeName,
    heads: int,
    layer: int,
    depth: int,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> Tensor:
    """m (H,), at least 0, of layer 0 .. depth - 1."""
    h, last = torch.arange(heads, dtype=dtype, device=device), max(depth - 1, 1)
    if name == "fla":
        return h * (8 / heads * (1 - layer / depth))
    if name == "transformers":
        return torch.exp2((h + 1) * (-8 / heads)) * (1 - layer / (depth - 1 + 1e-5) + 1e-5)
    factors = {"alibi": 1.0, "minimax": 1 - layer / last + 1e-5, "bailing": 1 - (layer - 1) / last + 1e-5}
    return alibi_slopes(heads, dtype=dtype, device=device) * factors[name]


class Lightning(MatrixMixer):
    """(B, T, D) -> (B, T, D). See LightningConfig for the choices and the module docstring for the formula."""

    def __init__(self, config: LightningConfig, slot: Slot) -> None:
        super().__init__()
        self.config, self.where = config, slot.where
        self.layer, self.depth = slot.layer, slot.depth
        self.heads, self.head_dim = heads_of(slot, config.heads, config.head_dim)
        self.sizes = (self.heads, self.head_dim, self.head_dim)
        width = self.heads * self.head_dim
        self.groups = self.heads if config.norm == "head" else 1
        self.qkv = nn.Linear(slot.dim, 3 * width, bias=False)
        self.gate = nn.Linear(slot.dim, width, bias=False) if config.gate != "none" else None
        self.norm = OutputNorm(width // self.groups, gate=config.gate, norm=config.norm != "none", eps=config.norm_eps)
        self.out = nn.Linear(width, slot.dim, bias=False)
        self._std, self._out_std = slot.std(slot.dim), slot.output_std(width)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        init_linear(self.qkv, self._std)
        init_linear(self.out, self._out_std)
        if self.gate is not None:
            init_linear(self.gate, self._std)

    def inputs(self, x: Tensor, tokens: Tokens, state: FixedState | None) -> Inputs:
        q, k, v = F.silu(self.qkv(x)).unflatten(-1, (3, self.heads, self.head_dim)).unbind(-3)  # 3 (..., H, K)
        wide = torch.promote_types(q.dtype, torch.float32)
        slopes = lightning_slopes(
            self.config.slopes, self.heads, self.layer, self.depth, dtype=wide, device=x.device
        )  # (H,)
        return Inputs(q, k, v, -slopes, rest=(x,))

    def outputs(self, y: Tensor, made: Inputs) -> Tensor:
        y = y.flatten(-2).unflatten(-1, (self.groups, -1))  # (..., 1 or H, H K or K)
        return super().outputs(y, made)  # (..., D)

    def core_flops(self, batch: int, length: int, memory_length: int = 0) -> int:
        """The recurrence as written: decay, write and read, 2 a multiply-add."""
        return 5 * batch * length * self.heads * self.head_dim**2
