"""Retention: linear attention that forgets at one fixed rate per head, and rotates. Sun et al. 2023, arXiv:2307.08621.

    S_t = gamma_h S_{t-1} + k_t v_t'      gamma_h = 1 - 2^(-5-h), h = 0 .. H-1: from 22 tokens' half life on, doubling
    o_t = S_t' q_t / sqrt(K)              q_t, k_t rotated by their positions (the paper: xPos = rotation and decay)

    x --q, k, v--> rotate q, k --> o --RMS norm per head, times SiLU(gate)--> out        V = 2 K

The norm cancels any factor of a head's output, so the paper's three score normalisations are not here. Its norm is a
GroupNorm, in its code an RMS norm without weights; here it has a weight over V. Its code spaces the angles of the pairs
as 10000^(-i / (K/2 - 1)); here they are RoPE's, 10000^(-2i / K), with whatever scaling the position's config has.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from zoo.blocks.api import Context, PositionConfig, Slot
from zoo.blocks.fixed_state import FixedState
from zoo.blocks.init import init_linear
from zoo.blocks.matrix_mixer import Inputs, MatrixMixer
from zoo.blocks.output_gate import GateName, OutputNorm
from zoo.blocks.positions.indices import token_positions
from zoo.blocks.positions.rotary import RopeConfig
from zoo.blocks.recurrent_mixer import RecurrentConfig, Tokens, heads_of
from zoo.registry import ConfigError, part, register

__all__ = ["Retention", "RetentionConfig", "retention_decay"]


@register("mixer", "retention", paper="Sun et al. 2023, arXiv:2307.08621")
class RetentionConfig(RecurrentConfig):
    """Fixed decays and rotation: a recurrence, or attention with a decaying mask."""

    state_field: ClassVar[str | None] = "head_dim"

    heads: Annotated[int, Field(ge=1)] | None = None
    """Heads H; None: the family's."""
    head_dim: Annotated[int, Field(ge=1)] | None = None
    """Key width K; None: D / H."""
    expand_v: Annotated[float, Field(gt=0)] = 2.0
    """Value width V over K."""
    position: Annotated[PositionConfig | None, part("position")] = None
    """Rotation of queries and keys. None: the family's if it rotates along the row, else RoPE with the paper's
    interleaved pairs, for rotation belongs to retention; 'none': no rotation."""
    gate: GateName = "silu"
    """Gate of x on the heads' outputs."""
    norm: bool = True
    """RMS norm of each head's output."""
    norm_eps: Annotated[float, Field(gt=0)] = 1e-5
    chunk: Annotated[int, Field(ge=1)] = 64
    """Tokens of a chunk in the form made of matrix products."""

    def build_causal(self, slot: Slot) -> Retention:
        return Retention(self, slot)


def retention_decay(
    heads: int, *, dtype: torch.dtype = torch.float32, device: torch.device | str | None = None
) -> Tensor:
    """ln(1 - 2^(-5-h)), (H,)."""
    return torch.log1p(-torch.exp2(-5.0 - torch.arange(heads, dtype=dtype, device=device)))


class Retention(MatrixMixer):
    """(B, T, D) -> (B, T, D). See RetentionConfig for the choices and the module docstring for the formula."""

    def __init__(self, config: RetentionConfig, slot: Slot) -> None:
        super().__init__()
        self.config, self.where = config, slot.where
        self.heads, self.key_dim = heads_of(slot, config.heads, config.head_dim)
        self.value_dim = max(1, int(self.key_dim * config.expand_v))
        self.sizes = (self.heads, self.key_dim, self.value_dim)
        keys, values = self.heads * self.key_dim, self.heads * self.value_dim
        self.widths = (keys, keys, values)
        self.qkv = nn.Linear(slot.dim, sum(self.widths), bias=False)
        position = rotation(config, slot)
        self.rotary = None if position is None else position.build(slot.at(heads=self.heads, dim=keys))
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
        q, k, v = self.qkv(x).split(self.widths, dim=-1)
        q, k = (z.unflatten(-1, (self.heads, self.key_dim)) for z in (q, k))  # (B, T, H, K)
        v = v.unflatten(-1, (self.heads, self.value_dim))  # (B, T, H, V)
        if self.rotary is not None:
            q, k = self._rotated(q, k, tokens, state)
        wide = torch.promote_types(q.dtype, torch.float32)
        decay = retention_decay(self.heads, dtype=wide, device=x.device)  # (H,)
        return Inputs(q * self.key_dim**-0.5, k, v, decay, rest=(x,))

    def _rotated(self, q: Tensor, k: Tensor, tokens: Tokens, state: FixedState | None) -> tuple[Tensor, Tensor]:
        """By given positions, or counted on from what the state has seen, over documents too: only distances matter."""
        assert self.rotary is not None
        context, positions = Context(memo=tokens.memo), tokens.positions
        one = q.dim() == 3  # (N, H, K) of one new token
        if positions is None:
            seen = None if state is None else state.seen
            positions = token_positions(1 if one else q.shape[1], context, offset=seen, device=q.device)
        q, k = (z[:, :, None] if one else z.transpose(1, 2) for z in (q, k))
        q, k = self.rotary(q, k, positions, context)  # (B, H, T, K)
        return (q[:, :, 0], k[:, :, 0]) if one else (q.transpose(1, 2), k.transpose(1, 2))

    def core_flops(self, batch: int, length: int, memory_length: int = 0) -> int:
        """The recurrence as written: decay, write and read, 2 a multiply-add."""
        return 5 * batch * length * self.heads * self.key_dim * self.value_dim


def rotation(config: RetentionConfig, slot: Slot) -> PositionConfig | None:
    """The rotary position to build, or None. Raises ConfigError for one that does not rotate along the row."""
    chosen = config.position
    if chosen is None:
        family = slot.position
        return family if family is not None and _turns(family) else RopeConfig(layout="interleaved")
    if chosen.place != "none" and not _turns(chosen):
        raise ConfigError(
            f"retention cannot use '{chosen.registered_name}': it rotates along the row; choices: rope, none",
            f"{slot.where}.position",
        )
    return chosen if _turns(chosen) else None


def _turns(position: PositionConfig) -> bool:
    return position.place == "rotary" and not position.needs_grid
