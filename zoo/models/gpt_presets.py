"""Published decoder-only models as choices of `GPTConfig`. Each count of parameters is a test.

The 175 B GPT-3 alternates dense and locally banded attention of unpublished widths (Brown et al. 2020); here all its
layers are dense, which has the same parameters.
"""

from __future__ import annotations

from typing import Any

from zoo.models.gpt import GPTConfig
from zoo.registry import register_preset

__all__: list[str] = []


def _preset(name: str, summary: str, paper: str, choices: dict[str, Any]) -> None:
    register_preset(GPTConfig, name, summary, paper, choices)


def _sizes(dim: int, depth: int, heads: int) -> dict[str, Any]:
    return {"dim": dim, "depth": depth, "heads": heads}


def _gpt(dim: int, depth: int, heads: int, vocab_size: int, max_len: int) -> dict[str, Any]:
    """GPT-2's form: pre-norm, learned positions, tanh GELU, biases, tied head."""
    return {
        **_sizes(dim, depth, heads),
        "vocab_size": vocab_size,
        "max_len": max_len,
        "norm": {"name": "layernorm", "eps": 1e-5},
        "ffn": {"name": "mlp", "activation": "gelu_tanh"},
    }


def _llama(
    dim: int,
    depth: int,
    heads: int,
    hidden: int,
    vocab_size: int,
    max_len: int,
    *,
    kv_heads: int | None = None,
    base: float = 10000.0,
    scaling: dict[str, Any] | None = None,
    eps: float = 1e-5,
    tied: bool = False,
    **attention: Any,
) -> dict[str, Any]:
    """Llama's form: pre-norm with RMSNorm, rotary positions, SwiGLU, no biases."""
    mixer = {"name": "attention", "kv_heads": kv_heads, "bias": False, "out_bias": False, **attention}
    rope: dict[str, Any] = {"name": "rope", "base": base}
    if scaling is not None:
        rope["scaling"] = scaling
    return {
        **_sizes(dim, depth, heads),
        "vocab_size": vocab_size,
        "max_len": max_len,
        "mixer": mixer,
        "ffn": {"name": "swiglu", "hidden": hidden},
        "norm": {"name": "rmsnorm", "eps": eps},
        "position": rope,
        "tie_embeddings": tied,
    }


def _gemma2(
    dim: int, depth: int, heads: int, kv_heads: int, hidden: int, head_dim: int, scale: float
) -> dict[str, Any]:
    """Gemma 2's form: sandwich norms, soft-capped scores and logits, windows of 4,096 in every other layer."""
    mixer = {
        "name": "attention",
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "scale": scale,
        "softcap": 50.0,
        "bias": False,
        "out_bias": False,
    }
    return {
        **_sizes(dim, depth, heads),
        "vocab_size": 256000,
        "max_len": 8192,
        "mixer": {"name": "hybrid", "pattern": [{**mixer, "window": 4096}, mixer]},
        "ffn": {"name": "geglu", "hidden": hidden, "activation": "gelu_tanh"},
        "norm": {"name": "rmsnorm", "unit_offset": True},
        "residual": "sandwich",
        "position": "rope",
        "scale_embeddings": True,
        "logit_soft_cap": 30.0,
    }


def _qwen3(dim: int, depth: int, heads: int, hidden: int, *, tied: bool) -> dict[str, Any]:
    """Qwen3's dense form: Llama's with 8 key/value heads of 128 channels and a norm on queries and keys."""
    qk_norm = {"qk_norm": {"name": "rmsnorm"}, "head_dim": 128}
    sizes = (dim, depth, heads, hidden, 151936, 40960)
    return _llama(*sizes, kv_heads=8, base=1e6, eps=1e-6, tied=tied, **qk_norm)


def _olmo2(dim: int, depth: int, heads: int, hidden: int) -> dict[str, Any]:
    """OLMo 2's form: norms on the branches' outputs, and on all queries and keys side by side."""
    qk_norm = {"qk_norm": {"name": "rmsnorm"}, "qk_norm_over": "all"}
    choices = _llama(dim, depth, heads, hidden, 100352, 4096, base=500000.0, eps=1e-6, **qk_norm)
    return choices | {"residual": "res_post", "final_norm": True}


_GPT1 = {**_gpt(768, 12, 12, 40478, 512), "residual": "post"}
_preset("gpt1", "GPT-1, 117 M: post-norm.", "Radford et al. 2018, GPT", _GPT1)
for _name, _title, _widths in (
    ("gpt2", "small, 124 M", (768, 12, 12)),
    ("gpt2_medium", "medium, 355 M", (1024, 24, 16)),
    ("gpt2_large", "large, 774 M", (1280, 36, 20)),
    ("gpt2_xl", "XL, 1.6 B", (1600, 48, 25)),
):
    _preset(_name, f"GPT-2 {_title}.", "Radford et al. 2019, GPT-2", _gpt(*_widths, 50257, 1024))
