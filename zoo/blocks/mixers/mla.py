"""Multi-head latent attention: the keys and values of all heads come from one narrow latent, which alone is cached.

DeepSeek-AI 2024 (DeepSeek-V2, arXiv:2405.04434, section 2.1 and appendix C; V3: arXiv:2412.19437). With c = kv_rank,
n = nope_dim, R = rope_dim, V = value_dim and rot the rotation by positions, for each head i:

    c_t   = norm(W_DKV x_t)                  (c,)   the latent                      } cached: c + R numbers a token,
    k^R_t = rot(W_KR x_t)                    (R,)   one rotated key for all heads   } whatever the number of heads
    q_t,i = [W_UQ,i c^Q_t, rot(W_QR,i c^Q_t)]  (n + R,)   c^Q = norm(W_DQ x), or x itself without q_rank
    k_t,i = [W_UK,i c_t, k^R_t],  v_t,i = W_UV,i c_t
    o_t   = W_O [softmax_j(q_t,i k_j,i / sqrt(n + R)) v_j,i]_i

A call computes it in one of two ways, which agree:

    materialised   keys and values of every head are made of the latents: training, prefill
    absorbed       q W_UK c = (W_UK' q) c and sum_j p_j W_UV c_j = W_UV sum_j p_j c_j: attention over the cached rows
                   themselves, which all heads share: a few new tokens over a long past

Without a state keys and values are always materialised. With one, the way with fewer multiply-adds is taken: at the
widths of DeepSeek-V3 and 4096 cached tokens, the absorbed one for up to 151 new tokens.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from zoo.blocks.api import Capability, Context, MixerConfig, NormConfig, PositionConfig, Slot, Step, Sublayer
from zoo.blocks.checks import check_mask, check_row
from zoo.blocks.held_keys import held_keys, visibility
from zoo.blocks.init import init_linear
from zoo.blocks.norms import RMSNormConfig
from zoo.blocks.positions.indices import token_positions
from zoo.blocks.positions.rotary import naive_rope
from zoo.blocks.positions.rotary_scaling import YarnScalingConfig
from zoo.blocks.state import CrossState, KVState
from zoo.ops.attention import BiasFunction, attention, attention_maps, one_query_attention
from zoo.ops.visibility import Visibility, seen_pairs
from zoo.registry import ConfigError, part, register

__all__ = ["LatentAttention", "MLAConfig", "naive_mla"]

Width = Annotated[int, Field(ge=1)]


@register("mixer", "mla", paper="DeepSeek-AI 2024, arXiv:2405.04434")
class MLAConfig(MixerConfig):
    """Attention whose keys and values come from one cached latent, with a rotary part of its own.

    In cross use the latent is the memory's, and the rotary part is left out.
    """

    capabilities: ClassVar[Capability] = ~Capability(0)
    state_field: ClassVar[str | None] = "kv_rank"

    heads: Width | None = None
    """Heads H; None: the family's."""
    nope_dim: Width | None = None
    """Width n of each head's queries and keys that no position turns; None: D / H."""
    rope_dim: Annotated[int, Field(ge=0, multiple_of=2)] | None = None
    """Width R of each head's queries and of the one shared key that positions turn; None: half of nope_dim, rounded up
    to a multiple of 4. Without rotary positions this part stays as it is; 0 leaves it out (no positions)."""
    value_dim: Width | None = None
    """Value width V; None: nope_dim."""
    kv_rank: Width | None = None
    """Width c of the latent; None: 4 nope_dim."""
    q_rank: Width | None = None
    """Width of the queries' own latent; None: queries straight from x (DeepSeek-V2-Lite)."""
    norm: Annotated[NormConfig, part("norm")] = RMSNormConfig()
    """Norm of both latents."""
    bias: bool = False
    """Biases of the projections into the latents."""
    out_bias: bool = False
    gate: Literal["none", "head", "elementwise"] = "none"
    """Sigmoid gate of x on the heads' outputs, before the output projection (Qiu et al. 2025, arXiv:2505.06708)."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Probability of dropping an attention weight while training."""
    yarn_factor: Literal["scores", "rotary"] = "scores"
    """What YaRN's factor m lengthens: the whole scores, by m^2 (DeepSeek), or cos and sin of the rotary part alone."""
    position: Annotated[PositionConfig | None, part("position")] = None
    """Rotation or bias of this mixer's own; None: the family's choice. DeepSeek's is rope, layout "interleaved"."""

    def build(self, slot: Slot) -> LatentAttention:
        return LatentAttention(self, slot)

    def for_memory(self) -> MLAConfig:
        """Without positions, which belong to one sequence."""
        return self.model_copy(update={"position": None, "rope_dim": 0})


