"""Rotary positions: channel pair i of queries and keys turns by p w_i, so that scores depend on distance only.

Su et al. 2021, arXiv:2104.09864, section 3.4. Layouts of the pairs: "half" joins channels i and i + R/2 (GPT-NeoX,
Llama in transformers), "interleaved" joins 2i and 2i + 1 (the paper, GPT-J, Llama's own code). Partial rotation: the
first R = fraction K channels turn, the others stay.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from zoo.blocks.api import Context, PositionConfig, Slot
from zoo.blocks.positions.indices import document_index
from zoo.blocks.positions.rotary_scaling import NoScalingConfig, RopeScalingConfig, inverse_frequencies
from zoo.registry import ConfigError, part, register

__all__ = ["Layout", "Rope", "RopeConfig", "naive_rope", "rotary_tables", "rotary_width", "rotate"]

Layout = Literal["half", "interleaved"]
Fraction = Annotated[float, Field(gt=0, le=1)]


def rotary_width(head_dim: int, fraction: float = 1.0, multiple: int = 2, where: str = "") -> int:
    """R = fraction K, the channels that turn. Raises ConfigError unless it is a whole multiple of `multiple`."""
    exact = head_dim * fraction
    width = round(exact)
    if abs(exact - width) > 1e-6 or width < multiple or width % multiple:
        raise ConfigError(
            f"rotary width {exact:g} (head width {head_dim} x fraction {fraction:g}) should be a multiple of "
            f"{multiple}; change head_dim, heads or fraction",
            where,
        )
    return width


def rotary_tables(angles: Tensor, layout: Layout, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """Angles (..., R/2) of the pairs -> cos and signed sin (..., R), laid out as `rotate` takes them."""
    cos, sin = angles.cos() * scale, angles.sin() * scale
    if layout == "half":
        return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)
    return torch.stack((cos, cos), dim=-1).flatten(-2), torch.stack((-sin, sin), dim=-1).flatten(-2)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, layout: Layout) -> Tensor:
    """x (..., T, K) with its first R channels turned by tables (..., T, R); in the tables' dtype, returned in x's.

    Three passes over x (a product, the swap of each pair's partners, a fused multiply-add).
    """
    width = cos.shape[-1]
    turning = x if x.shape[-1] == width else x[..., :width]
    if layout == "interleaved":
        swapped = turning.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    elif x.shape[-2] == 1:  # one token: two views joined take a fifth of a roll's time
        half = width // 2
        swapped = torch.cat((turning.narrow(-1, half, half), turning.narrow(-1, 0, half)), dim=-1)
    else:
        swapped = turning.roll(width // 2, -1)
    turned = torch.addcmul(turning * cos, swapped, sin).to(x.dtype)
    return turned if turning is x else torch.cat((turned, x[..., width:]), dim=-1)


@register("position", "rope", paper="Su et al. 2021, arXiv:2104.09864")
class RopeConfig(PositionConfig):
    """Rotation of queries and keys by their positions, with scalings for longer rows."""

    place: ClassVar[Literal["input", "rotary", "bias", "none"]] = "rotary"

    base: Annotated[float, Field(gt=1)] = 10000.0
    fraction: Fraction = 1.0
    """Share of each head's channels that turns: 0.25 in GPT-NeoX."""
    layout: Layout = "half"
    scaling: Annotated[RopeScalingConfig, part("rope_scaling")] = NoScalingConfig()

    def build(self, slot: Slot) -> Rope:
        """The slot's D / H is taken as the head width K; a mixer with another K passes slot.at(dim=H * K)."""
        return Rope(self, slot)


class Rope(nn.Module):
    """q (B, H, T, K), k (B, G, T, K), positions (T,) or (B, T) -> both rotated, in their own dtypes.

    Angles, cos and sin are fp32 (fp64 for fp64 queries) and applied as such, under any autocast and in a half
    precision model. Nothing is stored: the layers of one pass share the tables through the context, under a key that
    holds all they depend on.
    """

    def __init__(self, config: RopeConfig, slot: Slot) -> None:
        super().__init__()
        self.config, self.where = config, slot.where
        rotary_width(slot.dim // slot.heads, config.fraction, where=slot.where)
        self._key = repr(config)

    def forward(self, q: Tensor, k: Tensor, positions: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        cos, sin = self._tables(q, positions, context)
        return rotate(q, cos, sin, self.config.layout), rotate(k, cos, sin, self.config.layout)

    def turn(self, x: Tensor, positions: Tensor, context: Context) -> Tensor:
        """x (B, H, T, K) rotated, queries and keys side by side in one call. Only for passes whose positions, dtype and
        device are one: the tables are found by less."""
        key = (self._key, x.shape[-1])
        if key not in context.memo:
            context.memo[key] = self._tables(x, positions, context)
        cos, sin = context.memo[key]
        return rotate(x, cos, sin, self.config.layout)

    def _tables(self, q: Tensor, positions: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """cos and signed sin (T, R) or (B, 1, T, R), made once a pass."""
        width = rotary_width(q.shape[-1], self.config.fraction, where=self.where)
        dtype = torch.float64 if q.dtype == torch.float64 else torch.float32

        def make() -> tuple[Tensor, Tensor]:
            angles = self.angles(positions.to(q.device), width, dtype, context)  # (T, R/2) or (B, T, R/2)
            angles = angles.unsqueeze(-3) if angles.dim() == 3 else angles  # (B, 1, T, R/2)
            return rotary_tables(angles, self.config.layout, self.config.scaling.scale)

        # Tensors in the key stand for themselves (hash by identity) and stay alive with it.
        key = ("rope", self._key, width, positions, context.documents, context.token_mask, dtype, str(q.device))
        return context.once(key, make)

    def angles(self, positions: Tensor, width: int, dtype: torch.dtype, context: Context) -> Tensor:
        """Angles (T, R/2) or (B, T, R/2) of the pairs at positions (T,) or (B, T)."""
        config = self.config
        plain = inverse_frequencies(width, config.base, dtype=dtype, device=positions.device)
        length = _lengths(positions, context) if config.scaling.uses_length else None
        return positions[..., None].to(dtype) * config.scaling.frequencies(plain, config.base, length)

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.config)


def _lengths(positions: Tensor, context: Context) -> Tensor:
    """(1, 1), (B, 1, 1) or (B, T, 1): tokens of each row, or of each token's document."""
    if context.documents is None:
        return (positions.amax(-1, keepdim=True) + 1).unsqueeze(-1)
    index = document_index(context.documents, context.token_mask)  # (B, T)
    longest = torch.zeros_like(index).scatter_reduce(-1, index, positions.expand_as(index), "amax")
    return (longest.gather(-1, index) + 1).unsqueeze(-1)


def naive_rope(x: Tensor, positions: Tensor, base: float = 10000.0, layout: Layout = "interleaved") -> Tensor:
    """x (T, K) rotated by loops over tokens and pairs, in fp64: equation 15 of the paper."""
    y = x.double().clone()
    pairs = x.shape[1] // 2
    for t in range(x.shape[0]):
        for i in range(pairs):
            a, b = (2 * i, 2 * i + 1) if layout == "interleaved" else (i, i + pairs)
            angle = positions[t].double() * base ** (-2 * i / x.shape[1])
            y[t, a] = x[t, a] * angle.cos() - x[t, b] * angle.sin()
            y[t, b] = x[t, a] * angle.sin() + x[t, b] * angle.cos()
    return y
