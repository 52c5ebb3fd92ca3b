"""Batches of rows of similar lengths, in an order that is still drawn from (seed, epoch) alone."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from recipes.data.keys import seed_of
from zoo.registry import ConfigError

__all__ = ["Bucketed"]

Bounds = list[tuple[int, int]]


class _Measured(Protocol):
    """Examples that know their lengths and count their targets."""

    @property
    def lengths(self) -> np.ndarray: ...
    def __len__(self) -> int: ...
    def batch(self, indices: Sequence[int], key: tuple[int, ...] | None) -> dict[str, Tensor]: ...
    def targets(self, batch: dict[str, Tensor]) -> int: ...
    def count_targets(self, indices: Sequence[int], key: tuple[int, ...] | None) -> int: ...


class Bucketed:
    """Examples, and the order in which EpochLoader should take them (`recipes.data.loader.OrdersEpochs`).

    In training the rows are shuffled, each pool of `pool` batches is sorted by length, and the batches are shuffled:
    every row comes once an epoch, with rows about as long as itself. In evaluation all rows are sorted by length; a
    batch's "index" says which they are.

    tokens: a batch holds as many rows as fit in this many tokens (rows times the longest of them) instead of
    `batch_size` rows, which is then an upper limit; all rows are one pool then, so that every epoch has the same number
    of batches. A row longer than that is a batch of its own.
    """

    def __init__(self, examples: _Measured, *, pool: int = 100, tokens: int | None = None) -> None:
        if pool < 1:
            raise ConfigError(f"pool should be at least 1, got {pool}")
        if tokens is not None and tokens < 1:
            raise ConfigError(f"tokens should be at least 1, got {tokens}")
        self.examples = examples
        self.pool = pool
        self.tokens = tokens
        lengths = np.asarray(examples.lengths).reshape(len(examples), -1)  # (N, K): by the first, then by the second
        self._sizes = lengths.sum(axis=1)
        # One number a row in the order of its lengths.
        self._rank = np.unique(lengths, axis=0, return_inverse=True)[1].reshape(-1) if len(lengths) else self._sizes

    def __len__(self) -> int:
        return len(self.examples)

    def __getattr__(self, name: str) -> Any:
        if name == "examples":  # while it is being unpickled
            raise AttributeError(name)
        return getattr(self.examples, name)

    def batch(self, indices: Sequence[int], key: tuple[int, ...] | None) -> dict[str, Tensor]:
        return self.examples.batch(indices, key)

    def targets(self, batch: dict[str, Tensor]) -> int:
        return self.examples.targets(batch)

    def count_targets(self, indices: Sequence[int], key: tuple[int, ...] | None) -> int:
        return self.examples.count_targets(indices, key)

    @property
    def order_identity(self) -> int:
        """A number of the settings that the order depends on, beside the loader's own."""
        return seed_of("bucketed", self.pool, self.tokens or 0, seed_of(*map(int, np.bincount(self._rank))))

    def epoch_bounds(self, size: int, ranks: int) -> Bounds | None:
        """Global batches under a token budget, of at most `size` rows and at least one a rank; None: equal batches."""
        if self.tokens is None:
            return None
        sizes = self._sizes[np.argsort(self._rank, kind="stable")].tolist()
        bounds: Bounds = []
        start, longest = 0, 0
        for place, length in enumerate(sizes):
            longest_now = max(longest, length)
            count = place - start + 1
            if count > ranks and (count > size or -(-count // ranks) * longest_now > self.tokens):
                bounds.append((start, place))
                start, longest_now = place, length
            longest = longest_now
        if len(sizes) - start >= ranks or not bounds:
            bounds.append((start, len(sizes)))
        else:  # too few for a batch: they join the one before
            bounds[-1] = (bounds[-1][0], len(sizes))
        return bounds

    def epoch_order(self, key: tuple[int, ...] | None, bounds: Bounds) -> tuple[list[int], list[int]]:
        """(rows in order, order of the global batches): batch `bounds[i]` of the rows comes at the i-th place of the
        second list's order. Without a key, sorted by length."""
        if key is None:
            return np.argsort(self._rank, kind="stable").tolist(), list(range(len(bounds)))
        draw = np.random.default_rng(seed_of("buckets", *key))
        rows = draw.permutation(len(self))
        if self.tokens is not None:
            pools = [(0, len(rows))]
        else:
            edges = [start for start, _ in bounds[:: self.pool]] + [bounds[-1][1]] if bounds else []
            pools = list(pairwise(edges))
        for start, stop in pools:
            part = rows[start:stop]
            rows[start:stop] = part[np.argsort(self._rank[part], kind="stable")]
        return rows.tolist(), draw.permutation(len(bounds)).tolist()
