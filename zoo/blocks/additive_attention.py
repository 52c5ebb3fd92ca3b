"""Additive attention: a query reads a memory through a small network. Bahdanau, Cho & Bengio 2014, arXiv:1409.0473.

score(s, h_j) = v' tanh(W s + U h_j);  weights = softmax over the real tokens j;  read = sum_j weights_j h_j
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from zoo.blocks.init import init_linear

__all__ = ["AdditiveAttention"]


class AdditiveAttention(nn.Module):
    """query (B, Q), memory (B, S, D) -> read (B, D) and weights (B, S); zeros for a row without real tokens.

    `keys` projects the memory once for all queries. `hidden` is the width of the network.
    """

    def __init__(self, query_dim: int, memory_dim: int, hidden: int) -> None:
        super().__init__()
        self.query = nn.Linear(query_dim, hidden)
        self.key = nn.Linear(memory_dim, hidden, bias=False)
        self.score = nn.Linear(hidden, 1, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for linear in (self.query, self.key, self.score):
            init_linear(linear, linear.in_features**-0.5)

    def keys(self, memory: Tensor) -> Tensor:
        """Memory (B, S, D) -> keys (B, S, hidden)."""
        return self.key(memory)

    def forward(self, query: Tensor, keys: Tensor, memory: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        scores = self.score(torch.tanh(keys + self.query(query)[:, None])).squeeze(-1)  # (B, S)
        if mask is None:
            weights = scores.softmax(-1)  # (B, S)
        else:
            empty = ~mask.any(-1, keepdim=True)  # (B, 1)
            weights = scores.masked_fill(~(mask | empty), -math.inf).softmax(-1).masked_fill(empty, 0.0)  # (B, S)
        return (weights[:, None] @ memory).squeeze(1), weights  # (B, D), (B, S)
