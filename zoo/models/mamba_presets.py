"""Mamba and Mamba-2 as published: language models of nothing but their mixer. Each count of parameters is a test.

Vocabulary: the 50,277 tokens of GPT-NeoX's tokenizer, padded to a multiple of 8 and of 16.
"""

from __future__ import annotations

from typing import Any

from zoo.models.gpt import GPTConfig
from zoo.registry import register_preset

__all__: list[str] = []


def _mamba(mixer: str, dim: int, depth: int, vocab_size: int) -> dict[str, Any]:
    """One residual branch per layer, RMSNorm, no positions, tied head; 2,048 tokens were the training rows."""
    return {
        "dim": dim,
        "depth": depth,
        "mixer": mixer,
        "layout": "mixer_only",
        "norm": {"name": "rmsnorm", "eps": 1e-5},
        "position": "none",
        "vocab_size": vocab_size,
        "max_len": 2048,
    }


for _mixer, _title, _paper, _vocab, _names in (
    ("mamba", "Mamba", "Gu & Dao 2023, arXiv:2312.00752", 50280, ("130m", "370m", "790m", "1_4b", "2_8b")),
    ("mamba2", "Mamba-2", "Dao & Gu 2024, arXiv:2405.21060", 50288, ("130m", "370m", "780m", "1_3b", "2_7b")),
):
    for _name, _widths in zip(_names, ((768, 24), (1024, 48), (1536, 48), (2048, 48), (2560, 64)), strict=True):
        _summary = f"{_title} {_name[:-1].replace('_', '.')} {_name[-1].upper()}."
        register_preset(GPTConfig, f"{_mixer}_{_name}", _summary, _paper, _mamba(_mixer, *_widths, _vocab))
