"""Random numbers by key: what is drawn depends on the key alone, never on what was drawn before."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["generator", "python_random", "seed_of"]


def seed_of(*key: int | str) -> int:
    """32 bits from the sha256 of the key's parts (torch's CPU generator keeps no more than 32 bits of a seed)."""
    digest = hashlib.sha256(repr(key).encode()).digest()
    return int.from_bytes(digest[:4], "little")


def generator(*key: int | str) -> torch.Generator:
    """A torch generator of its own for the key."""
    return torch.Generator().manual_seed(seed_of(*key))


@contextmanager
def python_random(*key: int | str) -> Iterator[None]:
    """Seed Python's and numpy's global streams by the key, and put both back as they were afterwards.

    For libraries such as timm whose augmentations draw from the global streams.
    """
    import numpy as np

    python_state, numpy_state = random.getstate(), np.random.get_state()
    seed = seed_of(*key)
    random.seed(seed)
    np.random.seed(seed)
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
