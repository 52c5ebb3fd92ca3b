"""RWKV-7 "Goose": the delta rule with separate keys for what is removed and what is written. Peng et al. 2025,
arXiv:2503.14456.

    S_t = (diag(w_t) - (a_t kappa_t) kappa_t') S_{t-1} + k_t v_t'     S (K, V) per head, the paper's wkv transposed
    o_t = S_t' r_t                                                    kappa of length 1, a in (0, 1)

    x --token shift: six mixes of a token and the one before it--> r, w, k, v, a, g
      w = exp(-e^-0.5 sigmoid(low rank))   kappa = k xi / |k xi|   a = sigmoid(low rank)   k <- k (1 + (a - 1) alpha)
      v <- v + (v of the first layer - v) sigmoid(low rank)
    o --norm per head--> + (r' (rho k)) v --times g (low rank)--> out

Values across layers. Which RWKV-7 layer of a stack is the first, wherever a hybrid has it, is settled at build
(`Slot.shared`). In a pass it leaves its values in `Tokens.memo`, where the later ones read them. Each direction of a
two-sided stack has both to itself. Recomputed under activation checkpointing, the first layer leaves them once more.

Initial values are the authors' (as in flash-linear-attention's layers/rwkv7.py), save that all matrices are normal with
the slot's standard deviation and the low-rank ones end at a tenth of it, where the authors start some of them at zero.
Where the authors bound the length of k xi from below by 1e-12, it has 1e-12 under its root here.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from zoo.blocks.api import Slot
from zoo.blocks.fixed_state import FixedState
from zoo.blocks.init import init_linear
from zoo.blocks.low_rank import LowRank
from zoo.blocks.matrix_mixer import Inputs, MatrixMixer
from zoo.blocks.recurrent_mixer import RecurrentConfig, Tokens, heads_of
from zoo.ops.features import unit
from zoo.ops.recurrence import at_least_fp32
from zoo.registry import register

__all__ = ["RWKV7", "RWKV7Config", "token_shift"]

MIXES = {"r": 0.2, "w": 0.9, "k": 0.7, "v": 0.7, "a": 0.9, "g": 0.2}
"""What is mixed from a token and the one before it, and the exponent of the mix's initial value."""


@register("mixer", "rwkv7", paper="Peng et al. 2025, arXiv:2503.14456")
class RWKV7Config(RecurrentConfig):
    """A delta rule with its own key of removal, a learning rate and a decay per channel, and token shift."""

    state_field: ClassVar[str | None] = "head_dim"

    heads: Annotated[int, Field(ge=1)] | None = None
    """Heads H; None: the family's."""
    head_dim: Annotated[int, Field(ge=1)] | None = None
    """Width K of keys and values; None: D / heads. The authors' is 64."""
    decay_rank: Annotated[int, Field(ge=1)] | None = None
    """Numbers that w passes through; None: 2.5 sqrt(D) K / 64 in steps of 32, as the authors'."""
    rate_rank: Annotated[int, Field(ge=1)] | None = None
    """The same for a."""
    value_rank: Annotated[int, Field(ge=1)] | None = None
    """The same for the share of the first layer's values; None: 1.7 sqrt(D) K / 64 in steps of 32."""
    gate_rank: Annotated[int, Field(ge=1)] | None = None
    """The same for g; None: 5 sqrt(D) in steps of 32."""
    value_residual: bool = True
    """Values lean towards those of the stack's first RWKV-7 layer."""
    norm_eps: Annotated[float, Field(gt=0)] = 1e-5
    """Of the norm over each head's output, times K."""
    chunk: Annotated[int, Field(ge=1)] = 64
    """Tokens of a chunk in the form made of matrix products."""

    def build_causal(self, slot: Slot) -> RWKV7:
        return RWKV7(self, slot)


