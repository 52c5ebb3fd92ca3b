"""When a row ends."""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.generation.config import GenerationConfig

__all__ = ["REASONS", "Stopping"]

REASONS = ("length", "eos", "stop")
"""Why a row ended, by code: `max_new_tokens` reached, an end token, a stop sequence."""


class Stopping:
    """New tokens (..., n) so far -> codes (...) int64: 0 the row goes on, else an index of REASONS."""

    def __init__(self, config: GenerationConfig, device: torch.device) -> None:
        self.eos = config.eos_ids
        self.stops = [torch.tensor(sequence, device=device) for sequence in config.stop]

    @property
    def kinds(self) -> int:
        """Tokens that may end one row."""
        return len(self.eos) + len(self.stops)

    def __call__(self, tokens: Tensor) -> Tensor:
        last = tokens[..., -1]  # (...)
        code = torch.zeros_like(last)
        for stop in self.stops:
            if tokens.shape[-1] >= stop.shape[0]:
                code.masked_fill_((tokens[..., -stop.shape[0] :] == stop).all(-1), 2)
        for eos in self.eos:
            code.masked_fill_(last == eos, 1)
        return code
