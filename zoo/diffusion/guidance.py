"""Classifier-free guidance. Ho & Salimans 2022, arXiv:2207.12598.

    out = out(no class) + scale (out(class) - out(no class));  1: the class alone, above 1: more of it

Both answers come from one batch of twice the rows. A learned variance is the class's own, unmixed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from zoo.diffusion.process import Denoiser

__all__ = ["guided"]


def guided(model: Any, labels: Tensor, scale: float = 1.0, *, channels: int | None = None) -> Denoiser:
    """The denoiser of labels (B,) for a model(x, t, labels) that has a `null_label`.

    At scale 1 it is the model itself, called once. channels: how many of the output's first channels are mixed; None:
    as many as x has. facebookresearch/DiT samples with 3 of 4, to reproduce its published figures.
    """
    if scale == 1.0:
        return lambda x, t: model(x, t, labels.to(x.device))

    def denoise(x: Tensor, t: Tensor) -> Tensor:
        ours = labels.to(x.device)
        both = torch.cat((ours, torch.full_like(ours, model.null_label)))  # (2 B,)
        out = model(torch.cat((x, x)), torch.cat((t, t)), both)  # (2 B, C or 2 C, H, W)
        told, untold = out.chunk(2)
        mixed = x.shape[1] if channels is None else channels
        head = torch.lerp(untold[:, :mixed], told[:, :mixed], scale)
        return torch.cat((head, told[:, mixed:]), dim=1)  # (B, C or 2 C, H, W)

    return denoise
