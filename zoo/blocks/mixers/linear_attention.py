"""Linear attention: phi(q)' phi(k) in the place of exp(q' k), so that one sum of outer products holds the past.

    S_t = S_{t-1} + phi(k_t) v_t'      z_t = z_{t-1} + phi(k_t)      o_t = S_t' phi(q_t) / (z_t' phi(q_t) + eps)

Katharopoulos et al. 2020, arXiv:2006.16236; with a Taylor map Arora et al. 2024 (Based), arXiv:2402.18668; with random
features Choromanski et al. 2020 (Performer), arXiv:2009.14794. zoo/ops/features.py has the maps. z is one more column
of S: that of a value which is always 1.

    x --q, k, v--> (short conv, SiLU) --phi of q and k--> read --(RMS norm per head, gate)--> out

Causal, S_t is a recurrence; in a two-sided slot S is one sum over the row, or over the token's document, exactly and
not by two directions; in a cross slot it is the sum over the memory, a state of one size however long the memory.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.blocks.api import Capability, Context, MixerConfig, Slot, Step
from zoo.blocks.checks import check_mask, check_row
from zoo.blocks.fixed_state import FixedState
from zoo.blocks.init import init_linear
from zoo.blocks.matrix_mixer import Inputs, MatrixMixer
from zoo.blocks.output_gate import GateName, OutputNorm
from zoo.blocks.recurrent_mixer import Tokens, heads_of
from zoo.blocks.short_conv import ShortConv
from zoo.ops.features import elu_features, orthogonal_gaussian, positive_random_features, taylor_features
from zoo.ops.linear_attention import key_value_sums, read_sums, row_attention
from zoo.ops.precision import full_precision
from zoo.ops.recurrence import at_least_fp32
from zoo.registry import ConfigError, register

__all__ = ["CrossLinearAttention", "FeatureMap", "LinearAttention", "LinearAttentionConfig", "MemorySums"]

FeatureName = Literal["elu", "relu", "taylor", "performer", "identity"]
BASED_WIDTH = 16  # Taylor features grow with K^2


@register("mixer", "linear_attention", paper="Katharopoulos et al. 2020, arXiv:2006.16236")
class LinearAttentionConfig(MixerConfig):
    """Attention with a kernel of features, over the past, the row or a second sequence, at a cost linear in length."""

    capabilities: ClassVar[Capability] = ~Capability.MAPS
    state_field: ClassVar[str | None] = "key_dim"

    heads: Annotated[int, Field(ge=1)] | None = None
    """Heads H; None: the family's."""
    head_dim: Annotated[int, Field(ge=1)] | None = None
    """Value width V; None: D / H."""
    key_dim: Annotated[int, Field(ge=1)] | None = None
    """Key width K, before the feature map; None: V, but at most 16 for `taylor`, as in Based."""
    feature_map: FeatureName = "elu"
    """phi: elu + 1, relu, the second-order Taylor series of exp, Performer's random features, or none at all."""
    features: Annotated[int, Field(ge=1)] | None = None
    """Random features M of `performer`; None: K ln K, the order that theorem 4 of the paper asks for."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Of the random features, plus the layer's number; they are drawn once and saved with the weights."""
    normalise: bool = True
    """Divide by the sum of the weights; a query that sees no key gives zeros. Without it: 1 / sqrt(K)."""
    eps: Annotated[float, Field(gt=0)] = 1e-6
    """Added to that sum."""
    conv: Annotated[int, Field(ge=0)] = 0
    """Width of short convolutions over q, k and v, which look back only, also in a two-sided slot; 0: none."""
    gate: GateName = "none"
    """Gate of x on the heads' outputs."""
    norm: bool = False
    """RMS norm of each head's output."""
    norm_eps: Annotated[float, Field(gt=0)] = 1e-5
    bias: bool = True
    """Biases of the query, key, value and output projections."""
    chunk: Annotated[int, Field(ge=1)] = 64
    """Tokens of a chunk in the form made of matrix products."""

    def build(self, slot: Slot) -> LinearAttention:
        return LinearAttention(self, slot) if slot.memory_dim is None else CrossLinearAttention(self, slot)

    def for_memory(self) -> LinearAttentionConfig:
        """Without the convolution, which belongs to one sequence."""
        return self.model_copy(update={"conv": 0})


