"""DiT as its authors build it, for parity and for speed: one adaLN projection a block, timm's attention and MLP.

Written after Peebles & Xie 2022, arXiv:2212.09748, with the names of facebookresearch/DiT, models.py, whose package is
not on PyPI. Its state dict is that of a checkpoint.
"""

from __future__ import annotations

import math

import torch
from timm.models.vision_transformer import Attention, Mlp, PatchEmbed
from torch import Tensor, nn

__all__ = ["OriginalDiT"]


def _modulated(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return x * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)  # (B, T, D)


def _adaln(dim: int, vectors: int) -> nn.Sequential:
    return nn.Sequential(nn.SiLU(), nn.Linear(dim, vectors * dim))


def _norm(dim: int) -> nn.LayerNorm:
    return nn.LayerNorm(dim, eps=1e-6, elementwise_affine=False)


class _Time(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(256, dim), nn.SiLU(), nn.Linear(dim, dim))

    def forward(self, t: Tensor) -> Tensor:
        frequencies = torch.exp(-math.log(10000) * torch.arange(128, dtype=torch.float32) / 128).to(t.device)
        angles = t[:, None].float() * frequencies[None]
        return self.mlp(torch.cat([angles.cos(), angles.sin()], dim=-1))  # (B, D)


class _Label(nn.Module):
    """Labels are dropped while training, as there."""

    def __init__(self, classes: int, dim: int, dropout: float) -> None:
        super().__init__()
        self.classes, self.dropout = classes, dropout
        self.embedding_table = nn.Embedding(classes + (dropout > 0), dim)

    def forward(self, labels: Tensor) -> Tensor:
        if self.training and self.dropout > 0:
            dropped = torch.rand(labels.shape[0], device=labels.device) < self.dropout
            labels = torch.where(dropped, self.classes, labels)
        return self.embedding_table(labels)  # (B, D)


class _Block(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = _norm(dim), _norm(dim)
        self.attn = Attention(dim, num_heads=heads, qkv_bias=True)
        self.mlp = Mlp(dim, 4 * dim)
        self.mlp.act = nn.GELU(approximate="tanh")
        self.adaLN_modulation = _adaln(dim, 6)

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = self.adaLN_modulation(c).chunk(6, dim=1)
        x = x + gate.unsqueeze(1) * self.attn(_modulated(self.norm1(x), shift, scale))  # (B, T, D)
        return x + mlp_gate.unsqueeze(1) * self.mlp(_modulated(self.norm2(x), mlp_shift, mlp_scale))


class _Final(nn.Module):
    def __init__(self, dim: int, outputs: int) -> None:
        super().__init__()
        self.norm_final, self.linear = _norm(dim), nn.Linear(dim, outputs)
        self.adaLN_modulation = _adaln(dim, 2)

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        shift, scale = self.adaLN_modulation(c).chunk(2, dim=1)
        return self.linear(_modulated(self.norm_final(x), shift, scale))  # (B, T, p p C)


class OriginalDiT(nn.Module):
    """x (B, C, H, H), t (B,), labels (B,) -> (B, 2 C, H, H). Weights start as torch.nn does."""

    def __init__(
        self,
        *,
        size: int = 32,
        patch: int = 2,
        channels: int = 4,
        dim: int = 1152,
        depth: int = 28,
        heads: int = 16,
        classes: int = 1000,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.patch, self.out_channels, self.side = patch, 2 * channels, size // patch
        self.x_embedder = PatchEmbed(size, patch, channels, dim)
        self.t_embedder = _Time(dim)
        self.y_embedder = _Label(classes, dim, dropout)
        self.pos_embed = nn.Parameter(_positions(self.side, dim), requires_grad=False)
        self.blocks = nn.ModuleList(_Block(dim, heads) for _ in range(depth))
        self.final_layer = _Final(dim, patch * patch * self.out_channels)

    def forward(self, x: Tensor, t: Tensor, labels: Tensor) -> Tensor:
        x = self.x_embedder(x) + self.pos_embed  # (B, T, D)
        c = self.t_embedder(t) + self.y_embedder(labels)  # (B, D)
        for block in self.blocks:
            x = block(x, c)
        x = self.final_layer(x, c)  # (B, T, p p C)
        x = x.reshape(len(x), self.side, self.side, self.patch, self.patch, self.out_channels)
        x = torch.einsum("nhwpqc->nchpwq", x)
        return x.reshape(len(x), self.out_channels, self.side * self.patch, self.side * self.patch)


def _positions(side: int, dim: int) -> Tensor:
    """(1, side side, D): sines and cosines of the column, then of the row."""
    frequencies = 10000.0 ** -(torch.arange(dim // 4, dtype=torch.float64) / (dim // 4))
    row, column = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    halves = []
    for place in (column, row):
        angles = place.reshape(-1, 1).double() * frequencies  # (side side, D / 4)
        halves += [angles.sin(), angles.cos()]
    return torch.cat(halves, dim=1).float()[None]
