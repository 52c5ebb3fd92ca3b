"""Multimodal diffusion transformer: image and text as two streams that attend together. Esser et al. 2024,
arXiv:2403.03206 (Stable Diffusion 3).

    x (B, C, H, W) -> patches (B, h w, D) + positions;  text (B, S, E) -> c (B, S, D)
    t (B,), pooled text (B, P) -> condition (B, D), their sum -> shifts, scales and gates of both streams, all layers
    block   x, c <- x, c + gate * joint attention(modulated x, modulated c);  each: + gate * ffn(modulated)
    the last block only reads c;  x -> modulated norm, linear -> (B, C, H, W)

Positions are fixed sines and cosines of the place in a grid of `position_grid` patches a side, of which an image takes
the middle; coordinates are scaled so that the whole grid spans that of `image_size`.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.blocks.adaln import Modulation, modulate, plain_norm
from zoo.blocks.api import Context, FFNConfig, ModelConfig, NormConfig, Slot
from zoo.blocks.conditions import TimestepEmbedding
from zoo.blocks.embeddings import PatchEmbedding
from zoo.blocks.ffn.mlp import MLPConfig
from zoo.blocks.init import init_linear
from zoo.blocks.joint_attention import JointAttention
from zoo.blocks.norms import LayerNormConfig
from zoo.blocks.positions import sinusoid
from zoo.models.dit import unpatchify
from zoo.models.vit import Size
from zoo.registry import ConfigError, part, register, register_preset

__all__ = ["JointBlock", "MMDiT", "MMDiTConfig"]

_PAPER = "Esser et al. 2024, arXiv:2403.03206"


@register("model", "mmdit", paper=_PAPER)
class MMDiTConfig(ModelConfig):
    """Diffusion transformer told by a text: its tokens as a second stream, its pooled vector through the norms."""

    dim: Annotated[int, Field(ge=1)] = 384
    depth: Annotated[int, Field(ge=1)] = 6
    heads: Annotated[int, Field(ge=1)] = 6
    image_size: Size = (32, 32)
    patch_size: Size = (2, 2)
    channels: Annotated[int, Field(ge=1)] = 16
    text_dim: Annotated[int, Field(ge=1)] = 4096
    """Width E of the text's tokens."""
    pooled_dim: Annotated[int, Field(ge=1)] = 2048
    """Width P of the text's pooled vector."""
    position_grid: Annotated[int, Field(ge=1)] = 96
    """Most patches a side."""
    ffn: Annotated[FFNConfig, part("ffn")] = MLPConfig(activation="gelu_tanh")
    norm: Annotated[NormConfig, part("norm")] = LayerNormConfig()
    qk_norm: Annotated[NormConfig | None, part("norm")] = None
    """Over each head's queries and keys (SD 3.5: rmsnorm)."""
    init_std: Annotated[float, Field(gt=0)] | Literal["fan_in"] = "fan_in"

    def build(self) -> MMDiT:
        return MMDiT(self)


