"""Ways to run rotary positions on rows longer than those of the training: a registered kind, "rope_scaling".

Each changes the frequencies w_i = base^(-2i / R), i < R/2, of a rotation over R channels; s is the factor by which
rows may grow, L the length of the training. YaRN also lengthens cos and sin, so that the logits grow by its square.
"""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from zoo.blocks.api import PartConfig
from zoo.registry import ConfigError, register

__all__ = [
    "DynamicNTKScalingConfig",
    "LinearScalingConfig",
    "Llama3ScalingConfig",
    "NTKScalingConfig",
    "NoScalingConfig",
    "RopeScalingConfig",
    "YarnScalingConfig",
    "inverse_frequencies",
]

Factor = Annotated[float, Field(ge=1)]
Length = Annotated[int, Field(ge=1)]


def inverse_frequencies(
    width: int, base: float | Tensor, *, dtype: torch.dtype = torch.float32, device: torch.device | str | None = None
) -> Tensor:
    """base^(-2i / R), i < R/2: (R/2,), or (..., R/2) for a base (..., 1)."""
    return base ** (torch.arange(0, width, 2, dtype=dtype, device=device) / -width)


class RopeScalingConfig(PartConfig):
    """Base of the kind. `plain` (R/2,) are the unscaled frequencies, in the dtype and on the device of the result."""

    kind: ClassVar[str] = "rope_scaling"
    uses_length: ClassVar[bool] = False
    """Whether the frequencies depend on the row's length at hand."""

    @property
    def scale(self) -> float:
        """Factor of cos and sin."""
        return 1.0

    def frequencies(self, plain: Tensor, base: float, length: Tensor | None = None) -> Tensor:
        """(R/2,), or (..., R/2) for `length` (..., 1), the number of tokens of each row."""
        raise NotImplementedError


@register("rope_scaling", "none", paper="Su et al. 2021, arXiv:2104.09864")
class NoScalingConfig(RopeScalingConfig):
    """Frequencies as trained."""

    def frequencies(self, plain: Tensor, base: float, length: Tensor | None = None) -> Tensor:
        return plain


@register("rope_scaling", "linear", paper="Chen et al. 2023, arXiv:2306.15595")
class LinearScalingConfig(RopeScalingConfig):
    """Position interpolation: every frequency divided by s."""

    factor: Factor = 4.0

    def frequencies(self, plain: Tensor, base: float, length: Tensor | None = None) -> Tensor:
        return plain / self.factor


@register("rope_scaling", "ntk", paper="Peng et al. 2023, arXiv:2309.00071")
class NTKScalingConfig(RopeScalingConfig):
    """NTK-aware: base s^(R / (R - 2)), so the lowest frequency is divided by s and the highest kept."""

    factor: Factor = 4.0

    def frequencies(self, plain: Tensor, base: float, length: Tensor | None = None) -> Tensor:
        return _rebased(plain, base * self.factor ** _ntk_exponent(plain))


@register("rope_scaling", "dynamic_ntk", paper="Peng et al. 2023, arXiv:2309.00071")
class DynamicNTKScalingConfig(RopeScalingConfig):
    """NTK-aware with the growth of the row at hand: base (s l / L - (s - 1))^(R / (R - 2)) for rows of l > L tokens.

    Each row, and each packed document, takes its own length, so that batching changes nothing. Keys that a state holds
    keep the angles of the length they were rotated at: beyond L, a run in several calls differs from one call.
    """

    uses_length: ClassVar[bool] = True

    factor: Factor = 1.0
    original_max_len: Length = 2048

    def frequencies(self, plain: Tensor, base: float, length: Tensor | None = None) -> Tensor:
        if length is None:
            return plain
        s, trained = self.factor, self.original_max_len
        growth = (s / trained) * length.to(plain.dtype).clamp(min=trained) - (s - 1)  # (..., 1), 1 up to L
        return _rebased(plain, base * growth ** _ntk_exponent(plain))


@register("rope_scaling", "yarn", paper="Peng et al. 2023, arXiv:2309.00071")
class YarnScalingConfig(RopeScalingConfig):
    """YaRN: high frequencies kept, low ones divided by s, a ramp between; cos and sin times 0.1 ln s + 1.

    A pair that turns `beta_fast` times or more over L tokens keeps its frequency, one that turns `beta_slow` times or
    less is interpolated.
    """

    factor: Factor = 4.0
    original_max_len: Length = 4096
    beta_fast: Annotated[float, Field(gt=0)] = 32.0
    beta_slow: Annotated[float, Field(gt=0)] = 1.0
    attention_factor: Annotated[float, Field(gt=0)] | None = None
    """Factor of cos and sin; None: 0.1 ln s + 1."""
    truncate: bool = True
    """Round the ends of the ramp outwards to whole pairs, as the authors' code does."""

    @model_validator(mode="after")
    def _order(self) -> Self:
        if self.beta_fast <= self.beta_slow:
            raise ConfigError(f"beta_fast {self.beta_fast} should exceed beta_slow {self.beta_slow}")
        return self

    @property
    def scale(self) -> float:
        return 0.1 * math.log(self.factor) + 1.0 if self.attention_factor is None else self.attention_factor

    def frequencies(self, plain: Tensor, base: float, length: Tensor | None = None) -> Tensor:
        width = 2 * plain.shape[-1]
        low, high = (self._pair_with(turns, width, base) for turns in (self.beta_fast, self.beta_slow))
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, width - 1)
        pairs = torch.arange(plain.shape[-1], dtype=plain.dtype, device=plain.device)
        ramp = ((pairs - low) / max(high - low, 0.001)).clamp(0, 1)  # 0 = keep, 1 = interpolate
        return plain / self.factor * ramp + plain * (1 - ramp)

    def _pair_with(self, turns: float, width: int, base: float) -> float:
        """The pair i, as a real number, that turns so often over L tokens."""
        return width * math.log(self.original_max_len / (turns * 2 * math.pi)) / (2 * math.log(base))


@register("rope_scaling", "llama3", paper="Grattafiori et al. 2024, arXiv:2407.21783")
class Llama3ScalingConfig(RopeScalingConfig):
    """Llama 3.1: as YaRN's blend, but a ramp in turns over L tokens instead of pairs, and cos and sin unscaled.

    Equal factors make a step of the ramp (Llama 4 Scout: 1 and 1).
    """

    factor: Factor = 8.0
    original_max_len: Length = 8192
    low_freq_factor: Annotated[float, Field(gt=0)] = 1.0
    high_freq_factor: Annotated[float, Field(gt=0)] = 4.0

    @model_validator(mode="after")
    def _order(self) -> Self:
        if self.high_freq_factor < self.low_freq_factor:
            raise ConfigError(
                f"high_freq_factor {self.high_freq_factor} should be at least low_freq_factor {self.low_freq_factor}"
            )
        return self

    def frequencies(self, plain: Tensor, base: float, length: Tensor | None = None) -> Tensor:
        turns = plain * (self.original_max_len / (2 * math.pi))
        low, high = self.low_freq_factor, self.high_freq_factor
        keep = ((turns - low) / max(high - low, 1e-9)).clamp(0, 1)
        return plain * keep + plain / self.factor * (1 - keep)


def _ntk_exponent(plain: Tensor) -> float:
    width = 2 * plain.shape[-1]
    if width < 4:
        raise ConfigError(f"NTK scaling needs a rotary width of 4 or more, got {width}; raise head_dim or fraction")
    return width / (width - 2)


def _rebased(plain: Tensor, base: float | Tensor) -> Tensor:
    return inverse_frequencies(2 * plain.shape[-1], base, dtype=plain.dtype, device=plain.device)
