"""Qwen3-Next as published: three layers of Gated DeltaNet to one of attention. Its count of parameters is a test.

The part that predicts a second token ahead is left out. Value heads of Gated DeltaNet share keys in pairs; attention
has a gate on its outputs (Qiu et al. 2025, arXiv:2505.06708) and turns a quarter of each head's channels.
"""

from __future__ import annotations

from typing import Any

from zoo.models.gpt import GPTConfig
from zoo.registry import register_preset

__all__: list[str] = []

_NORM = {"name": "rmsnorm", "eps": 1e-6, "unit_offset": True}
_DELTA = {"name": "gated_delta", "heads": 16, "value_heads": 32, "head_dim": 128, "expand_v": 1.0, "norm_eps": 1e-6}
_ATTENTION = {
    "name": "attention",
    "kv_heads": 2,
    "head_dim": 256,
    "bias": False,
    "out_bias": False,
    "qk_norm": _NORM,
    "gate": "elementwise",
}
_EXPERT = {"name": "swiglu", "hidden": 512}
_QWEN3_NEXT: dict[str, Any] = {
    "dim": 2048,
    "depth": 48,
    "heads": 16,
    "vocab_size": 151936,
    "max_len": 262144,
    "mixer": {"name": "hybrid", "pattern": [{**_DELTA, "repeat": 3}, _ATTENTION]},
    "ffn": {
        "name": "moe",
        "experts": 512,
        "top_k": 10,
        "expert": _EXPERT,
        "shared": _EXPERT,
        "shared_gate": True,
        "balance": 1e-3,
    },
    "norm": _NORM,
    "position": {"name": "rope", "base": 1e7, "fraction": 0.25},
    "tie_embeddings": False,
}

register_preset(GPTConfig, "qwen3_next", "Qwen3-Next 80 B, 3 B active.", "Qwen Team 2025, Qwen3-Next", _QWEN3_NEXT)