class FeatureMap(nn.Module):
    """Queries and keys (B, T, H, K) -> (B, T, H, F) of `width` F features, in fp32 or better."""

    def __init__(self, config: LinearAttentionConfig, key_dim: int, slot: Slot) -> None:
        super().__init__()
        self.name, self.shift, self.seed = config.feature_map, config.normalise, config.seed + slot.layer
        self.width = key_dim
        if self.name == "taylor":
            self.width = 1 + key_dim + key_dim * (key_dim + 1) // 2
        elif self.name == "performer":
            self.width = config.features or max(1, math.ceil(key_dim * math.log(key_dim)))
            self.random: Tensor
            self.register_buffer("random", torch.empty(self.width, key_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.name == "performer":
            with torch.no_grad():
                self.random.copy_(orthogonal_gaussian(self.width, self.random.shape[1], self.seed))

    def forward(self, x: Tensor, *, query: bool) -> Tensor:
        x = at_least_fp32(x)
        if self.name == "elu":
            return elu_features(x)
        if self.name == "relu":
            return F.relu(x)
        if self.name == "taylor":
            return taylor_features(x)
        if self.name == "performer":
            with full_precision(x):
                return positive_random_features(x, self.random, shift=query and self.shift)
        return x

    def extra_repr(self) -> str:
        return f"{self.name}, width={self.width}"


class LinearAttention(MatrixMixer):
    """(B, T, D) -> (B, T, D), causal or two-sided. See LinearAttentionConfig for the choices."""

    def __init__(self, config: LinearAttentionConfig, slot: Slot) -> None:
        super().__init__()
        if config.normalise and config.feature_map == "identity":
            raise ConfigError("weights of 'identity' have no sum to divide by: set normalise to false", slot.where)
        self.config, self.where, self.causal = config, slot.where, slot.causal
        self.heads, self.value_dim = heads_of(slot, config.heads, config.head_dim)
        widest = BASED_WIDTH if config.feature_map == "taylor" else self.value_dim
        self.key_dim = config.key_dim or min(self.value_dim, widest)
        self.phi = FeatureMap(config, self.key_dim, slot)
        self.sizes = (self.heads, self.phi.width, self.value_dim + config.normalise)
        keys, values = self.heads * self.key_dim, self.heads * self.value_dim
        self.widths, source = (keys, keys, values), slot.memory_dim or slot.dim
        self.q = nn.Linear(slot.dim, keys, bias=config.bias)
        self.kv = nn.Linear(source, keys + values, bias=config.bias)
        if config.conv:
            self.conv = ShortConv(sum(self.widths), config.conv)
        self.gate = nn.Linear(slot.dim, values, bias=False) if config.gate != "none" else None
        self.norm = OutputNorm(self.value_dim, gate=config.gate, norm=config.norm, eps=config.norm_eps)
        self.out = nn.Linear(values, slot.dim, bias=config.bias)
        self._std, self._source_std, self._out_std = slot.std(slot.dim), slot.std(source), slot.output_std(values)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        init_linear(self.q, self._std)
        init_linear(self.kv, self._source_std)
        init_linear(self.out, self._out_std)
        if self.gate is not None:
            init_linear(self.gate, self._std)

    def inputs(self, x: Tensor, tokens: Tokens, state: FixedState | None) -> Inputs:
        qkv = torch.cat([self.q(x), self.kv(x)], dim=-1)  # (B, T, 2 H K + H V)
        qkv = qkv if self.conv is None else self.conv(qkv, tokens, state)
        q, k, v = qkv.split(self.widths, dim=-1)
        return Inputs(self._queries(q), self._keys(k), self._values(v), rest=(x,))

    def mix(self, x: Tensor, tokens: Tokens, state: FixedState | None) -> Tensor:
        if self.causal:
            return super().mix(x, tokens, state)
        made = self.inputs(x, tokens, None)
        y = row_attention(made.q, made.k, made.v, mask=tokens.mask, starts=tokens.starts, chunk=self.config.chunk)
        return self.outputs(y, made)

    def outputs(self, y: Tensor, made: Inputs) -> Tensor:
        return self._read(y, *made.rest)  # (B, T, D)

    def _queries(self, q: Tensor) -> Tensor:
        q = self.phi(q.unflatten(-1, (self.heads, self.key_dim)), query=True)  # (B, T, H, F)
        return q if self.config.normalise else q * self.key_dim**-0.5

    def _keys(self, k: Tensor) -> Tensor:
        return self.phi(k.unflatten(-1, (self.heads, self.key_dim)), query=False)  # (B, T, H, F)

    def _values(self, v: Tensor) -> Tensor:
        """(B, T, H V) -> (B, T, H, V), fp32 or better, with ones behind where there is a sum to divide by."""
        v = at_least_fp32(v).unflatten(-1, (self.heads, self.value_dim))
        return F.pad(v, (0, 1), value=1.0) if self.config.normalise else v

    def _read(self, y: Tensor, x: Tensor) -> Tensor:
        """Sums of weighted values (B, T, H, V), with those of the weights behind, and x (B, T, D) -> (B, T, D)."""
        if self.config.normalise:
            y, total = y.split([self.value_dim, 1], dim=-1)
            y = y / (total + self.config.eps)  # (B, T, H, V)
        return self.out(self.norm(y.to(x.dtype), None if self.gate is None else self.gate(x)))

    def init_state(
        self, batch: int, max_len: int, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> FixedState | None:
        return super().init_state(batch, max_len, device=device, dtype=dtype) if self.causal else None

    def step(self, state: Any) -> Step | None:
        return None if state is None else super().step(state)

    def core_flops(self, batch: int, length: int, memory_length: int = 0) -> int:
        """Random features, writing, reading and the convolution, 2 a multiply-add."""
        taps = sum(self.widths) * self.config.conv
        return batch * length * (self._map_flops(2) + 2 * self._sum_flops() + 2 * taps)

    def _map_flops(self, vectors: int) -> int:
        """Of the features of so many vectors per head."""
        return 2 * vectors * self.heads * self.phi.width * self.key_dim if self.phi.name == "performer" else 0

    def _sum_flops(self) -> int:
        """Of one key written, or one query read, in every head."""
        return 2 * self.heads * self.phi.width * (self.value_dim + self.config.normalise)


class CrossLinearAttention(LinearAttention):
    """(B, T, D) and context.memory (B, S, Dm) -> (B, T, D)."""

    def __init__(self, config: LinearAttentionConfig, slot: Slot) -> None:
        if config.conv:
            raise ConfigError("a short convolution has no meaning between two sequences: leave conv at 0", slot.where)
        super().__init__(config, slot)

    def forward(self, x: Tensor, context: Context, state: Any = None) -> Tensor:
        check_row(x, context, self.where)
        if state is not None and state.filled:
            sums = state["matrix"]
        else:
            sums = self._sums(context)  # (B, H, F, V + 1)
            if state is not None:
                state.fill(sums)
        if state is not None:
            state.advance_rows(x.shape[1], context.token_mask)
        return self._read(read_sums(self._queries(self.q(x)), sums), x)  # (B, T, D)

    def _sums(self, context: Context) -> Tensor:
        if context.memory is None:
            raise ValueError(f"{self.where}: cross attention needs context.memory (B, S, D), got None")
        check_mask(context.memory_mask, context.memory.shape[0], context.memory.shape[1], "memory_mask")
        _, keys, values = self.widths
        k, v = self.kv(context.memory).split([keys, values], dim=-1)
        return key_value_sums(self._keys(k), self._values(v), context.memory_mask)

    def init_state(
        self, batch: int, max_len: int, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> MemorySums:
        weight = self.out.weight
        return MemorySums(**self.empty(batch, torch.device(device or weight.device), dtype or weight.dtype))

    def step(self, state: Any) -> Step | None:
        return (lambda x, context: self(x[:, None], context, state)[:, 0]) if state.filled else None  # (N, D)

    def core_flops(self, batch: int, length: int, memory_length: int = 0) -> int:
        """Random features, one write for each token of the memory and one read for each of x, 2 a multiply-add."""
        return batch * (length + memory_length) * (self._map_flops(1) + self._sum_flops())

    def step_flops(self, batch: int, length: int, memory_length: int = 0) -> int:
        """One read of the sums that the state keeps."""
        return batch * (self._map_flops(1) + self._sum_flops())


class MemorySums(FixedState):
    """The sums over a memory, made at the first call; after it the memory is not needed again."""

    filled = False

    def fill(self, sums: Tensor) -> None:
        """Keep the sums (B, H, F, V)."""
        self["matrix"], self.filled = sums, True
