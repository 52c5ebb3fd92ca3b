"""The loader of losses that have further targets than masked tokens: it counts these for the whole step as well."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from recipes.data.keys import seed_of
from recipes.data.loader import EpochLoader

__all__ = ["WindowLoader"]


class WindowLoader(EpochLoader):
    """As EpochLoader, and each batch also has, as tensors without dimensions,

    window_rows    float64, the rows of its whole optimizer step on all ranks
    window_tokens  float64, their real tokens, by the examples' `lengths`
    draw           int64, a number of (seed, epoch, batch, rank) to draw from
    """

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        plan: tuple[list[int], list[tuple[int, int]]] | None = None
        lengths = np.asarray(self.examples.lengths)  # type: ignore[attr-defined]
        for batch in super().__iter__():
            key = (self.seed, self.epoch) if self.shuffle else None
            order, bounds = plan = plan if plan is not None else self._plan(key)
            place = self.position - 1
            first = place // self.accumulate * self.accumulate
            window = [row for start, stop in bounds[first : first + self.accumulate] for row in order[start:stop]]
            batch["window_rows"] = torch.tensor(float(len(window)), dtype=torch.float64)
            batch["window_tokens"] = torch.tensor(float(lengths[window].sum()), dtype=torch.float64)
            batch["draw"] = torch.tensor(seed_of("draw", *(key or ()), place, self.rank))
            yield batch
