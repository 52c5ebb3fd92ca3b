"""Prompts of any form, as one batch whose rows end in the same column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from zoo.blocks.positions.learned import LearnedPositions
from zoo.registry import ConfigError

__all__ = ["Prompts", "as_features", "check_room", "pack", "pad"]

Ids = Tensor | Sequence[int] | Sequence[Sequence[int]] | Sequence[Tensor]


@dataclass(frozen=True)
class Prompts:
    """Rows with their real tokens moved to the right end."""

    ids: Tensor
    """(B, T) int64, T the longest row's number of real tokens."""
    mask: Tensor | None
    """(B, T) bool, True = a real token; None where rows are equally long."""
    lengths: tuple[int, ...]
    """Real tokens of each row."""

    def rows(self) -> list[Tensor]:
        """The real tokens of each row (length,)."""
        width = self.ids.shape[1]
        return [row[width - length :] for row, length in zip(self.ids, self.lengths, strict=True)]


def pad(rows: Sequence[Tensor], *, left: bool, device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Rows (length,) as ids (B, T) int64 and a mask (B, T), None where nothing is padded."""
    lengths = [row.shape[0] for row in rows]
    width = max(lengths, default=0)
    if min(lengths, default=0) == width:
        return torch.stack([row.to(device, torch.int64) for row in rows]), None
    ids = torch.zeros(len(rows), width, dtype=torch.int64, device=device)
    mask = torch.zeros(len(rows), width, dtype=torch.bool, device=device)
    for b, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        place = slice(width - length, width) if left else slice(0, length)
        ids[b, place], mask[b, place] = row.to(device, torch.int64), True
    return ids, mask


def as_batch(ids: Any, mask: Tensor | None, name: str, device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Ids (B, T) int64 on the device with their mask, from a tensor (T,) or (B, T), a list, or a list of rows.

    Lists of unequal rows are padded on the right. Raises ConfigError.
    """
    forms = f"{name} should be integers of (T,) or (B, T), or a list of rows"
    if not isinstance(ids, Tensor):
        rows = list(ids)
        if not rows or isinstance(rows[0], int):
            ids = torch.tensor(rows, dtype=torch.int64)
        else:
            if mask is not None:
                raise ConfigError(f"a mask goes with a tensor {name} (B, T), got a list of rows; leave it out")
            made = [row if isinstance(row, Tensor) else torch.tensor(row, dtype=torch.int64) for row in rows]
            if any(row.dim() != 1 or row.is_floating_point() for row in made):
                raise ConfigError(f"{forms}, got rows of {[tuple(row.shape) for row in made]} {made[0].dtype}")
            return pad(made, left=False, device=device)
    if ids.dim() not in (1, 2) or ids.is_floating_point() or ids.dtype == torch.bool:
        raise ConfigError(f"{forms}, got {ids.dtype} of {tuple(ids.shape)}")
    ids = (ids[None] if ids.dim() == 1 else ids).to(device, torch.int64)  # (B, T)
    if mask is not None:
        mask = (mask[None] if mask.dim() == 1 else mask).to(device)
        if mask.dtype != torch.bool or mask.shape != ids.shape:
            wanted, found = f"torch.bool of {tuple(ids.shape)}", f"{mask.dtype} of {tuple(mask.shape)}"
            raise ConfigError(f"the mask of {name} should be {wanted}, got {found}")
    return ids, mask


def as_features(source: Any, mask: Tensor | None, name: str, device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Features (B, M, F) on the device with the mask (B, F) of their frames. Raises ConfigError."""
    if not isinstance(source, Tensor) or source.dim() not in (2, 3) or not source.is_floating_point():
        found = f"{source.dtype} of {tuple(source.shape)}" if isinstance(source, Tensor) else type(source).__name__
        raise ConfigError(f"{name} should be floating point features of (M, F) or (B, M, F), got {found}")
    source = (source[None] if source.dim() == 2 else source).to(device)  # (B, M, F)
    if mask is not None:
        mask = (mask[None] if mask.dim() == 1 else mask).to(device)
        if mask.dtype != torch.bool or mask.shape != (source.shape[0], source.shape[2]):
            wanted, found = (
                f"torch.bool of {(source.shape[0], source.shape[2])}",
                f"{mask.dtype} of {tuple(mask.shape)}",
            )
            raise ConfigError(f"the mask of {name} should be {wanted}, got {found}")
    return source, mask


def pack(ids: Any, mask: Tensor | None, *, vocab_size: int, device: torch.device, bos_id: int | None) -> Prompts:
    """One batch of any prompts, padding moved to the left and cut to what the longest row needs.

    Padding may stand anywhere: masked tokens count for nothing, so moving them changes no answer, and every row's last
    token lies in the last column. Empty rows become `bos_id`. Raises ConfigError.
    """
    ids, mask = as_batch(ids, mask, "ids", device)  # (B, T)
    lengths = [ids.shape[1]] * ids.shape[0] if mask is None else mask.sum(-1).tolist()
    if not lengths:
        raise ConfigError("ids holds no row; give one prompt or more")
    if min(lengths) == 0:
        if bos_id is None:
            raise ConfigError(f"prompt {lengths.index(0)} is empty; give a token, or bos_id for empty prompts")
        rows = [
            row if mask is None else row[keep] for row, keep in zip(ids, ids if mask is None else mask, strict=True)
        ]
        rows = [row if row.numel() else row.new_tensor([bos_id]) for row in rows]
        ids, mask = pad(rows, left=True, device=device)
        lengths = [max(length, 1) for length in lengths]
    if mask is not None:
        order = mask.to(torch.uint8).argsort(dim=-1, stable=True)[:, -max(lengths) :]  # real tokens last, in order
        ids, mask = ids.gather(1, order), mask.gather(1, order)
        mask = None if min(lengths) == max(lengths) else mask
    real = ids if mask is None else ids[mask]
    low, high = (int(x) for x in torch.aminmax(real))
    if low < 0 or high >= vocab_size:
        wrong = low if low < 0 else high
        raise ConfigError(f"ids holds {wrong}, outside the vocabulary of {vocab_size}; give ids 0 to {vocab_size - 1}")
    if mask is not None:
        ids = ids.masked_fill(~mask, 0)  # padding may hold any number; the embedding must find it
    return Prompts(ids, mask, tuple(lengths))


def check_room(model: nn.Module, before: int, new: int) -> None:
    """Raises ConfigError where a learned position table is too short for `before` + `new` tokens; the last token
    chosen is never read, so it needs no row."""
    for name, module in model.named_modules():
        if isinstance(module, LearnedPositions) and module.grid is None and not name.startswith("encoder"):
            rows = module.weight.shape[0] - module.offset
            if before + max(new - 1, 0) > rows:
                raise ConfigError(
                    f"max_new_tokens {new} after {before} tokens needs {before + max(new - 1, 0)} positions, and the "
                    f"learned table has {rows}; choices: at most {max(rows + 1 - before, 0)} new tokens, a shorter "
                    "prompt, or a model with a larger max_len"
                )
