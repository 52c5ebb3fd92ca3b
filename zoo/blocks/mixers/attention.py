"""Softmax attention for self and cross use: multi-head, multi-query, grouped; windows, chunks, sinks, caps, gates.

Vaswani et al. 2017, arXiv:1706.03762; one key/value head: Shazeer 2019, arXiv:1911.02150; groups: Ainslie et al.
2023, arXiv:2305.13245. The operator is zoo/ops/attention.py, the states are zoo/blocks/state.py.

    x (B, T, D) --qkv--> q (B, H, T, K), k (B, G, T, K), v (B, G, T, V) --norm, rotate--> softmax(q k' / sqrt K) v
                --gate--> (B, T, H V) --out--> (B, T, D)
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from zoo.blocks.api import Capability, Context, MixerConfig, NormConfig, PositionConfig, Slot, Step, Sublayer
from zoo.blocks.checks import check_mask, check_row
from zoo.blocks.held_keys import held_keys, visibility
from zoo.blocks.init import init_linear
from zoo.blocks.partial_bias import PartialBiasLinear
from zoo.blocks.positions.indices import token_positions
from zoo.blocks.state import CrossState, Keys, KVState, WindowState
from zoo.ops.attention import BiasFunction, attention, attention_maps, one_query_attention
from zoo.ops.few_rows import few_rows
from zoo.ops.visibility import Visibility, seen_pairs
from zoo.registry import ConfigError, part, register

__all__ = ["Attention", "AttentionConfig"]


@register("mixer", "attention", paper="Vaswani et al. 2017, arXiv:1706.03762")
class AttentionConfig(MixerConfig):
    """Softmax attention over all tokens, a window of them, or a second sequence."""

    capabilities: ClassVar[Capability] = ~Capability(0)
    state_field: ClassVar[str | None] = "window"

    heads: Annotated[int, Field(ge=1)] | None = None
    """Query heads H; None: the family's."""
    kv_heads: Annotated[int, Field(ge=1)] | None = None
    """Key/value heads G: None = H (multi-head), 1 = multi-query, between = grouped."""
    head_dim: Annotated[int, Field(ge=1)] | None = None
    """Key width K; None: D / H."""
    value_dim: Annotated[int, Field(ge=1)] | None = None
    """Value width V; None: K."""
    bias: bool = True
    """Biases of the query, key, value and gate projections."""
    key_bias: bool = True
    """False: no bias on the keys, which adds the same to all scores of a query (Whisper)."""
    out_bias: bool = True
    qk_norm: Annotated[NormConfig | None, part("norm")] = None
    """Norm over each head's queries and keys, before rotation (Henry et al. 2020, arXiv:2010.04245)."""
    qk_norm_over: Literal["head", "all"] = "head"
    """Whether that norm is one over each head, or one over all heads side by side (OLMo 2)."""
    softcap: Annotated[float, Field(gt=0)] | None = None
    """Logits become softcap * tanh(logits / softcap) (Gemma Team 2024, arXiv:2408.00118)."""
    window: Annotated[int, Field(ge=1)] | None = None
    """Causal: each token sees itself and the window - 1 before it. Two-sided: all at a distance below window."""
    sinks: Annotated[int, Field(ge=0)] = 0
    """First tokens of the row that stay visible outside the window (Xiao et al. 2023, arXiv:2309.17453)."""
    chunk: Annotated[int, Field(ge=1)] | None = None
    """Rows are cut into chunks of so many tokens, and no token sees another chunk than its own (Llama 4: 8192)."""
    sink_logit: bool = False
    """A learned logit per head that takes part in the softmax and has no value (OpenAI 2025, arXiv:2508.10925)."""
    gate: Literal["none", "head", "elementwise"] = "none"
    """Sigmoid gate of x on the heads' outputs, before the output projection (Qiu et al. 2025, arXiv:2505.06708)."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Probability of dropping an attention weight while training."""
    scale: float | None = None
    """Factor of the logits; None: 1 / sqrt(K). T5 uses 1."""
    temperature: Annotated[float, Field(ge=0)] = 0.0
    """Queries at position p are multiplied by 1 + temperature ln(1 + floor((p + 1) / temperature_floor)), against
    weights that spread over a long past (Nakanishi 2025, arXiv:2501.19399; Llama 4: 0.1)."""
    temperature_floor: Annotated[int, Field(ge=1)] = 8192
    """Tokens to the first such step, and from each to the next."""
    position: Annotated[PositionConfig | None, part("position")] = None
    """Rotation or bias of this mixer's own; None: the family's choice."""

    def build(self, slot: Slot) -> Attention:
        return Attention(self, slot)

    def for_memory(self) -> AttentionConfig:
        """Without window, sinks, chunks and positions, which belong to one sequence."""
        alone = {"window": None, "sinks": 0, "chunk": None, "temperature": 0.0, "position": None}
        return self.model_copy(update=alone)


