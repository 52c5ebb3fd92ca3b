"""Jamba as published: of eight layers the fifth is attention and the others Mamba, and every second has experts.

No positions: the state space layers before the first attention tell where a token stands (Lieber et al. 2024,
section 6.5). Inside Mamba the steps, B and C are normalised. The counts of parameters are a test.
"""

from __future__ import annotations

from typing import Any

from zoo.models.gpt import GPTConfig
from zoo.registry import register_preset

__all__: list[str] = []

_NORM: dict[str, Any] = {"name": "rmsnorm", "eps": 1e-6}
_MAMBA: dict[str, Any] = {"name": "mamba", "inner_norm": _NORM}
_ATTENTION: dict[str, Any] = {"name": "attention", "kv_heads": 8, "bias": False, "out_bias": False}
_DENSE: dict[str, Any] = {"name": "swiglu", "hidden": 14336}
_EXPERTS: dict[str, Any] = {"name": "moe", "experts": 16, "top_k": 2, "expert": _DENSE, "normalise": False}

register_preset(
    GPTConfig,
    "jamba",
    "Jamba v0.1, 52 B, 12 B active.",
    "Lieber et al. 2024, arXiv:2403.19887",
    {
        "dim": 4096,
        "depth": 32,
        "heads": 32,
        "mixer": {"name": "hybrid", "pattern": [{**_MAMBA, "repeat": 4}, _ATTENTION, {**_MAMBA, "repeat": 3}]},
        "ffn": {"name": "hybrid", "pattern": [_DENSE, {**_EXPERTS, "balance": 1e-3}]},
        "norm": _NORM,
        "position": "none",
        "vocab_size": 65536,
        "max_len": 262144,
        "tie_embeddings": False,
    },
)