_preset("gpt3_175b", "GPT-3, 175 B.", "Brown et al. 2020, arXiv:2005.14165", _gpt(12288, 96, 96, 50257, 2048))

_LLAMA1, _LLAMA2 = "Touvron et al. 2023, arXiv:2302.13971", "Touvron et al. 2023, arXiv:2307.09288"
_LLAMA3, _FAR = "Grattafiori et al. 2024, arXiv:2407.21783", {"name": "llama3", "factor": 32.0}
_preset("llama_7b", "Llama 7 B.", _LLAMA1, _llama(4096, 32, 32, 11008, 32000, 2048, eps=1e-6))
_preset("llama_13b", "Llama 13 B.", _LLAMA1, _llama(5120, 40, 40, 13824, 32000, 2048, eps=1e-6))
_preset("llama_33b", "Llama 33 B.", _LLAMA1, _llama(6656, 60, 52, 17920, 32000, 2048, eps=1e-6))
_preset("llama_65b", "Llama 65 B.", _LLAMA1, _llama(8192, 80, 64, 22016, 32000, 2048, eps=1e-5))
_preset("llama2_7b", "Llama 2 7 B.", _LLAMA2, _llama(4096, 32, 32, 11008, 32000, 4096))
_preset("llama2_13b", "Llama 2 13 B.", _LLAMA2, _llama(5120, 40, 40, 13824, 32000, 4096))
_preset("llama2_70b", "Llama 2 70 B.", _LLAMA2, _llama(8192, 80, 64, 28672, 32000, 4096, kv_heads=8))
_preset("llama3_8b", "Llama 3 8 B.", _LLAMA3, _llama(4096, 32, 32, 14336, 128256, 8192, kv_heads=8, base=5e5))
_preset("llama3_70b", "Llama 3 70 B.", _LLAMA3, _llama(8192, 80, 64, 28672, 128256, 8192, kv_heads=8, base=5e5))
_preset(
    "llama3_405b",
    "Llama 3.1 405 B.",
    _LLAMA3,
    _llama(16384, 126, 128, 53248, 128256, 131072, kv_heads=8, base=5e5, scaling={"name": "llama3", "factor": 8.0}),
)
_preset(
    "llama3_1b",
    "Llama 3.2 1 B.",
    _LLAMA3,
    _llama(2048, 16, 32, 8192, 128256, 131072, kv_heads=8, base=5e5, scaling=_FAR, tied=True),
)
_preset(
    "llama3_3b",
    "Llama 3.2 3 B.",
    _LLAMA3,
    _llama(3072, 28, 24, 8192, 128256, 131072, kv_heads=8, base=5e5, scaling=_FAR, tied=True),
)
_preset(
    "mistral_7b",
    "Mistral 7 B: a window of 4,096.",
    "Jiang et al. 2023, arXiv:2310.06825",
    _llama(4096, 32, 32, 14336, 32000, 32768, kv_heads=8, window=4096),
)
_preset(
    "smollm2_135m",
    "SmolLM2 135 M.",
    "Allal et al. 2025, arXiv:2502.02737",
    _llama(576, 30, 9, 1536, 49152, 8192, kv_heads=3, base=1e5, tied=True),
)
for _name, _widths, _tied in (
    ("0.6b", (1024, 28, 16, 3072), True),
    ("1.7b", (2048, 28, 16, 6144), True),
    ("4b", (2560, 36, 32, 9728), True),
    ("8b", (4096, 36, 32, 12288), False),
    ("14b", (5120, 40, 40, 17408), False),
    ("32b", (5120, 64, 64, 25600), False),
):
    _title = f"Qwen3 {_name[:-1]} B."
    _preset(f"qwen3_{_name}", _title, "Yang et al. 2025, arXiv:2505.09388", _qwen3(*_widths, tied=_tied))
for _name, _choices in (
    ("2b", _gemma2(2304, 26, 8, 4, 9216, 256, 256**-0.5)),
    ("9b", _gemma2(3584, 42, 16, 8, 14336, 256, 256**-0.5)),
    ("27b", _gemma2(4608, 46, 32, 16, 36864, 128, 144**-0.5)),
):
    _preset(f"gemma2_{_name}", f"Gemma 2 {_name[:-1]} B.", "Gemma Team 2024, arXiv:2408.00118", _choices)
for _name, _widths in (("1b", (2048, 16, 16, 8192)), ("7b", (4096, 32, 32, 11008))):
    _preset(f"olmo2_{_name}", f"OLMo 2 {_name[:-1]} B.", "OLMo et al. 2024, arXiv:2501.00656", _olmo2(*_widths))
_preset("olmo2_13b", "OLMo 2 13 B.", "OLMo et al. 2024, arXiv:2501.00656", _olmo2(5120, 40, 40, 13824))
