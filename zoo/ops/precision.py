"""A part of a forward pass that autocast leaves alone: what half precision would spoil, as long sums and decays."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

__all__ = ["full_precision"]


def full_precision(x: Tensor) -> AbstractContextManager[object]:
    """A context without autocast on x's device; torch knows none for the meta device, where nothing is computed."""
    return nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)
