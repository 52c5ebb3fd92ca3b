"""What a generator is told beside its noisy input: the time, and the class. (B,) -> (B, D).

    time    t -> [cos(t w), sin(t w)], w_i = 10000^(-i / (F/2)) -> linear, silu, linear
            (Nichol & Dhariwal 2021, arXiv:2102.09672; the order of openai/glide-text2im and facebookresearch/DiT)
    class   a table with one row more, for "no class", that classifier-free guidance needs (Ho & Salimans 2022,
            arXiv:2207.12598); while training each label becomes it with probability `dropout`

Both are computed in fp32 or better under autocast: neighbouring times of 1000 differ in the low digits only.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.ops.precision import full_precision
from zoo.registry import ConfigError

__all__ = ["LabelEmbedding", "TimestepEmbedding", "timestep_features"]


def timestep_features(t: Tensor, width: int, *, base: float = 10000.0) -> Tensor:
    """t (B,) of any numbers -> (B, width) in fp32, in fp64 for fp64 t; width even."""
    dtype = torch.float64 if t.dtype == torch.float64 else torch.float32
    index = torch.arange(width // 2, dtype=dtype, device=t.device)
    angles = t.to(dtype)[:, None] * torch.exp(index * (-math.log(base) / (width // 2)))  # (B, F/2)
    return torch.cat((angles.cos(), angles.sin()), dim=-1)  # (B, F)


class TimestepEmbedding(nn.Module):
    """t (B,) -> (B, D). Times are expected in 0 ... 1000, whole or not. Weights start normal with `init_std`."""

    def __init__(self, dim: int, *, width: int = 256, init_std: float = 0.02) -> None:
        super().__init__()
        self.width, self.init_std = width, init_std
        self.up, self.down = nn.Linear(width, dim), nn.Linear(dim, dim)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for linear in (self.up, self.down):
            nn.init.normal_(linear.weight, std=self.init_std)
            nn.init.zeros_(linear.bias)

    def forward(self, t: Tensor) -> Tensor:
        weight = self.up.weight
        with full_precision(weight):
            wide = t.double() if weight.dtype == torch.float64 else t
            features = timestep_features(wide, self.width)  # (B, F)
            return self.down(F.silu(self.up(features.to(weight.dtype))))  # (B, D)


class LabelEmbedding(nn.Module):
    """labels (B,) int -> (B, D); None: no class, for every row. The table starts normal with `init_std`; not decayed.

    The row after the last class stands for "no class", and is there where `dropout` is above 0: without dropout nothing
    would train it. Raises ConfigError for labels=None without that row.
    """

    undecayed: tuple[str, ...] = ("weight",)
    is_table = True

    def __init__(self, classes: int, dim: int, *, dropout: float = 0.1, init_std: float = 0.02) -> None:
        super().__init__()
        self.classes, self.dropout, self.init_std = classes, dropout, init_std
        self.weight = nn.Parameter(torch.empty(classes + (dropout > 0), dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.init_std)

    @property
    def null(self) -> int:
        """The label of "no class"."""
        if not self.dropout:
            raise ConfigError("there is no label for 'no class' without label dropout; set label_dropout above 0")
        return self.classes

    def forward(self, labels: Tensor | None, batch: int) -> Tensor:
        if labels is None:
            return self.weight[self.null].expand(batch, -1)  # (B, D)
        if self.training and self.dropout:
            dropped = torch.rand(labels.shape, device=labels.device) < self.dropout
            labels = torch.where(dropped, self.classes, labels)
        return F.embedding(labels, self.weight)  # (B, D)

    def extra_repr(self) -> str:
        return f"{self.classes}, {self.weight.shape[1]}, dropout={self.dropout}"
