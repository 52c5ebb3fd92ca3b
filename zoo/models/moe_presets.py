"""Published models with experts, as choices of `GPTConfig` and `T5Config`. Each count of parameters is a test.

Of DeepSeek-V3 the module that predicts a second token ahead is left out, of Llama 4 all that sees pictures. How the
loads were balanced is taken from the papers, where they tell it (Switch, DeepSeek-V3), or from the published config
(Qwen3, Llama 4); Mixtral has this library's default.
"""

from __future__ import annotations

from typing import Any

from zoo.models.gpt import GPTConfig
from zoo.models.t5 import T5Config
from zoo.registry import register_preset

__all__: list[str] = []


def _preset(name: str, summary: str, paper: str, choices: dict[str, Any]) -> None:
    register_preset(GPTConfig, name, summary, paper, choices)


def _swiglu(hidden: int) -> dict[str, Any]:
    return {"name": "swiglu", "hidden": hidden}


def _frame(dim: int, depth: int, heads: int, vocab_size: int, max_len: int, base: float, eps: float) -> dict[str, Any]:
    """What all decoders here share: pre-norm with RMSNorm, rotary positions, a head of its own."""
    return {
        "dim": dim,
        "depth": depth,
        "heads": heads,
        "vocab_size": vocab_size,
        "max_len": max_len,
        "norm": {"name": "rmsnorm", "eps": eps},
        "position": {"name": "rope", "base": base},
        "tie_embeddings": False,
    }


def _attention(kv_heads: int, **choices: Any) -> dict[str, Any]:
    return {"name": "attention", "kv_heads": kv_heads, "bias": False, "out_bias": False, **choices}


def _mixtral(dim: int, depth: int, heads: int, hidden: int, vocab_size: int, max_len: int) -> dict[str, Any]:
    """Mixtral's form: two of eight experts."""
    return {
        **_frame(dim, depth, heads, vocab_size, max_len, 1e6, 1e-5),
        "mixer": _attention(8),
        "ffn": {"name": "moe", "experts": 8, "top_k": 2, "expert": _swiglu(hidden)},
    }


def _qwen3(dim: int, depth: int, heads: int, hidden: int) -> dict[str, Any]:
    """Qwen3's form: 8 of 128 experts; 4 key/value heads of 128 channels, a norm on queries and keys."""
    return {
        **_frame(dim, depth, heads, 151936, 40960, 1e6, 1e-6),
        "mixer": _attention(4, head_dim=128, qk_norm={"name": "rmsnorm"}),
        "ffn": {"name": "moe", "experts": 128, "top_k": 8, "expert": _swiglu(hidden), "balance": 1e-3},
    }


def _llama4(experts: int, every: int, max_len: int, *, qk_norm: bool, far: bool) -> dict[str, Any]:
    """Llama 4's form: three layers that rotate and see chunks, then one without positions that sees all (iRoPE); one
    of the experts, whose input is weighted, and a shared one, in every layer or every second."""
    local = _attention(8, chunk=8192)
    if qk_norm:
        local["qk_norm"] = {"name": "rmsnorm", "eps": 1e-5, "affine": False}
    still = _attention(8, position="none", temperature=0.1)
    moe = {"name": "moe", "experts": experts, "top_k": 1, "scores": "sigmoid", "weigh": "input", "balance": 1e-3}
    moe |= {"expert": _swiglu(8192), "shared": _swiglu(8192)}
    choices = _frame(5120, 48, 40, 202048, max_len, 5e5, 1e-5)
    choices["position"] |= {"layout": "interleaved"}
    if far:
        choices["position"]["scaling"] = {"name": "llama3", "factor": 16.0, "high_freq_factor": 1.0}
    return {
        **choices,
        "mixer": {"name": "hybrid", "pattern": [local, local, local, still]},
        "ffn": {"name": "hybrid", "pattern": [*[_swiglu(16384)] * (every - 1), moe]} if every > 1 else moe,
    }


_DEEPSEEK_V3 = {
    **_frame(7168, 61, 128, 129280, 163840, 1e4, 1e-6),
    "mixer": {"name": "mla", "q_rank": 1536, "kv_rank": 512, "nope_dim": 128, "rope_dim": 64, "value_dim": 128},
    "position": {
        "name": "rope",
        "layout": "interleaved",
        "scaling": {"name": "yarn", "factor": 40.0, "original_max_len": 4096},
    },
    "ffn": {
        "name": "hybrid",
        "first": [_swiglu(18432)] * 3,
        "pattern": [
            {
                "name": "moe",
                "experts": 256,
                "top_k": 8,
                "expert": _swiglu(2048),
                "shared": _swiglu(2048),
                "scores": "sigmoid",
                "normalise": True,
                "scale": 2.5,
                "groups": 8,
                "top_groups": 4,
                "balance": 0.0,
                "sequence_balance": 1e-4,
                "bias_rate": 1e-3,
            }
        ],
    },
}


def _switch(dim: int, depth: int, heads: int, hidden: int, experts: int) -> dict[str, Any]:
    """Switch's form: T5 1.0 with one of E experts in every second layer."""
    dense = {"name": "mlp", "activation": "relu", "bias": False, "hidden": hidden}
    moe = {"name": "moe", "experts": experts, "top_k": 1, "expert": dense, "capacity": 1.25, "balance": 1e-2}
    return {
        "dim": dim,
        "depth": depth,
        "heads": heads,
        "mixer": {"head_dim": 64},
        "ffn": {"name": "hybrid", "pattern": [dense, moe]},
        "position": {"init_std": dim**-0.5},
    }


_MIXTRAL = "Jiang et al. 2024, arXiv:2401.04088"
_preset("mixtral_8x7b", "Mixtral 8x7B.", _MIXTRAL, _mixtral(4096, 32, 32, 14336, 32000, 32768))
_preset("mixtral_8x22b", "Mixtral 8x22B.", _MIXTRAL, _mixtral(6144, 56, 48, 16384, 32768, 65536))
_QWEN3 = "Yang et al. 2025, arXiv:2505.09388"
_preset("qwen3_30b_a3b", "Qwen3 30 B, 3 B active.", _QWEN3, _qwen3(2048, 48, 32, 768))
_preset("qwen3_235b_a22b", "Qwen3 235 B, 22 B active.", _QWEN3, _qwen3(4096, 94, 64, 1536))
_preset("deepseek_v3", "DeepSeek-V3, 671 B, 37 B active.", "DeepSeek-AI 2024, arXiv:2412.19437", _DEEPSEEK_V3)
_LLAMA4 = "Meta AI 2025, Llama 4"
_preset(
    "llama4_scout",
    "Llama 4 Scout, 109 B, 17 B active: the language model.",
    _LLAMA4,
    _llama4(16, 1, 10485760, qk_norm=True, far=True),
)
_preset(
    "llama4_maverick",
    "Llama 4 Maverick, 400 B, 17 B active: the language model.",
    _LLAMA4,
    _llama4(128, 2, 1048576, qk_norm=False, far=False),
)
for _name, _sizes in (
    *((f"base_{_experts}", (768, 12, 12, 3072, _experts)) for _experts in (8, 16, 32, 64, 128, 256)),
    ("large_128", (1024, 24, 16, 4096, 128)),
):
    register_preset(
        T5Config,
        f"switch_{_name}",
        f"Switch Transformer {_name.replace('_', ', ')} experts.",
        "Fedus et al. 2021, arXiv:2101.03961",
        _switch(*_sizes),
    )