class LatentAttention(Sublayer):
    """(B, T, D) -> (B, T, D). See MLAConfig for the choices and the module docstring for the formulas.

    A cached row is [c | k^R]: the one key and, in its first c channels, the one value of all heads. `KVState` holds it
    as a key with a value of width 0, and `CrossState` the memory's c in the same way.

    Raises ConfigError for a position or a width that does not fit its place; ValueError for a mask of another shape or
    dtype, a memory that is missing, and a state of packed documents that goes on without `context.documents`.
    """

    def __init__(self, config: MLAConfig, slot: Slot) -> None:
        super().__init__()
        self.config, self.where = config, slot.where
        self.causal, self.cross = slot.causal, slot.memory_dim is not None
        self.heads = config.heads or slot.heads
        if config.nope_dim is None and slot.dim % self.heads:
            raise ConfigError(
                f"dim {slot.dim} is not a multiple of heads {self.heads}; change one, or set nope_dim", slot.where
            )
        self.nope_dim = config.nope_dim or slot.dim // self.heads
        self.rope_dim = -(-self.nope_dim // 8) * 4 if config.rope_dim is None else config.rope_dim
        self.rope_dim = 0 if self.cross else self.rope_dim
        self.value_dim, self.kv_rank = config.value_dim or self.nope_dim, config.kv_rank or 4 * self.nope_dim
        self.key_dim = self.nope_dim + self.rope_dim
        memory_dim, wide = slot.memory_dim or slot.dim, self.heads * self.value_dim

        self._stds = {"kv_down": slot.std(memory_dim), "kv_up": slot.std(self.kv_rank), "out": slot.output_std(wide)}
        self._gain = slot.branch_gain
        if config.q_rank is None:
            self.q = nn.Linear(slot.dim, self.heads * self.key_dim, bias=False)
            self._stds["q"] = slot.std(slot.dim)
        else:
            down = nn.Linear(slot.dim, config.q_rank, bias=config.bias)
            up = nn.Linear(config.q_rank, self.heads * self.key_dim, bias=False)
            self.q = nn.Sequential(OrderedDict(down=down, norm=config.norm.build(config.q_rank), up=up))
            self._stds |= {"q.down": slot.std(slot.dim), "q.up": slot.std(config.q_rank)}
        self.kv_down = nn.Linear(memory_dim, self.kv_rank + self.rope_dim, bias=config.bias)
        self.kv_norm = config.norm.build(self.kv_rank)
        self.kv_up = nn.Linear(self.kv_rank, self.heads * (self.nope_dim + self.value_dim), bias=False)
        self.out = nn.Linear(wide, slot.dim, bias=config.out_bias)
        gates = {"none": 0, "head": self.heads, "elementwise": wide}[config.gate]
        self.gate = nn.Linear(slot.dim, gates) if gates else None
        if self.gate is not None:
            self._stds["gate"] = slot.std(slot.dim)

        self.scale, self.rotary, self.bias = self.key_dim**-0.5, None, None
        position = self._position(slot)
        if position is not None and position.place == "bias":
            self.bias = position.build(slot.at(heads=self.heads))
        elif position is not None and position.place == "rotary" and self.rope_dim:
            if config.yarn_factor == "scores":
                position, factor = _without_yarn_factor(position)
                self.scale *= factor**2
            self.rotary = position.build(slot.at(heads=1, dim=self.rope_dim))
        self.reset_parameters()

    def _position(self, slot: Slot) -> PositionConfig | None:
        own, problem = self.config.position, None
        if own is None:
            return None if self.cross else slot.position
        if self.cross:
            problem = "has no meaning between two sequences; leave it unset"
        elif own.place == "input":
            problem = "is added at the input, not in a mixer; choices: rope, rope2d, alibi, t5_bias, none"
        elif own.place == "rotary" and self.rope_dim == 0:
            problem = "has nothing to turn while rope_dim is 0; raise rope_dim, or leave it unset"
        if problem is not None:
            raise ConfigError(f"'{own.registered_name}' {problem}", f"{slot.where}.position")
        return own

    def reset_parameters(self) -> None:
        for name, std in self._stds.items():
            init_linear(self.get_submodule(name), std)  # type: ignore[arg-type]
        with torch.no_grad():
            self._up_projections()[1].mul_(self._gain)

    def forward(self, x: Tensor, context: Context, state: Any = None) -> Tensor:
        check_row(x, context, self.where)
        t = x.shape[1]
        q, rows, visible, bias = (self._read_memory if self.cross else self._read_self)(x, context, state)
        absorbed = state is not None and self._absorbs(t, rows.shape[2])
        if absorbed:
            q, k, v = self._absorb(q), rows, rows  # (B, H, T, c + R), (B, 1, S, c + R) twice
        else:
            k, v = self._materialise(rows)  # (B, H, S, n + R), (B, H, S, V)
        name = f"{self.where}.attention"
        if context.record is not None and context.record.wants(name):
            context.record.add(name, attention_maps(q, k, visible, scale=self.scale, bias=bias))  # (B, H, T, S)
        dropout = self.config.dropout if self.training else 0.0
        y = attention(q, k, v, visible, scale=self.scale, bias=bias, dropout=dropout)
        y = self._values(y) if absorbed else y  # (B, H, T, V)
        y = y.transpose(1, 2)  # (B, T, H, V)
        if self.gate is not None:
            y = y * torch.sigmoid(self.gate(x)).unflatten(-1, (self.heads, -1))  # (B, T, H, V or 1)
        return self.out(y.flatten(2))  # (B, T, D)

    def step(self, state: Any) -> Step | None:
        if not self._has_short_cut(state):
            return None

        def step(x: Tensor, context: Context) -> Tensor:
            if self.cross:
                q, rows = self._queries(x[:, None]), state.keys  # (N, H, 1, n), (N, 1, S, c)
                state.advance(1, None)
            else:
                q, row = self._project(x[:, None], context.positions, context)
                rows, _ = state.append(row, row[..., :0])  # (N, 1, S, c + R)
            y = one_query_attention(self._absorb(q), rows, rows, self.scale)  # (N, H, 1, c + R)
            return self.out(self._values(y).flatten(1))  # (N, D)

        return step

    def _has_short_cut(self, state: Any) -> bool:
        if self.gate is not None or self.bias is not None or not self._can_absorb:
            return False
        if self.cross:
            return state.keys is not None and state.mask is None
        return isinstance(state, KVState) and not state.tags

    def _queries(self, x: Tensor) -> Tensor:
        return self.q(x).unflatten(-1, (self.heads, self.key_dim)).transpose(1, 2)  # (B, H, T, n + R)

    def _project(self, x: Tensor, positions: Tensor | None, context: Context) -> tuple[Tensor, Tensor]:
        """x (B, T, D) -> rotated queries (B, H, T, n + R) and the rows to cache (B, 1, T, c + R)."""
        q = self._queries(x)
        latent, shared = self.kv_down(x).unsqueeze(1).split((self.kv_rank, self.rope_dim), dim=-1)
        if self.rotary is not None:
            q, turning = q.split((self.nope_dim, self.rope_dim), dim=-1)
            turning, shared = self.rotary(turning, shared, positions, context)  # (B, H, T, R), (B, 1, T, R)
            q = torch.cat((q, turning), dim=-1)
        return q, torch.cat((self.kv_norm(latent), shared), dim=-1)

    def _up_projections(self) -> tuple[Tensor, Tensor]:
        """W_UK (H, n, c) and W_UV (H, V, c)."""
        weight = self.kv_up.weight.unflatten(0, (self.heads, -1))  # (H, n + V, c)
        return weight.narrow(1, 0, self.nope_dim), weight.narrow(1, self.nope_dim, self.value_dim)

    def _materialise(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Rows (B, 1, S, c + R) -> keys (B, H, S, n + R) and values (B, H, S, V) of every head."""
        latent, shared = rows.split((self.kv_rank, self.rope_dim), dim=-1)
        kv = self.kv_up(latent.squeeze(1)).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (B, H, S, n + V)
        k, v = kv.split((self.nope_dim, self.value_dim), dim=-1)
        return torch.cat((k, shared.expand(-1, self.heads, -1, -1)), dim=-1), v

    def _absorb(self, q: Tensor) -> Tensor:
        """Queries (B, H, T, n + R) -> (B, H, T, c + R), which meet the cached rows themselves."""
        q, turned = q.split((self.nope_dim, self.rope_dim), dim=-1)
        return torch.cat((torch.einsum("bhtn,hnc->bhtc", q, self._up_projections()[0]), turned), dim=-1)

    def _values(self, y: Tensor) -> Tensor:
        """Weighted sums of cached rows (B, H, T, c + R) -> those of values (B, H, T, V)."""
        return torch.einsum("bhtc,hvc->bhtv", y[..., : self.kv_rank], self._up_projections()[1])

    def _absorbs(self, tokens: int, length: int) -> bool:
        """Whether T new tokens over S cached rows take fewer multiply-adds absorbed; for each head:

        absorbed      T c (n + V) + 2 T S (c + R)        a row serves as a value with all its channels
        materialised  S c (n + V) + T S (n + R + V)
        """
        up, row = self.nope_dim + self.value_dim, self.kv_rank + self.rope_dim
        absorbed = tokens * self.kv_rank * up + 2 * tokens * length * row
        return self._can_absorb and absorbed < length * self.kv_rank * up + tokens * length * (up + self.rope_dim)

    @property
    def _can_absorb(self) -> bool:
        """An adapter, a quantised layer or a hook must see the latents: its weight alone does not tell what it does."""
        up = self.kv_up
        return type(up) is nn.Linear and not up._forward_hooks and not up._forward_pre_hooks

    def _read_self(self, x: Tensor, context: Context, state: Any) -> tuple[Tensor, Tensor, Visibility, Any]:
        t = x.shape[1]
        mask, positions = context.token_mask, None
        if self.rotary is not None or self.bias is not None:
            seen = state.seen if state is not None else None
            positions = token_positions(t, context, offset=seen, device=x.device)  # (T,) or (B, T)
        q, rows = self._project(x, positions, context)  # (B, H, T, n + R), (B, 1, T, c + R)
        key = ("index", t, x.device, mask)
        held = held_keys(
            rows,
            rows[..., :0],
            context,
            state,
            index=lambda: context.once(key, lambda: Visibility.row_index(t, mask, 0, x.device)),
            positions=positions if self.bias is not None else None,
            where=self.where,
        )
        visible = visibility(held, context, causal=self.causal)
        return q, held.keys, visible, self._bias(positions, held.tags.get("positions"))

    def _read_memory(self, x: Tensor, context: Context, state: Any) -> tuple[Tensor, Tensor, Visibility, Any]:
        b, t, _ = x.shape
        if state is None or state.keys is None:
            if context.memory is None:
                raise ValueError(f"{self.where}: cross attention needs context.memory (B, S, D), got None")
            mask = context.memory_mask
            check_mask(mask, b, context.memory.shape[1], "memory_mask")
            rows = self.kv_norm(self.kv_down(context.memory)).unsqueeze(1)  # (B, 1, S, c)
            if state is not None:
                state.fill(rows, rows[..., :0], mask)
        else:
            rows, mask = state.keys, state.mask
        if state is not None:
            state.advance(t, context.token_mask)
        index = torch.arange(t, device=x.device)
        keys = torch.arange(rows.shape[2], device=x.device)
        return self._queries(x), rows, Visibility(query_index=index, key_index=keys, key_mask=mask), None

    def _bias(self, queries: Tensor | None, keys: Tensor | None) -> BiasFunction | None:
        """Bias of the scores by positions (T,) or (B, T) of the queries and (S,) or (B, S) of the keys."""
        module = self.bias
        if module is None or queries is None or keys is None:
            return None
        return lambda rows, columns: module(queries[..., rows], keys[..., columns])  # (H, t, s) or (B, H, t, s)

    def init_state(
        self, batch: int, max_len: int, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> KVState | CrossState | None:
        """In self use c + R numbers a token; in cross use c numbers a token of the memory."""
        if self.cross:
            return CrossState(batch, device)
        if not self.causal:
            return None
        weight, row = self.out.weight, self.kv_rank + self.rope_dim
        return KVState(batch, 1, max_len, row, 0, device=device or weight.device, dtype=dtype or weight.dtype)

    def core_flops(self, batch: int, length: int, memory_length: int = 0) -> int:
        """Scores and weighted sum, materialised, 2 a multiply-add; the causal triangle counts as a full square."""
        keys = memory_length if self.cross else length
        return 2 * batch * self.heads * length * keys * (self.key_dim + self.value_dim)

    def hidden_flops(self, batch: int, length: int, memory_length: int = 0) -> int:
        if self.cross or not self.causal:
            return 0
        hidden = length * length - seen_pairs(length, causal=True)
        return 2 * batch * self.heads * hidden * (self.key_dim + self.value_dim)

    def step_flops(self, batch: int, length: int, memory_length: int = 0) -> int:
        """Absorbed: scores with the cached rows, and their weighted sum, c + R channels each."""
        keys = memory_length if self.cross else length
        return 4 * batch * self.heads * keys * (self.kv_rank + self.rope_dim)


def _without_yarn_factor(position: PositionConfig) -> tuple[PositionConfig, float]:
    """The same rotation with cos and sin as they are, and the factor that YaRN puts on them."""
    scaling: Any = getattr(position, "scaling", None)
    if not isinstance(scaling, YarnScalingConfig):
        return position, 1.0
    plain = scaling.model_copy(update={"attention_factor": 1.0})
    return position.model_copy(update={"scaling": plain}), scaling.scale


def naive_mla(mixer: LatentAttention, x: Tensor) -> Tensor:
    """One causal row (T, D) -> (T, D) by appendix C of the paper: a loop over heads, queries and keys.

    For a mixer without bias, gate and position, or with an unscaled rope.
    """
    n, heads = mixer.nope_dim, mixer.heads
    time = torch.arange(len(x))

    def turned(part: Tensor) -> Tensor:
        rope: Any = getattr(mixer.rotary, "config", None)
        return part if rope is None else naive_rope(part, time, rope.base, rope.layout)

    down = x @ mixer.kv_down.weight.T  # (T, c + R)
    latent, k_rope = mixer.kv_norm(down[:, : mixer.kv_rank]), turned(down[:, mixer.kv_rank :])
    q = mixer.q(x).view(len(x), heads, mixer.key_dim)
    up = mixer.kv_up.weight.view(heads, -1, mixer.kv_rank)
    outputs = []
    for i in range(heads):
        q_nope, q_rope = q[:, i, :n], turned(q[:, i, n:])
        k_nope, v = latent @ up[i, :n].T, latent @ up[i, n:].T
        for t in range(len(x)):
            scores = [q_nope[t] @ k_nope[j] + q_rope[t] @ k_rope[j] for j in range(t + 1)]
            weights = (torch.stack(scores) * (n + mixer.rope_dim) ** -0.5).softmax(0)
            outputs.append(sum(weights[j] * v[j] for j in range(t + 1)))
    y = torch.stack(outputs).view(heads, len(x), -1).transpose(0, 1).flatten(1)  # type: ignore[arg-type]
    return y @ mixer.out.weight.T
