"""T5's relative position bias: one learned number per head and bucket of distances (Raffel et al. 2019,
arXiv:1910.10683, section 2.1; buckets as in mesh_tensorflow transformer_layers.py).

With r = key - query: half of the buckets hold one distance each, the others grow with log(distance) up to
`max_distance`, beyond which all share the last. A two-sided slot gives half of the buckets to the past (r <= 0), half
to the future (r > 0); a causal one gives all to the past, and r > 0 falls in bucket 0.
"""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from zoo.blocks.api import PositionConfig, Slot
from zoo.registry import ConfigError, register

__all__ = ["T5Bias", "T5BiasConfig", "naive_t5_bucket", "t5_bucket"]


def t5_bucket(relative: Tensor, *, causal: bool, buckets: int = 32, max_distance: int = 128) -> Tensor:
    """Bucket numbers of relative positions key - query (any shape, int), int64. fp32 logarithm, as T5 itself."""
    if causal:
        offset, distance = 0, (-relative).clamp(min=0)
    else:
        buckets //= 2
        offset, distance = (relative > 0).long() * buckets, relative.abs()
    exact = buckets // 2
    growth = torch.log(distance.clamp(min=exact).float() / exact) / math.log(max_distance / exact)
    far = (exact + (growth * (buckets - exact)).long()).clamp(max=buckets - 1)
    return offset + torch.where(distance < exact, distance, far)


def naive_t5_bucket(relative: int, *, causal: bool, buckets: int = 32, max_distance: int = 128) -> int:
    """Bucket of one relative position, with whole numbers only, so that no rounding decides at a bucket's edge."""
    base = 0
    if causal:
        distance = max(-relative, 0)
    else:
        buckets //= 2
        base, distance = buckets if relative > 0 else 0, abs(relative)
    exact = buckets // 2
    if distance < exact:
        return base + distance
    bucket, steps = exact, buckets - exact
    # the next bucket j starts where (distance / exact)^steps >= (max_distance / exact)^j
    while bucket < buckets - 1:
        j = bucket + 1 - exact
        if distance**steps * exact**j < max_distance**j * exact**steps:
            break
        bucket += 1
    return base + bucket


@register("position", "t5_bias", paper="Raffel et al. 2019, arXiv:1910.10683")
class T5BiasConfig(PositionConfig):
    """A learned bias of the scores per head and bucket of distances, shared by the layers of a stack."""

    place: ClassVar[Literal["input", "rotary", "bias", "none"]] = "bias"

    num_buckets: Annotated[int, Field(ge=4, multiple_of=4)] = 32
    max_distance: Annotated[int, Field(ge=2)] = 128
    init_std: Annotated[float, Field(ge=0)] | None = None
    """Initial standard deviation; None: D^-0.5, as T5."""

    @model_validator(mode="after")
    def _reach(self) -> T5BiasConfig:
        if self.max_distance <= self.num_buckets // 2:  # a causal slot gives each of these distances its own bucket
            raise ConfigError(f"max_distance {self.max_distance} should exceed half of num_buckets {self.num_buckets}")
        return self

    def build(self, slot: Slot) -> T5Bias:
        """The table of the stack: the same module for every layer with the same heads and direction."""
        key = ("t5_bias", repr(self), slot.heads, slot.causal)
        if key not in slot.shared:
            slot.shared[key] = T5Bias(self, slot)
        module = slot.shared[key]
        assert isinstance(module, T5Bias)
        return module


class T5Bias(nn.Module):
    """q_positions (T,) or (B, T), k_positions (S,) or (B, S) -> bias (H, T, S) or (B, H, T, S).

    The table is (num_buckets, H), starts normal with `init_std` (D^-0.5), is not decayed, and gives the bias in its
    own dtype. T5 adds it to scores that are not divided by sqrt(K), and never in cross-attention.
    """

    undecayed: tuple[str, ...] = ("weight",)

    def __init__(self, config: T5BiasConfig, slot: Slot) -> None:
        super().__init__()
        self.causal, self.buckets, self.max_distance = slot.causal, config.num_buckets, config.max_distance
        self.init_std = slot.dim**-0.5 if config.init_std is None else config.init_std
        self.weight = nn.Parameter(torch.empty(config.num_buckets, slot.heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.init_std)

    def forward(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        # Every distance from max_distance on has the bias of max_distance: logarithms and bucket lookups are made for
        # these 2 M + 1 distances only, not for T x S pairs.
        reach = self.max_distance
        distances = torch.arange(-reach, reach + 1, device=q_positions.device)
        bucket = t5_bucket(distances, causal=self.causal, buckets=self.buckets, max_distance=reach)
        by_distance = F.embedding(bucket, self.weight)  # (2 M + 1, H)
        relative = k_positions[..., None, :] - q_positions[..., :, None]  # (T, S) or (B, T, S)
        bias = F.embedding(relative.clamp(-reach, reach) + reach, by_distance)  # (T, S, H) or (B, T, S, H)
        return bias.movedim(-1, -3)  # (H, T, S) or (B, H, T, S)

    def extra_repr(self) -> str:
        return f"buckets={self.buckets}, max_distance={self.max_distance}, causal={self.causal}"
