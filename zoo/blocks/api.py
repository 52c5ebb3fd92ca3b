"""The words that every block speaks: Capability, Slot, Context, State, Sublayer and the config bases.

Shape letters, here and on the lines of every forward:
    B batch, T tokens, S memory or state length, D model width, H heads, G key/value heads,
    K key width per head, V value width per head, N state size, E experts, C condition width.

A part is two things: a frozen config with its own choices (registry.py) and the module that the config builds.
Facts of the place a part is put in (width, heads, causal or not, depth) arrive in a `Slot` when it is built and
never stand in its config, so any mixer drops into any family. What a forward pass carries beside x is a `Context`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Flag, auto
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self, TypeVar

import torch
from torch import Tensor, nn

from zoo.blocks.auxiliary import Auxiliary, collected
from zoo.registry import Config, ConfigError, names

if TYPE_CHECKING:
    from zoo.blocks.residual import Residual

Value = TypeVar("Value")


class Capability(Flag):
    """What a mixer can do; a slot's `needs` are compared with it when a stack is built."""

    CAUSAL = auto()  # the output at t sees tokens 0..t only
    BIDIRECTIONAL = auto()  # the output at t sees the whole row
    CROSS = auto()  # reads a second sequence, `context.memory`
    STEP = auto()  # carries a State: prefill in any split equals one pass
    PADDING = auto()  # masked tokens, anywhere in the row, never change the others
    DOCUMENTS = auto()  # packed documents (context.documents) never see each other
    MAPS = auto()  # can record attention maps


NOTHING = Capability(0)


@dataclass(frozen=True, kw_only=True)
class Slot:
    """Where a part is built: the family's facts, never options."""

    dim: int
    """Model width D."""
    heads: int = 1
    """The family's number of heads H."""
    max_len: int = 0
    """Longest row the family expects; 0 where nothing depends on it."""
    layer: int = 0
    depth: int = 1
    branches: int = 1
    """Residual branches in the whole stack; output projections start at `init_std / sqrt(branches)`."""
    init_std: float | Literal["fan_in"] = 0.02
    """Standard deviation of initial weights, or "fan_in" for 1 / sqrt(inputs) of each matrix."""
    branch_gain: float = 1.0
    """Factor on the initial value, output and feed-forward weights (DeepNorm's beta)."""
    dropout: float = 0.0
    """On each branch's output."""
    drop_path: float = 0.0
    """Stochastic depth of this layer's branches."""
    branch_weight: float = 1.0
    """Factor on a branch's output (1/2 for the feed-forwards of a macaron block)."""
    causal: bool = False
    memory_dim: int | None = None
    """Width of the second sequence; None for a mixer that reads only its own."""
    cond_dim: int | None = None
    """Width C of `context.cond`; None where the family has no condition."""
    grid: tuple[int, ...] | None = None
    """Grid of the tokens after `prefix`, as built, e.g. (height, width) in patches."""
    prefix: int = 0
    """Class and register tokens before the grid."""
    position: PositionConfig | None = None
    """The family's choice of positions; a mixer that can rotate or bias follows it unless its config says other."""
    needs: Capability = NOTHING
    first: bool = False
    """The first residual connection of a stack."""
    where: str = "model"
    shared: dict[Any, Any] = field(default_factory=dict)
    """Modules that several layers of one stack share, such as T5's bias table."""

    def at(self, **changes: Any) -> Self:
        """A copy with some facts changed."""
        return replace(self, **changes)

    def std(self, fan_in: int) -> float:
        """Initial standard deviation of a matrix with `fan_in` inputs."""
        return fan_in**-0.5 if self.init_std == "fan_in" else self.init_std

    def output_std(self, fan_in: int) -> float:
        """The same for a branch's output projection (Radford et al. 2019, section 2.3)."""
        return self.std(fan_in) * self.branch_gain * self.branches**-0.5


class Recorder:
    """Collects tensors by name during a forward pass, e.g. attention maps (B, H, T, S) under `<where>.attention`.

    `only` keeps the names that contain it. Recording never changes an output: maps are computed beside the fused path.
    """

    def __init__(self, only: str = "") -> None:
        self.only = only
        self.taps: dict[str, Tensor] = {}

    def wants(self, name: str) -> bool:
        return self.only in name

    def add(self, name: str, value: Tensor) -> None:
        self.taps[name] = value.detach()


