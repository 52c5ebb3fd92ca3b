"""Rows of unequal lengths as one tensor, filled up on the right."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from recipes.data.text.sequences import Sequences

__all__ = ["IGNORE", "length_mask", "pad"]

IGNORE = -100
"""Label of what is not scored."""


def pad(rows: Sequence[Sequence[int]], value: int, multiple: int = 1) -> tuple[Tensor, Tensor | None]:
    """ids (B, T) int64 and their mask (B, T) bool, True = a real token; None when nothing is padded.

    T is the longest row's length, rounded up to a multiple of `multiple`.
    """
    if multiple < 1:
        raise ValueError(f"multiple should be at least 1, got {multiple}")
    ids, lengths = Sequences.of(rows).batch(np.arange(len(rows)), value)
    short = -ids.shape[1] % multiple
    if short:
        ids = np.pad(ids, ((0, 0), (0, short)), constant_values=value)
    return torch.from_numpy(ids), length_mask(lengths, ids.shape[1])


def length_mask(lengths: np.ndarray, width: int) -> Tensor | None:
    """(B, T) bool, True below each length (B,); None when all are `width` long."""
    if not len(lengths) or int(lengths.min()) == width:
        return None
    return torch.from_numpy(np.arange(width) < lengths[:, None])
