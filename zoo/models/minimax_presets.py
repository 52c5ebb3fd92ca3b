"""MiniMax-01 as published: seven layers of lightning attention, then one of softmax attention; experts in all of them.

DeepNorm, whose norms stand before the branches, so the first one lies on the embeddings. Softmax attention rotates half
of each head's channels. The counts of parameters are a test.
"""

from __future__ import annotations

from zoo.models.gpt import GPTConfig
from zoo.registry import register_preset

__all__: list[str] = []

register_preset(
    GPTConfig,
    "minimax_01",
    "MiniMax-01, 456 B, 46 B active.",
    "MiniMax 2025, arXiv:2501.08313",
    {
        "dim": 6144,
        "depth": 80,
        "heads": 64,
        "mixer": {
            "name": "hybrid",
            "pattern": [
                {"name": "lightning", "head_dim": 128, "repeat": 7},
                {"name": "attention", "kv_heads": 8, "head_dim": 128, "bias": False, "out_bias": False},
            ],
        },
        "ffn": {
            "name": "moe",
            "experts": 32,
            "top_k": 2,
            "expert": {"name": "swiglu", "hidden": 9216},
            "balance": 1e-3,
        },
        "norm": {"name": "rmsnorm", "eps": 1e-5},
        "residual": "deepnorm",
        "input_norm": True,
        "position": {"name": "rope", "base": 1e7, "fraction": 0.5},
        "vocab_size": 200064,
        "max_len": 10240000,
        "tie_embeddings": False,
    },
)