@dataclass(slots=True)
class Context:
    """What a forward pass carries beside x (B, T, D). Every field may be absent."""

    positions: Tensor | None = None
    """(B, T) or (T,) int; None: the number of real tokens before each token (padding never counts)."""
    token_mask: Tensor | None = None
    """(B, T) bool, True = a real token; masked tokens may stand left, right or inside the row."""
    documents: Tensor | None = None
    """(B, T) int; packed documents never see each other. A document is a run of real tokens with one id: an id that
    comes back after another one starts a new document."""
    grid: tuple[int, ...] | None = None
    """Grid of the tokens after `prefix`, such as (height, width): 2-D positions, windows, scan orders."""
    prefix: int = 0
    memory: Tensor | None = None
    """(B, S, Dm), the second sequence of a cross mixer."""
    memory_mask: Tensor | None = None
    """(B, S) bool, True = a real token of the memory."""
    last_only: bool = False
    """Only the last column is wanted, x (B, 1, D): the last block's feed-forward then sees no other (prefill)."""
    cond: Tensor | Sequence[Tensor] | None = None
    """(B, C), the condition of adaLN; or the vectors (B, 1, D) that a shared `Modulation` made of it (adaln.py)."""
    counted: Tensor | None = None
    """(B, T) bool, the tokens that experts serve and count, where `token_mask` is left out because no real token sees
    the padding (it ends causal rows)."""
    aux: Auxiliary | None = field(default_factory=collected)
    """Where sublayers put auxiliary losses and loads; None where nobody asks (see auxiliary.py)."""
    record: Recorder | None = None
    memo: dict[Any, Any] = field(default_factory=dict)
    """What the layers of one pass share. `once` is for values without gradient, such as rotary angles. What has a
    gradient is set by the one layer that owns it, and set again when checkpointing recomputes that layer (RWKV-7)."""

    def once(self, key: Any, make: Callable[[], Value]) -> Value:
        """`make()` the first time `key` is asked for in this pass, the same value afterwards."""
        try:
            hash(key)
        except TypeError:  # a symbolic length, while exporting
            return make()
        if key not in self.memo:
            self.memo[key] = make()
        return self.memo[key]


class State(Protocol):
    """What a mixer keeps between calls: keys and values, a window, a convolution tail, a recurrent matrix."""

    @property
    def length(self) -> Tensor:
        """(B,) int: real tokens seen, per row."""
        ...

    def nbytes(self) -> int:
        """Bytes of the stored features (keys, values, states); counters and masks are not features."""
        ...

    def reorder(self, rows: Tensor) -> None:
        """Row i becomes what row `rows[i]` was; rows may repeat or be fewer (beam search)."""
        ...

    def clone(self) -> Self:
        """An independent copy: going on with one leaves the other as it is."""
        ...


Step = Callable[[Tensor, Context], Tensor]
"""(N, D) of one new token in each row -> (N, D), without gradients."""