class RWKV7(MatrixMixer):
    """(B, T, D) -> (B, T, D). See RWKV7Config for the choices and the module docstring for the formula."""

    undecayed = ("mix_weights", "bonus")

    def __init__(self, config: RWKV7Config, slot: Slot) -> None:
        super().__init__()
        self.config, self.where = config, slot.where
        self.heads, self.head_dim = heads_of(slot, config.heads, config.head_dim)
        self.sizes = (self.heads, self.head_dim, self.head_dim)
        self.dim, width = slot.dim, self.heads * self.head_dim
        self.layer, self.depth = slot.layer, slot.depth
        self.values = ("rwkv7 values", width)  # where the first layer's values are found
        self.leads = slot.shared.setdefault(self.values, self) is self

        def rank(given: int | None, factor: float) -> int:
            return given or max(32, 32 * round(factor * slot.dim**0.5 / 32))

        scale = self.head_dim / 64
        self.mix_weights = nn.Parameter(torch.empty(len(MIXES), slot.dim))
        self.receptance = nn.Linear(slot.dim, width, bias=False)
        self.key = nn.Linear(slot.dim, width, bias=False)
        self.value = nn.Linear(slot.dim, width, bias=False)
        small: dict[str, Any] = {"gain": 0.1, "bias": True}
        self.decay = LowRank(slot, rank(config.decay_rank, 2.5 * scale), width, activation=torch.tanh, **small)
        self.rate = LowRank(slot, rank(config.rate_rank, 2.5 * scale), width, **small)
        follows = config.value_residual and not self.leads
        self.share = LowRank(slot, rank(config.value_rank, 1.7 * scale), width, **small) if follows else None
        self.gate = LowRank(slot, rank(config.gate_rank, 5.0), width, activation=torch.sigmoid)
        self.removal_scale = nn.Parameter(torch.empty(width))  # xi, k_k
        self.rate_scale = nn.Parameter(torch.empty(width))  # alpha, k_a
        self.bonus = nn.Parameter(torch.empty(self.heads, self.head_dim))  # rho, r_k
        self.norm = nn.GroupNorm(self.heads, width, eps=self.head_dim * config.norm_eps)
        self.out = nn.Linear(width, slot.dim, bias=False)
        self._std, self._out_std = slot.std(slot.dim), slot.output_std(width)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        for linear in (self.receptance, self.key, self.value):
            init_linear(linear, self._std)
        init_linear(self.out, self._out_std)
        device, width = self.mix_weights.device, self.heads * self.head_dim
        deep, left = self.layer / max(self.depth - 1, 1), 1.0 - self.layer / self.depth
        channel = torch.arange(self.dim, device=device) / self.dim  # (D,)
        for weights, exponent in zip(self.mix_weights, MIXES.values(), strict=True):
            weights.copy_(1.0 - channel ** (exponent * left))
        line = torch.linspace(-0.5, 0.5, width, device=device)  # (H K)
        zigzag = torch.linspace(-1.0, 1.0, self.head_dim, device=device).repeat(self.heads)
        zigzag = zigzag * zigzag.abs()
        self.decay.up.bias.copy_(-5.5 + 6.0 * (line + 0.5) ** (1.0 + deep**0.3) + 2.5 * zigzag)
        self.rate.up.bias.copy_(-0.19 + 0.3 * zigzag + 0.4 * line)
        if self.share is not None:
            self.share.up.bias.copy_(0.73 - 0.4 * line)
        self.removal_scale.copy_(0.71 - 0.1 * line)
        self.rate_scale.fill_(1.02)
        self.bonus.fill_(-0.04)
        self.norm.weight.fill_(((self.layer + 1) / self.depth) ** 0.7)
        self.norm.bias.zero_()

    def inputs(self, x: Tensor, tokens: Tokens, state: FixedState | None) -> Inputs:
        if x.shape[-1] != self.dim:  # a width of 1 would broadcast in the mixes
            raise ValueError(f"{self.where}: x should be of width {self.dim}, got {tuple(x.shape)}")
        before, last = token_shift(x, tokens, None if state is None else state["shift"])  # (B, T, D), (B, 1, D)
        if state is not None:
            state["shift"] = last
        weights = self.mix_weights.view(len(MIXES), *[1] * (x.dim() - 1), -1)
        xr, xw, xk, xv, xa, xg = x + (before - x) * weights  # 6 (B, T, D)
        r, k, v = self.receptance(xr), self.key(xk), self._values(xv, tokens)  # (B, T, H K)
        decay = -math.exp(-0.5) * torch.sigmoid(at_least_fp32(self.decay(xw)))
        rate = torch.sigmoid(at_least_fp32(self.rate(xa)))
        kappa = unit(self._heads(at_least_fp32(k * self.removal_scale)), eps=1e-12)  # (B, T, H, K)
        k = k * (1.0 + (rate - 1.0) * self.rate_scale)
        r, k, v, decay, rate = (self._heads(part) for part in (r, k, v, decay, rate))  # (B, T, H, K)
        removed = kappa * torch.exp(-decay)  # what is read is left after the decay, which is at least 0.54
        return Inputs(r, k, v, decay, a=-rate * kappa, b=removed, rest=(self.gate(xg),))

    def outputs(self, y: Tensor, made: Inputs) -> Tensor:
        r, k, v, (gate,) = made.q, made.k, made.v, made.rest
        y = self.norm(y.reshape(-1, self.heads * self.head_dim)).view(y.shape)  # (B, T, H, K)
        y = y + (r * k * self.bonus).sum(-1, keepdim=True).to(v.dtype) * v
        return self.out(y.flatten(-2) * gate)  # (B, T, D)

    def _values(self, x: Tensor, tokens: Tokens) -> Tensor:
        """x (B, T, D) -> values (B, T, H K), with a share of the first layer's."""
        v = self.value(x)
        if self.leads:
            tokens.memo[self.values] = v
        if self.share is None:
            return v
        if self.values not in tokens.memo:
            raise ValueError(f"{self.where}: needs the values of the stack's first rwkv7 layer; call the whole stack")
        return torch.lerp(v, tokens.memo[self.values], torch.sigmoid(self.share(x)))

    def _heads(self, x: Tensor) -> Tensor:
        """(B, T, H K) -> (B, T, H, K)."""
        return x.unflatten(-1, (self.heads, self.head_dim))

    def empty(self, batch: int, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        shift = torch.zeros(batch, 1, self.dim, device=device, dtype=dtype)
        return {**super().empty(batch, device, dtype), "shift": shift}

    def core_flops(self, batch: int, length: int, memory_length: int = 0) -> int:
        """The recurrence as written: decay, read, two writes and the output, 2 a multiply-add."""
        return 9 * batch * length * self.heads * self.head_dim**2


def token_shift(x: Tensor, tokens: Tokens, last: Tensor | None) -> tuple[Tensor, Tensor]:
    """x (B, T, D) -> for each token the one before it (B, T, D), and the row's last real token (B, 1, D).

    last: the token before x (B, 1, D); None: zeros. Zeros too where a document begins.
    For x (N, D), one new token of each row, it is `last` itself.
    """
    if x.dim() == 2 and last is not None:
        return last[:, 0].to(x.dtype), x[:, None]
    joined = torch.cat([x.new_zeros(x.shape[0], 1, x.shape[2]) if last is None else last.to(x.dtype), x], dim=1)
    before = joined[:, :-1]
    if tokens.starts is not None:
        before = before.masked_fill(tokens.starts[..., None], 0.0)
    if tokens.lengths is None:
        return before, joined[:, -1:]
    return before, joined.gather(1, tokens.lengths[:, None, None].expand(-1, 1, x.shape[2]))