class JointBlock(nn.Module):
    """One layer over both streams. `last`: c is only read, and not returned."""

    def __init__(self, config: MMDiTConfig, slot: Slot, modulation: Modulation, *, last: bool) -> None:
        super().__init__()
        self.place, self.context_place = modulation.claim(6), modulation.claim(2 if last else 6)
        self.norm = plain_norm(config.norm, slot.dim)
        self.attention = JointAttention(slot, qk_norm=config.qk_norm, read_only=last)
        self.ffn = config.ffn.build(slot.at(where=f"{slot.where}.ffn"))
        self.context_ffn = None if last else config.ffn.build(slot.at(where=f"{slot.where}.context_ffn"))

    def forward(
        self, x: Tensor, c: Tensor, vectors: tuple[Tensor, ...], c_mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        shift, scale, gate, *rest = vectors[self.place]  # (B, 1, D) each
        c_shift, c_scale, *c_rest = vectors[self.context_place]
        y, d = self.attention(
            modulate(self.norm(x), shift, scale), modulate(self.norm(c), c_shift, c_scale), c_mask
        )  # (B, T, D), (B, S, D)
        x = self._fed(torch.addcmul(x, gate, y), self.ffn, rest, None)
        if d is None or self.context_ffn is None:
            return x, None
        return x, self._fed(torch.addcmul(c, c_rest[0], d), self.context_ffn, c_rest[1:], c_mask)

    def _fed(self, x: Tensor, ffn: nn.Module, vectors: list[Tensor], mask: Tensor | None) -> Tensor:
        shift, scale, gate = vectors
        return torch.addcmul(x, gate, ffn(modulate(self.norm(x), shift, scale), Context(token_mask=mask)))  # (B, T, D)


class MMDiT(nn.Module):
    """x (B, C, H, W), t (B,) in 0 ... 1000, text (B, S, E), pooled (B, P) -> (B, C, H, W).

    text_mask (B, S) bool, True = a real token; Stable Diffusion 3 gives none and attends to the padding too.
    """

    def __init__(self, config: MMDiTConfig) -> None:
        super().__init__()
        self.config = config
        dim = config.dim
        self.patches = PatchEmbedding(config.channels, config.patch_size, dim)
        self.base = max(self.patches.grid(*config.image_size))
        self.time = TimestepEmbedding(dim)
        self.pooled_up, self.pooled_down = nn.Linear(config.pooled_dim, dim), nn.Linear(dim, dim)
        self.text = nn.Linear(config.text_dim, dim)
        self.modulation = Modulation(dim, dim)
        slot = Slot(dim=dim, heads=config.heads, depth=config.depth, init_std=config.init_std)
        self.blocks = nn.ModuleList(
            JointBlock(config, slot.at(layer=i, where=f"mmdit.{i}"), self.modulation, last=i == config.depth - 1)
            for i in range(config.depth)
        )
        self.norm, self.final_place = plain_norm(config.norm, dim), self.modulation.claim(2)
        self.modulation.finish()
        rows, columns = config.patch_size
        self.head = nn.Linear(dim, rows * columns * config.channels)
        self._slot = slot
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for linear in (self.pooled_up, self.pooled_down, self.text):
            init_linear(linear, self._slot.std(linear.in_features))
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor, t: Tensor, text: Tensor, pooled: Tensor, text_mask: Tensor | None = None) -> Tensor:
        x, grid = self.patches(x)  # (B, h w, D)
        x = x + self.positions(grid, x)
        c: Tensor | None = self.text(text)  # (B, S, D)
        told = self.time(t) + self.pooled_down(F.silu(self.pooled_up(pooled)))  # (B, D)
        vectors = self.modulation(told)  # (B, 1, D) each
        for block in self.blocks:
            x, c = block(x, c, vectors, text_mask)  # (B, h w, D), (B, S, D)
        shift, scale = vectors[self.final_place]
        x = modulate(self.norm(x), shift, scale)
        return unpatchify(self.head(x), grid, self.config.patch_size)  # (B, C, H, W)

    def positions(self, grid: tuple[int, int], x: Tensor) -> Tensor:
        """(h w, D) for the middle h x w of the position grid: the column's sines and cosines, then the row's."""
        most = self.config.position_grid
        if max(grid) > most:
            raise ConfigError(
                f"an image of {grid[0]} x {grid[1]} patches exceeds position_grid={most}; raise it", "mmdit"
            )
        parts = []
        for count in grid:
            place = torch.arange(count, dtype=torch.float64, device=x.device) + (most - count) // 2
            scaled = place * (self.base / most)
            parts.append(sinusoid(scaled, self.config.dim // 2, convention="halves", dtype=torch.float64))
        rows, columns = parts  # (h, D/2), (w, D/2)
        h, w = grid
        table = torch.cat((columns.expand(h, -1, -1), rows[:, None].expand(-1, w, -1)), dim=-1)  # (h, w, D)
        return table.flatten(0, 1).to(x.dtype)


register_preset(
    MMDiTConfig,
    "sd3_medium",
    "Stable Diffusion 3 medium's denoiser over 16 x 128 x 128 latents.",
    _PAPER,
    {"dim": 1536, "depth": 24, "heads": 24, "image_size": 128, "position_grid": 192},
)
