"""From log-mel frames to tokens: two convolutions. Radford et al. 2022, arXiv:2212.04356, section 2.2.

x (B, M, F) -> conv 3, stride s1 -> GELU -> conv 3, stride s2 -> GELU -> (B, T, D)       T = ceil(ceil(F / s1) / s2)
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["AudioStem"]


class AudioStem(nn.Module):
    """Features (B, M, F) and their mask (B, F) or None -> tokens (B, T, D) and their mask (B, T) or None.

    Features are taken in the weights' dtype. A clip padded on the right gives the tokens that it gives alone: masked
    frames count as the zeros that the convolutions pad with, before each of them. Weights start normal, cut at two
    deviations, with variance 1 / inputs.
    """

    def __init__(self, mels: int, dim: int, strides: tuple[int, int] = (1, 2)) -> None:
        super().__init__()
        self.strides = strides
        self.first = nn.Conv1d(mels, dim, 3, stride=strides[0], padding=1)
        self.second = nn.Conv1d(dim, dim, 3, stride=strides[1], padding=1)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for conv in (self.first, self.second):
            std = conv.weight[0].numel() ** -0.5
            nn.init.trunc_normal_(conv.weight, std=std, a=-2 * std, b=2 * std)
            if conv.bias is not None:
                nn.init.zeros_(conv.bias)

    def mask(self, mask: Tensor | None) -> Tensor | None:
        """The mask (B, T) of the tokens of frames with a mask (B, F)."""
        return None if mask is None else mask[:, :: self.strides[0]][:, :: self.strides[1]]

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        if x.dim() != 3 or x.shape[1] != self.first.in_channels or not x.is_floating_point():
            wanted, found = f"floating point (B, {self.first.in_channels}, F)", f"{x.dtype} of {tuple(x.shape)}"
            raise ValueError(f"features should be {wanted}, got {found}; see zoo.ops.log_mel")
        x = x.to(self.first.weight.dtype)
        if mask is not None:
            if mask.dtype != torch.bool or mask.shape != (x.shape[0], x.shape[2]):
                wanted, found = f"torch.bool of {(x.shape[0], x.shape[2])}", f"{mask.dtype} of {tuple(mask.shape)}"
                raise ValueError(f"the mask of features should be {wanted}, True = a real frame, got {found}")
            x = x.masked_fill(~mask[:, None], 0.0)
        x = F.gelu(self.first(x))  # (B, D, F / s1)
        if mask is not None:
            x = x.masked_fill(~mask[:, None, :: self.strides[0]], 0.0)
        x = F.gelu(self.second(x))  # (B, D, T)
        return x.transpose(1, 2).contiguous(), self.mask(mask)  # (B, T, D), (B, T); each norm would copy it else
