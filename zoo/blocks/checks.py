"""What a forward pass is given, checked in one line before anything is computed."""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.blocks.api import Context

__all__ = ["check_mask", "check_row"]


def check_mask(mask: Tensor | None, batch: int, length: int, name: str) -> None:
    """Raises ValueError for a mask `name` of a context that is not bool of (B, T)."""
    if mask is not None and (mask.dtype != torch.bool or tuple(mask.shape) != (batch, length)):
        wanted, found = f"torch.bool of ({batch}, {length})", f"{mask.dtype} of {tuple(mask.shape)}"
        raise ValueError(f"context.{name} should be {wanted}, True = a real token, got {found}")


def check_row(x: Tensor, context: Context, where: str) -> None:
    """Raises ValueError unless x is (B, T, D), the context's mask bool and its documents integers of (B, T)."""
    if x.dim() != 3:
        raise ValueError(f"{where}: x should be (B, T, D), got {tuple(x.shape)}")
    batch, length, _ = x.shape
    check_mask(context.token_mask, batch, length, "token_mask")
    documents = context.documents
    if documents is not None:
        whole = not (documents.is_floating_point() or documents.is_complex())
        if not whole or tuple(documents.shape) != (batch, length):
            found = f"{documents.dtype} of {tuple(documents.shape)}"
            raise ValueError(f"context.documents should be integers of ({batch}, {length}), got {found}")
