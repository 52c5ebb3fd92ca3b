"""What the contract runs over: every registered part, with the switches that change its computation.

A new mixer needs no entry here: its default is tested as soon as it is registered. `VARIANTS` adds choices.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

import zoo
from zoo import registry
from zoo.blocks.api import NOTHING, Capability, Context, Slot, Sublayer

zoo.list_mixers()  # registers everything

DIM, HEADS, MAX_LEN = 16, 4, 32

VARIANTS: dict[str, list[dict[str, Any]]] = {
    "attention": [
        {"kv_heads": 1},
        {"kv_heads": 2, "bias": False, "out_bias": False},
        {"key_bias": False, "kv_heads": 2},
        {"head_dim": 6, "value_dim": 3},
        {"head_dim": 4, "value_dim": 6, "kv_heads": 2},
        {"qk_norm": {"name": "rmsnorm"}},
        {"softcap": 3.0},
        {"window": 4},
        {"window": 4, "sinks": 2, "kv_heads": 2},
        {"sink_logit": True},
        {"sink_logit": True, "window": 3},
        {"chunk": 4},
        {"chunk": 4, "window": 3, "kv_heads": 2, "position": {"name": "rope"}},
        {"temperature": 0.5, "temperature_floor": 3},
        {"gate": "head"},
        {"gate": "elementwise", "value_dim": 3},
        {"scale": 1.0},
        {"position": {"name": "rope"}},
        {"position": {"name": "rope", "layout": "interleaved"}, "window": 4, "sinks": 1},
        {"position": {"name": "alibi"}},
        {"position": {"name": "alibi"}, "window": 5},
        {"position": {"name": "t5_bias"}},
        {"qk_norm": {"name": "rmsnorm"}, "qk_norm_over": "all", "kv_heads": 2},
    ],
    "mamba": [
        {"expand": 1.5, "state_size": 5, "dt_rank": 3, "bias": True},
        {"conv": 0},
        {"conv_bias": False, "inner_norm": {"name": "rmsnorm"}},
        {"selective": False},
        {"tied": True},
    ],
    "mamba2": [
        {"head_dim": 8, "state_size": 5, "groups": 2, "bias": True},
        {"head_dim": 4, "groups": 8, "norm_before_gate": True, "chunk": 4},
        {"conv": 0, "state_size": 8},
        {"conv_bias": False, "norm": False},
        {"tied": True},
    ],
    "delta": [
        {"negative_eigenvalues": True, "gate": "sigmoid", "chunk": 4},
        {"conv": 0, "norm": False, "value_heads": 8, "head_dim": 3},
    ],
    "gated_delta": [
        {"value_heads": 8, "head_dim": 3, "conv": 2, "chunk": 4},
        {"negative_eigenvalues": True, "gate": "none", "expand_v": 0.5},
        {"tied": True},
    ],
    "kda": [
        {"value_heads": 8, "head_dim": 3, "rank": 5, "chunk": 4},
        {"negative_eigenvalues": True, "gate": "silu", "expand_v": 1.5, "conv": 0},
        {"gate": "none"},
    ],
    "rwkv7": [
        {"heads": 2, "head_dim": 5, "chunk": 4},
        {"decay_rank": 3, "rate_rank": 2, "gate_rank": 5, "norm_eps": 1e-3},
        {"tied": True},
    ],
    "linear_attention": [
        {"feature_map": "relu", "bias": False, "chunk": 4},
        {"feature_map": "taylor", "key_dim": 3, "head_dim": 5},
        {"feature_map": "performer", "features": 12, "seed": 3},
        {"feature_map": "identity", "normalise": False, "norm": True},
        {"gate": "silu", "norm": True, "heads": 2},
        {"conv": 3},
    ],
    "retention": [
        {"position": {"name": "none"}, "expand_v": 0.5, "gate": "none"},
        {"position": {"name": "rope"}, "heads": 2, "norm": False, "chunk": 4},
        {"tied": True},
    ],
    "lightning": [
        {"slopes": "fla", "norm": "head", "heads": 2, "chunk": 4},
        {"slopes": "bailing", "norm": "none", "gate": "none", "head_dim": 3},
    ],
    "gla": [
        {"conv": 3, "gate": "sigmoid", "expand_k": 1.0, "chunk": 4},
        {"gate_rank": 2, "gate_power": 1.0, "gate": "none", "norm": False},
    ],
    "hybrid": [
        {"pattern": [{"name": "attention", "window": 4}, "attention"]},
        {"pattern": ["attention", {"name": "attention", "window": 4}], "offset": 1},
        {"pattern": "gated_delta+attention"},
    ],
    "conv": [
        {"width": 2, "dilation": [1, 3], "gate": "sigmoid", "expand": 1.5},
        {"gate": "linear", "input_gate": True, "bias": False},
        {"gate": "none", "tied": True},
    ],
    "lstm": [{"hidden": 5}, {"tied": True}],
    "gru": [{"hidden": 7}],
    "mla": [
        {"q_rank": 6, "bias": True, "out_bias": True},
        {"nope_dim": 3, "rope_dim": 2, "value_dim": 5, "kv_rank": 7},
        {"rope_dim": 0, "gate": "head"},
        {"norm": {"name": "none"}, "gate": "elementwise"},
        {"position": {"name": "rope", "layout": "interleaved"}, "q_rank": 6},
        {"position": {"name": "rope", "scaling": {"name": "yarn", "factor": 8.0, "original_max_len": 4}}},
        {"position": {"name": "alibi"}},
        {"position": {"name": "t5_bias"}, "heads": 2},
    ],
}


@dataclass(frozen=True)
class MixerCase:
    """A mixer with its choices."""

    name: str
    choices: dict[str, Any] = field(default_factory=dict)

    @property
    def capabilities(self) -> Capability:
        return registry.decode("mixer", {"name": self.name, **self.choices}).capabilities

    def build(self, *, seed: int = 0, dtype: torch.dtype = torch.float64, **facts: Any) -> Sublayer:
        torch.manual_seed(seed)
        facts = {"heads": HEADS, "max_len": MAX_LEN, "init_std": 0.3, **facts}
        config = registry.decode("mixer", {"name": self.name, **self.choices})
        return config.build(Slot(dim=DIM, **facts)).to(dtype).eval()

    def __str__(self) -> str:
        told = [f"{key}={value['name'] if isinstance(value, dict) else value}" for key, value in self.choices.items()]
        return "-".join([self.name, *told])


def mixer_cases(needs: Capability = NOTHING) -> list[Any]:
    """pytest parameters: every mixer that has the capabilities, with its variants."""
    import pytest

    cases = [MixerCase(name, choices) for name in zoo.list_mixers() for choices in [{}, *VARIANTS.get(name, [])]]
    fits = [case for case in cases if not needs & ~case.capabilities]
    if needs & Capability.CROSS:
        fits = [
            case
            for case in fits
            if not {"window", "chunk", "temperature", "position", "pattern", "conv"} & set(case.choices)
        ]
    return [pytest.param(case, id=str(case)) for case in fits]


def rows(batch: int = 2, length: int = 11, dtype: torch.dtype = torch.float64, seed: int = 1) -> torch.Tensor:
    """Random x (B, T, D)."""
    return torch.randn(batch, length, DIM, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def contexts_of_rows(mask: torch.Tensor) -> Context:
    """A context with a mask of real tokens (B, T)."""
    return Context(token_mask=mask)
