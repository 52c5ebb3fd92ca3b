"""From ids and images to tokens: token and patch embeddings, class and register tokens, and resampled grids."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.registry import ConfigError

__all__ = ["PatchEmbedding", "PrefixTokens", "TokenEmbedding", "resample_grid"]


class TokenEmbedding(nn.Module):
    """ids (B, T) int -> (B, T, D); the table (vocabulary, D) may serve the output head too (`LanguageModelHead`).

    `scale` multiplies by sqrt(D) (Vaswani et al. 2017, arXiv:1706.03762, section 3.4). The table starts normal with
    `init_std`; None: 0.02, or D^-0.5 with `scale`. The padding id has a random row like any other: a zero row would
    hide a mixer that reads padding. Not decayed.
    """

    undecayed: tuple[str, ...] = ("weight",)
    is_table = True

    def __init__(self, vocab_size: int, dim: int, *, scale: bool = False, init_std: float | None = None) -> None:
        super().__init__()
        self.vocab_size, self.dim = vocab_size, dim
        self.factor = math.sqrt(dim) if scale else 1.0
        self.init_std = (dim**-0.5 if scale else 0.02) if init_std is None else init_std
        self.weight = nn.Parameter(torch.empty(vocab_size, dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.init_std)

    def forward(self, ids: Tensor) -> Tensor:
        x = F.embedding(ids, self.weight)  # (B, T, D)
        return x if self.factor == 1.0 else x * self.factor

    def extra_repr(self) -> str:
        return f"{self.vocab_size}, {self.dim}, factor={self.factor:g}"


class PatchEmbedding(nn.Module):
    """Images (B, C, height, width) -> tokens (B, h w, D), row by row, and the grid (h, w) of patches.

    Dosovitskiy et al. 2020, arXiv:2010.11929: each patch is flattened and projected. Images and patches of any shape;
    the weight is (D, C, patch height, patch width), as of a convolution with stride = patch. It starts normal, cut at
    two deviations, with variance 1 / (C patch pixels), and the bias at 0, as the authors' own.

    Raises ConfigError when the image has other channels or does not divide into patches.
    """

    def __init__(self, channels: int, patch_size: int | tuple[int, int], dim: int, *, bias: bool = True) -> None:
        super().__init__()
        patch = (patch_size, patch_size) if isinstance(patch_size, int) else tuple(patch_size)
        self.channels, self.patch_size, self.dim = channels, patch, dim
        self.weight = nn.Parameter(torch.empty(dim, channels, *patch))
        self.bias = nn.Parameter(torch.empty(dim)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        std = self.weight[0].numel() ** -0.5
        nn.init.trunc_normal_(self.weight, std=std, a=-2 * std, b=2 * std)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of patches of an image. Raises ConfigError unless both sides divide."""
        rows, columns = self.patch_size
        if height % rows or width % columns:
            fit = f"{math.ceil(height / rows) * rows} x {math.ceil(width / columns) * columns}"
            raise ConfigError(
                f"an image of {height} x {width} does not divide into patches of {rows} x {columns}; resize or pad it, "
                f"for example to {fit}, or change patch_size"
            )
        return height // rows, width // columns

    def forward(self, images: Tensor) -> tuple[Tensor, tuple[int, int]]:
        batch, channels, height, width = images.shape
        if channels != self.channels:
            raise ConfigError(f"an image of {channels} channels does not fit channels={self.channels}")
        grid = h, w = self.grid(height, width)
        rows, columns = self.patch_size
        if rows * columns <= 64:
            # One matrix product over reshaped patches. On one CPU thread, fp32, forward and backward, it took 0.5 of
            # the convolution's time for 2 x 2 patches, 0.3 to 0.8 for 4 x 4; at 16 x 16 it was equal, and 8 to 11 %
            # slower forward only, so that large patches keep the convolution, which timm uses for all.
            x = images.reshape(batch, channels, h, rows, w, columns).permute(0, 2, 4, 1, 3, 5)  # (B, h, w, C, ph, pw)
            return F.linear(
                x.reshape(batch, h * w, channels * rows * columns), self.weight.flatten(1), self.bias
            ), grid  # (B, h w, D)
        x = F.conv2d(images, self.weight, self.bias, stride=self.patch_size)  # (B, D, h, w)
        return x.flatten(2).transpose(1, 2), grid  # (B, h w, D)

    def extra_repr(self) -> str:
        return f"channels={self.channels}, patch_size={self.patch_size}, dim={self.dim}"


class PrefixTokens(nn.Module):
    """(B, T, D) -> (B, count + T, D): learned tokens before the others, each the same for every row.

    In this order: the class token (Devlin et al. 2018, arXiv:1810.04805), DeiT's distillation token (Touvron et al.
    2020, arXiv:2012.12877), registers (Darcet et al. 2023, arXiv:2309.16588). They start normal with `init_std` and
    are not decayed.
    """

    undecayed: tuple[str, ...] = ("weight",)

    def __init__(
        self, dim: int, *, class_token: bool = True, distilled: bool = False, registers: int = 0, init_std: float = 0.02
    ) -> None:
        super().__init__()
        if distilled and not class_token:
            raise ConfigError("a distillation token stands after the class token: set class_token too")
        self.count = int(class_token) + int(distilled) + registers
        self.init_std = init_std
        # Nothing is registered for no tokens: a parameter that no gradient reaches stops DistributedDataParallel.
        self.weight = nn.Parameter(torch.empty(self.count, dim)) if self.count else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.weight is not None:
            nn.init.normal_(self.weight, std=self.init_std)

    def forward(self, x: Tensor) -> Tensor:
        if self.weight is None:
            return x
        return torch.cat((self.weight.to(x.dtype).expand(x.shape[0], -1, -1), x), dim=1)  # (B, count + T, D)

    def extra_repr(self) -> str:
        return f"{self.count}"


def resample_grid(table: Tensor, old: tuple[int, ...], new: tuple[int, ...], *, antialias: bool = True) -> Tensor:
    """A table (h w, D) or (1, h w, D) of one vector a cell, for a grid of another shape; bicubic.

    The table is read as its true grid `old` = (h, w), square or not: equal counts such as (2, 8) and (4, 4) are
    different grids. An equal grid gives back the same tensor. `antialias` filters before going to fewer cells. A 1-D
    grid (h,) counts as (1, h). Computed in fp32 or better, returned in the table's dtype; differentiable.

    Raises ConfigError when the rows do not fill `old`, or for a grid of more than two axes.
    """
    if tuple(old) == tuple(new):
        return table
    if table.shape[-2] != math.prod(old):
        raise ConfigError(f"a table of {table.shape[-2]} rows does not fill the grid {tuple(old)}")
    if len(old) != len(new) or not 1 <= len(old) <= 2:
        raise ConfigError(f"cannot resample a grid {tuple(old)} to {tuple(new)}: both should have 1 or 2 axes")
    size_old, size_new = [(1, *grid) if len(grid) == 1 else tuple(grid) for grid in (old, new)]
    dim = table.shape[-1]
    wide = table if table.dtype == torch.float64 else table.float()
    cells = wide.reshape(1, *size_old, dim).permute(0, 3, 1, 2)  # (1, D, h, w)
    cells = F.interpolate(cells, size=size_new, mode="bicubic", align_corners=False, antialias=antialias)
    rows = cells.permute(0, 2, 3, 1).reshape(-1, dim).to(table.dtype)  # (h' w', D)
    return rows if table.dim() == 2 else rows[None]
