"""Noise that does not depend on company: each sample draws from a generator of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

__all__ = ["SampleNoise"]


class SampleNoise:
    """noise(shape) -> standard normal (B, *shape) in fp32, one row for each seed.

    A row is the same in a batch of any size or order. It is drawn on the CPU and then moved, so every device gets the
    same numbers.
    """

    def __init__(self, seeds: Iterable[int], device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self.generators = [torch.Generator().manual_seed(int(seed)) for seed in seeds]
        if not self.generators:
            raise ValueError("seeds should hold one number for each sample, got none")

    def __len__(self) -> int:
        return len(self.generators)

    def __call__(self, shape: Sequence[int]) -> Tensor:
        rows = [torch.randn(*shape, generator=generator) for generator in self.generators]
        return torch.stack(rows).to(self.device)  # (B, *shape)
