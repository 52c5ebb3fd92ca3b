"""Kimi Linear: three layers of Kimi Delta Attention to one of latent attention, none with positions. Kimi Team 2025,
arXiv:2510.26692. Each count of parameters is a test.

Of 27 layers the published checkpoint has latent attention in the 4th, 8th, ... 24th and in the last; the default layout
of transformers' class has it in the 5th, 9th, ... 25th, one layer less. Both are here.
"""

from __future__ import annotations

from typing import Any

from zoo.models.gpt import GPTConfig
from zoo.registry import register_preset

__all__: list[str] = []

_KDA = {"name": "kda", "heads": 32, "head_dim": 128, "norm_eps": 1e-5}
_MLA = {"name": "mla", "nope_dim": 128, "rope_dim": 64, "value_dim": 128, "kv_rank": 512}
_EXPERT = {"name": "swiglu", "hidden": 1024}
_MOE = {
    "name": "moe",
    "experts": 256,
    "top_k": 8,
    "expert": _EXPERT,
    "shared": _EXPERT,
    "scores": "sigmoid",
    "normalise": True,
    "scale": 2.446,
    "balance": 0.0,
    "bias_rate": 1e-3,
}


def _kimi(mixer: dict[str, Any]) -> dict[str, Any]:
    """The first layer's feed-forward is dense."""
    return {
        "dim": 2304,
        "depth": 27,
        "heads": 32,
        "vocab_size": 163840,
        "max_len": 1048576,
        "mixer": {"name": "hybrid", **mixer},
        "ffn": {"name": "hybrid", "first": [{"name": "swiglu", "hidden": 9216}], "pattern": [_MOE]},
        "norm": {"name": "rmsnorm", "eps": 1e-5},
        "position": "none",
        "tie_embeddings": False,
    }


_THREE = {**_KDA, "repeat": 3}
for _name, _summary, _mixer in (
    ("kimi_linear", "layout of transformers", {"pattern": [_MLA, _THREE], "layers": {0: _KDA}}),
    ("kimi_linear_48b_a3b", "layout as published", {"pattern": [_THREE, _MLA], "layers": {-1: _MLA}}),
):
    _title = f"Kimi Linear 49 B, 3 B active: {_summary}."
    register_preset(GPTConfig, _name, _title, "Kimi Team 2025, arXiv:2510.26692", _kimi(_mixer))
