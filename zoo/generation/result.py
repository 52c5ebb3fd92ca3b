"""What generation returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["Generated"]


@dataclass(frozen=True)
class Generated:
    """N rows: the answers to each prompt side by side, the best first where there are beams."""

    sequences: list[Tensor]
    """(length,) int64 each: the prompt's real tokens, then the new ones."""
    new: list[Tensor]
    """(n,) int64 each: the new tokens, with the end token or stop sequence where there is one."""
    log_probs: list[Tensor]
    """(n,) each: log-probability of each new token under the model itself, before penalty, temperature and the like.
    With beams and a repetition penalty: what the search added up."""
    scores: Tensor
    """(N,) their sums; with beams divided by n ** length_penalty, -inf for an answer that does not exist."""
    finished: tuple[str, ...]
    """Why each row ended: "eos", "stop" or "length"."""
    pending: Tensor
    """(N, 1) int64, the last token of each row: the only one that `state` has not seen."""
    state: Any = None
    """With `keep_state`: give it to another call, whose `ids` start with `pending`."""

    def padded(self, value: int = 0) -> tuple[Tensor, Tensor]:
        """The new tokens as (N, longest), filled with `value`, and their lengths (N,)."""
        lengths = torch.tensor([row.shape[0] for row in self.new], device=self.scores.device)
        return torch.nn.utils.rnn.pad_sequence(self.new, batch_first=True, padding_value=value), lengths