class Attention(Sublayer):
    """(B, T, D) -> (B, T, D). See AttentionConfig for the choices and the module docstring for the shapes."""

    def __init__(self, config: AttentionConfig, slot: Slot) -> None:
        super().__init__()
        self.config, self.where = config, slot.where
        self.causal, self.cross = slot.causal, slot.memory_dim is not None
        self.heads = config.heads or slot.heads
        self.kv_heads = config.kv_heads or self.heads
        if config.head_dim is None and slot.dim % self.heads:
            raise ConfigError(
                f"dim {slot.dim} is not a multiple of heads {self.heads}; change one, or set head_dim", slot.where
            )
        if self.heads % self.kv_heads:
            raise ConfigError(
                f"heads {self.heads} is not a multiple of kv_heads {self.kv_heads}; "
                f"choices: {', '.join(str(g) for g in range(1, self.heads + 1) if self.heads % g == 0)}",
                slot.where,
            )
        if config.sinks and config.window is None:
            raise ConfigError("sinks are kept outside a window: set window too", slot.where)
        for name in ("window", "chunk", "temperature"):
            if self.cross and getattr(config, name):
                raise ConfigError(f"a {name} has no meaning between two sequences: leave {name} unset", slot.where)
        memory_dim = slot.memory_dim or slot.dim
        self.key_dim = config.head_dim or slot.dim // self.heads
        self.value_dim = config.value_dim or self.key_dim
        self.scale = self.key_dim**-0.5 if config.scale is None else config.scale
        self.q_width, self.k_width = self.heads * self.key_dim, self.kv_heads * self.key_dim
        self.v_width = self.kv_heads * self.value_dim
        self._std, self._gain = slot.std(slot.dim), slot.branch_gain
        self._memory_std, self._out_std = slot.std(memory_dim), slot.output_std(self.heads * self.value_dim)

        if self.cross:
            self.q = nn.Linear(slot.dim, self.q_width, bias=config.bias)
            self.kv = self._projection(memory_dim, self.k_width + self.v_width, keys=0)
        else:
            self.qkv = self._projection(slot.dim, self.q_width + self.k_width + self.v_width, keys=self.q_width)
        self.out = nn.Linear(self.heads * self.value_dim, slot.dim, bias=config.out_bias)
        self.wide_norm = config.qk_norm_over == "all"
        widths = (self.q_width, self.k_width) if self.wide_norm else (self.key_dim, self.key_dim)
        self.q_norm = config.qk_norm.build(widths[0]) if config.qk_norm is not None else None
        self.k_norm = config.qk_norm.build(widths[1]) if config.qk_norm is not None else None
        self.sink_logit = nn.Parameter(torch.empty(self.heads)) if config.sink_logit else None
        gates = {"none": 0, "head": self.heads, "elementwise": self.heads * self.value_dim}[config.gate]
        self.gate = nn.Linear(slot.dim, gates, bias=config.bias) if gates else None
        if config.position is not None and (self.cross or config.position.place == "input"):
            name = config.position.registered_name
            raise ConfigError(
                f"'{name}' has no meaning between two sequences; leave it unset"
                if self.cross
                else f"'{name}' is added at the input, not in a mixer; choices: rope, rope2d, alibi, t5_bias, none",
                f"{slot.where}.position",
            )
        position = config.position if config.position is not None else slot.position
        self.rotary = self.bias = None
        if position is not None and not self.cross and position.place in ("rotary", "bias"):
            module = position.build(slot.at(heads=self.heads, dim=self.heads * self.key_dim))
            self.rotary = module if position.place == "rotary" else None
            self.bias = module if position.place == "bias" else None
        self.undecayed = ("sink_logit",)
        self.reset_parameters()

    def _projection(self, inputs: int, outputs: int, keys: int) -> nn.Linear:
        """A fused projection whose keys start at output `keys`."""
        if self.config.bias and not self.config.key_bias:
            return PartialBiasLinear(inputs, outputs, start=keys, count=self.k_width)
        return nn.Linear(inputs, outputs, bias=self.config.bias)

    def reset_parameters(self) -> None:
        if self.cross:
            init_linear(self.q, self._std)
            init_linear(self.kv, self._memory_std)
        else:
            init_linear(self.qkv, self._std)
        with torch.no_grad():
            (self.kv if self.cross else self.qkv).weight[-self.v_width :].mul_(self._gain)
            # Whatever `scale` is, the scores start at the size that 1 / sqrt(K) gives: T5's queries at (D K)^-0.5.
            (self.q if self.cross else self.qkv).weight[: self.q_width].mul_(self.key_dim**-0.5 / self.scale)
        init_linear(self.out, self._out_std)
        if self.gate is not None:
            init_linear(self.gate, self._std)
        if self.sink_logit is not None:
            nn.init.zeros_(self.sink_logit)

    def forward(self, x: Tensor, context: Context, state: Any = None) -> Tensor:
        check_row(x, context, self.where)
        b, t, _ = x.shape
        q, held, visible, bias = (self._read_memory if self.cross else self._read_self)(x, context, state)
        options: dict[str, Any] = {"scale": self.scale, "bias": bias, "softcap": self.config.softcap}
        options["sink_logit"] = self.sink_logit
        name = f"{self.where}.attention"
        if context.record is not None and context.record.wants(name):
            context.record.add(name, attention_maps(q, held.keys, visible, **options))  # (B, H, T, S)
        dropout = self.config.dropout if self.training else 0.0
        y = attention(q, held.keys, held.values, visible, dropout=dropout, **options)  # (B, H, T, V)
        y = y.transpose(1, 2)  # (B, T, H, V)
        if self.gate is not None:
            y = y * torch.sigmoid(self.gate(x)).unflatten(-1, (self.heads, -1))  # (B, T, H, V or 1)
        return self.out(y.reshape(b, t, self.heads * self.value_dim))  # (B, T, D)

    def step(self, state: Any) -> Step | None:
        config = self.config
        unusual = (self.gate, config.softcap, self.sink_logit, self.bias, config.chunk, config.temperature or None)
        if self.wide_norm or any(choice is not None for choice in unusual):
            return None
        if self.cross:
            return self._cross_step(state)
        if not isinstance(state, KVState | WindowState) or state.tags:
            return None
        heads, groups, both = self.heads, self.kv_heads, self.heads + self.kv_heads
        key_dim, value_dim, turned = self.key_dim, self.value_dim, self.q_width + self.k_width
        fused = self.qkv.plain() if isinstance(self.qkv, PartialBiasLinear) else self.qkv
        qkv, out, q_norm, k_norm = few_rows(fused), few_rows(self.out), self.q_norm, self.k_norm
        rotary: Any = self.rotary

        def step(x: Tensor, context: Context) -> Tensor:
            n = x.shape[0]
            made = qkv(x)  # (N, H K + G K + G V)
            qk = made.narrow(1, 0, turned).view(n, both, 1, key_dim)  # (N, H + G, 1, K)
            v = made.narrow(1, turned, self.v_width).view(n, groups, 1, value_dim)
            if q_norm is not None and k_norm is not None:
                qk = torch.cat((q_norm(qk.narrow(1, 0, heads)), k_norm(qk.narrow(1, heads, groups))), dim=1)
            if rotary is not None:
                assert context.positions is not None
                qk = rotary.turn(qk, context.positions, context)
            q, k = qk.narrow(1, 0, heads), qk.narrow(1, heads, groups)  # (N, H, 1, K), (N, G, 1, K)
            keys, values = state.append(k, v)  # (N, G, S, K), (N, G, S, V)
            return out(one_query_attention(q, keys, values, self.scale).reshape(n, -1))  # (N, D)

        return step

    def _cross_step(self, state: Any) -> Step | None:
        if state.keys is None or state.mask is not None:
            return None

        to_query, out = few_rows(self.q), few_rows(self.out)

        def step(x: Tensor, _: Context) -> Tensor:
            n = x.shape[0]
            q = to_query(x).view(n, self.heads, 1, self.key_dim)  # (N, H, 1, K)
            q = q if self.q_norm is None else self.q_norm(q)
            state.advance(1, None)
            y = one_query_attention(q, state.keys, state.values, self.scale)  # (N, H, 1, V)
            return out(y.reshape(n, -1))  # (N, D)

        return step

    def _read_self(
        self, x: Tensor, context: Context, state: Any
    ) -> tuple[Tensor, Keys, Visibility, BiasFunction | None]:
        b, t, _ = x.shape
        qkv = self.qkv(x)  # (B, T, H K + G K + G V)
        if self.q_width == self.k_width == self.v_width and not self.wide_norm:
            q, k, v = qkv.view(b, t, 3, self.heads, self.key_dim).permute(2, 0, 3, 1, 4).unbind(0)  # 3 (B, H, T, K)
            if self.q_norm is not None and self.k_norm is not None:
                q, k = self.q_norm(q), self.k_norm(k)
        else:
            q, k, v = qkv.split((self.q_width, self.k_width, self.v_width), dim=-1)
            q = self._heads(q, self.heads, self.q_norm)  # (B, H, T, K)
            k = self._heads(k, self.kv_heads, self.k_norm)  # (B, G, T, K)
            v = v.view(b, t, self.kv_heads, self.value_dim).transpose(1, 2)  # (B, G, T, V)
        positions = None
        if self.rotary is not None or self.bias is not None or self.config.temperature:
            seen = state.seen if state is not None else None
            positions = token_positions(t, context, offset=seen, device=x.device)  # (T,) or (B, T)
        if self.rotary is not None:
            q, k = self.rotary(q, k, positions, context)
        if self.config.temperature and positions is not None:
            q = self._sharpened(q, positions)
        if state is not None and context.documents is not None and (self.config.sinks or self.config.chunk):
            kept = "sinks" if self.config.sinks else "chunks"
            raise ValueError(
                f"{self.where}: a state keeps the {kept} of one document; give each document its own state"
            )
        held = held_keys(
            k,
            v,
            context,
            state,
            index=lambda: self._index(t, context, x.device),
            positions=positions if self.bias is not None else None,
            where=self.where,
        )
        config = self.config
        visible = visibility(
            held, context, causal=self.causal, window=config.window, sinks=config.sinks, chunk=config.chunk
        )
        return q, held, visible, self._bias(positions, held.tags.get("positions"))

    def _read_memory(self, x: Tensor, context: Context, state: Any) -> tuple[Tensor, Keys, Visibility, None]:
        b, t, _ = x.shape
        q = self._heads(self.q(x), self.heads, self.q_norm)  # (B, H, T, K)
        if state is None or state.keys is None:
            if context.memory is None:
                raise ValueError(f"{self.where}: cross attention needs context.memory (B, S, D), got None")
            k, v = self.kv(context.memory).split((self.k_width, self.v_width), dim=-1)
            k = self._heads(k, self.kv_heads, self.k_norm)  # (B, G, S, K)
            v = v.view(*v.shape[:2], self.kv_heads, self.value_dim).transpose(1, 2)  # (B, G, S, V)
            mask = context.memory_mask
            check_mask(mask, b, context.memory.shape[1], "memory_mask")
            if state is not None:
                state.fill(k, v, mask)
        else:
            k, v, mask = state.keys, state.values, state.mask
        if state is not None:
            state.advance(t, context.token_mask)
        index = torch.arange(t, device=x.device)
        held = Keys(k, v, torch.arange(k.shape[2], device=x.device), mask, index, everything=False, tags={})
        return q, held, Visibility(query_index=index, key_index=held.index, key_mask=mask), None

    def _heads(self, x: Tensor, heads: int, norm: nn.Module | None) -> Tensor:
        """(B, T, heads K) -> (B, heads, T, K), with the norm where it belongs."""
        if norm is not None and self.wide_norm:
            x = norm(x)
        x = x.view(*x.shape[:2], heads, self.key_dim).transpose(1, 2)
        return x if norm is None or self.wide_norm else norm(x)

    def _sharpened(self, q: Tensor, positions: Tensor) -> Tensor:
        """Queries (B, H, T, K) at positions (T,) or (B, T) times their factors."""
        steps = (positions + 1) // self.config.temperature_floor
        factor = 1.0 + self.config.temperature * steps.to(torch.promote_types(q.dtype, torch.float32)).log1p()
        factor = factor if factor.dim() == 1 else factor[:, None]  # (T,) or (B, 1, T)
        return (q * factor[..., None]).to(q.dtype)

    @staticmethod
    def _index(t: int, context: Context, device: torch.device) -> Tensor:
        """Index (T,) or (B, T) of each token among the real ones of its row, or of its document, with its own sinks."""
        mask, documents = context.token_mask, context.documents
        if documents is not None:
            alone = Context(token_mask=mask, documents=documents)
            return context.once(("index", documents, mask), lambda: token_positions(t, alone, device=device))
        return context.once(("index", t, device, mask), lambda: Visibility.row_index(t, mask, 0, device))

    def _bias(self, queries: Tensor | None, keys: Tensor | None) -> BiasFunction | None:
        """Bias of the scores by positions (T,) or (B, T) of the queries and (S,) or (B, S) of the keys."""
        module = self.bias
        if module is None or queries is None or keys is None:
            return None
        return lambda rows, columns: module(queries[..., rows], keys[..., columns])  # (H, t, s) or (B, H, t, s)

    def init_state(
        self, batch: int, max_len: int, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> KVState | WindowState | CrossState | None:
        if self.cross:
            return CrossState(batch, device)
        if not self.causal:
            return None
        sizes = (self.key_dim, self.value_dim)
        weight = self.out.weight
        device, dtype = device or weight.device, dtype or weight.dtype
        limits = [limit for limit in (self.config.window, self.config.chunk) if limit is not None]
        if limits:
            sinks = self.config.sinks
            return WindowState(batch, self.kv_heads, min(limits), *sizes, sinks=sinks, device=device, dtype=dtype)
        return KVState(batch, self.kv_heads, max_len, *sizes, device=device, dtype=dtype)

    def core_flops(self, batch: int, length: int, memory_length: int = 0) -> int:
        """Scores and weighted sum, 2 a multiply-add. The causal triangle counts as a full square, and a window or a
        chunk as the keys of a query in the middle of a long row."""
        keys = memory_length if self.cross else self._reach(length)
        return self._pair_flops() * batch * length * keys

    def hidden_flops(self, batch: int, length: int, memory_length: int = 0) -> int:
        seen = length * memory_length if self.cross else self._seen_pairs(length)
        return self.core_flops(batch, length, memory_length) - self._pair_flops() * batch * seen

    def step_flops(self, batch: int, length: int, memory_length: int = 0) -> int:
        keys = memory_length if self.cross else self._seen_pairs(length) - self._seen_pairs(length - 1)
        return self._pair_flops() * batch * keys

    def _pair_flops(self) -> int:
        """Of one query and one key, in all heads."""
        return 2 * self.heads * (self.key_dim + self.value_dim)

    def _reach(self, length: int) -> int:
        """Most keys that a query of a row of `length` tokens sees."""
        window, chunk = self.config.window, self.config.chunk
        if window is not None:
            window = (window if self.causal else 2 * window - 1) + self.config.sinks
        return min(limit for limit in (length, window, chunk) if limit is not None)

    def _seen_pairs(self, length: int) -> int:
        """Pairs of a query and a key that it sees, in a row of `length` tokens."""
        config = self.config
        return seen_pairs(length, causal=self.causal, window=config.window, sinks=config.sinks, chunk=config.chunk)