class Sublayer(nn.Module):
    """A mixer or a feed-forward: (B, T, D) -> (B, T, D)."""

    where: str = ""
    pointwise: bool = False
    """Whether a token's output depends on that token alone."""
    undecayed: tuple[str, ...] = ()
    """Names of own parameters that weight decay must not touch, beside norms, biases and positions."""

    def forward(self, x: Tensor, context: Context, state: Any = None) -> Tensor:
        raise NotImplementedError

    def init_state(
        self, batch: int, max_len: int, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Any:
        """State for `batch` empty rows, or None for a sublayer that keeps none.

        Device and dtype are the weights' own by default; states of recurrences stay fp32 or better.
        """
        return None

    def step(self, state: Any) -> Step | None:
        """What `forward` does to one new, unpadded token of every row, in as little Python as possible; it reads and
        writes `state`. None where there is no such short cut: the whole stack then goes through `forward`."""
        return None

    def core_flops(self, batch: int, length: int, memory_length: int = 0) -> int:
        """FLOPs of the forward pass that no matrix product of a parameter shows: scores, scans (2 a multiply-add).

        Each query of a causal row counts as many keys as the last one, which sees the most.
        """
        return 0

    def hidden_flops(self, batch: int, length: int, memory_length: int = 0) -> int:
        """The part of `core_flops` that goes to pairs of tokens which a mask hides: nearly half of a causal square."""
        return 0

    def step_flops(self, batch: int, length: int, memory_length: int = 0) -> int:
        """`core_flops` of one new token of every row: with a state, as number `length` of its row."""
        return self.core_flops(batch, 1, memory_length)

    def idle_parameters(self) -> int:
        """Parameters that one token does not pass through: those of the experts that it leaves aside."""
        return 0


class PartConfig(Config):
    """Base of the configs of parts."""

    def at(self, layer: int, depth: int) -> Self:
        """The config for one layer; a hybrid returns another for another layer."""
        return self


class MixerConfig(PartConfig):
    """Base of token mixers. `capabilities` says what the mixer can do."""

    kind: ClassVar[str] = "mixer"
    capabilities: ClassVar[Capability] = NOTHING
    state_field: ClassVar[str | None] = None
    """The own field that the size of the state grows with, for matched comparisons; None: there is none. A whole
    number, or a share of D / H."""

    def for_memory(self) -> MixerConfig | None:
        """The same mixer without what has a meaning within one sequence only; None where it cannot read another."""
        return self if Capability.CROSS in self.capabilities else None

    def build(self, slot: Slot) -> Sublayer:
        raise NotImplementedError


class FFNConfig(PartConfig):
    """Base of feed-forwards."""

    kind: ClassVar[str] = "ffn"

    def scaled(self, share: float) -> Self:
        """The same with `share` of each hidden width that is given as a number."""
        hidden = getattr(self, "hidden", None)
        return self if hidden is None else self.model_copy(update={"hidden": round(hidden * share)})

    def build(self, slot: Slot) -> Sublayer:
        raise NotImplementedError


class NormConfig(PartConfig):
    """Base of norms over the last axis."""

    kind: ClassVar[str] = "norm"

    def build(self, dim: int) -> nn.Module:
        raise NotImplementedError


class PositionConfig(PartConfig):
    """Base of positions. `place` says who applies them.

    input:   the built module is called as module(x (B, T, D), context) and returns x with positions.
    rotary:  module(q (B, H, T, K), k (B, G, T, K), positions (T,) or (B, T), context) returns rotated q and k.
    bias:    module(q_positions, k_positions) returns a float bias (H, T, S) or (B, H, T, S) for the scores.
    none:    nothing is built.
    """

    kind: ClassVar[str] = "position"
    place: ClassVar[Literal["input", "rotary", "bias", "none"]] = "none"
    needs_grid: ClassVar[bool] = False
    """True where positions are rows and columns, which a text has not."""

    def build(self, slot: Slot) -> nn.Module:
        raise NotImplementedError


class ResidualConfig(PartConfig):
    """Base of residual connections."""

    kind: ClassVar[str] = "residual"
    normalised: ClassVar[bool] = False
    """True where the stream leaves each block with a norm on it, so a stack needs no final one."""

    def branch_gain(self, depth: int) -> float:
        """Factor on the initial value, output and feed-forward weights of a stack of `depth` layers."""
        return 1.0

    def build(self, slot: Slot, norm: NormConfig) -> Residual:
        raise NotImplementedError


class ModelConfig(Config):
    """Base of families."""

    kind: ClassVar[str] = "model"

    def build(self) -> nn.Module:
        raise NotImplementedError


def check(config: MixerConfig, slot: Slot) -> None:
    """Refuse a mixer that cannot do what the slot needs, in one line that lists those that can.

    Raises ConfigError.
    """
    from zoo import registry

    missing = slot.needs & ~config.capabilities
    if not missing:
        return
    fits = []
    for name in names("mixer"):
        made = registry.describe("mixer", name).make
        capabilities = getattr(made, "capabilities", None)
        if isinstance(capabilities, Capability) and not slot.needs & ~capabilities:
            fits.append(name)
    reasons = {
        Capability.CAUSAL: "cannot hide the future",
        Capability.BIDIRECTIONAL: "cannot see the whole row",
        Capability.CROSS: "cannot read a second sequence",
        Capability.STEP: "cannot go on token by token",
        Capability.PADDING: "cannot skip masked tokens",
        Capability.DOCUMENTS: "cannot keep packed documents apart",
        Capability.MAPS: "has no attention maps",
    }
    told = " and ".join(f"{text} (needs {flag.name})" for flag, text in reasons.items() if flag in missing)
    raise ConfigError(f"'{config.registered_name}' {told}. Fits: {', '.join(fits) or 'none'}", slot.where)
