"""Causal language modelling with Llama's form, against Hugging Face's Llama.

Both have pre-norm with RMSNorm, rotary positions, three query heads to a key head, SwiGLU, no biases, an untied head,
fp32 weights and fused attention.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from benchmarks.speed.arms import BACKWARD, OURS, Arm, Family, Target
from benchmarks.speed.language import FUSED, causal, plain, trained

__all__ = ["FAMILY", "LlamaCase", "hugging_face", "model"]


@dataclass(frozen=True, kw_only=True)
class LlamaCase:
    name: str
    batch: int
    length: int
    dim: int = 384
    depth: int = 6
    heads: int = 6
    kv_heads: int = 2
    hidden: int = 1024
    vocab_size: int = 1024
    smoke: bool = False

    def rows(self) -> tuple[Tensor, Tensor]:
        return causal(self.batch, self.length, self.vocab_size)  # ids and labels, (B, T) each


FAMILY: Family[LlamaCase] = Family(
    "llama",
    cases=(
        LlamaCase(name="t256-b8", batch=8, length=256),
        LlamaCase(name="t1024-b2", batch=2, length=1024),
        LlamaCase(name="smoke", batch=2, length=16, dim=32, depth=1, heads=4, hidden=64, vocab_size=50, smoke=True),
    ),
    targets=(
        Target("time", 1.05, peer="transformers", mode=BACKWARD),
        Target("memory", 0.95, peer="transformers", mode=BACKWARD),
        Target("share", 0.60, mode=BACKWARD),
    ),
)


def model(case: Any) -> Any:
    """Our Llama of the case's sizes."""
    from zoo import create_model

    sizes = {"dim": case.dim, "depth": case.depth, "heads": case.heads, "vocab_size": case.vocab_size}
    return create_model(
        "gpt",
        max_len=max(case.length, 64),
        mixer={"name": "attention", "kv_heads": case.kv_heads, "bias": False, "out_bias": False},
        ffn={"name": "swiglu", "hidden": case.hidden},
        norm={"name": "rmsnorm", "eps": 1e-5},
        position={"name": "rope", "base": 10000.0},
        tie_embeddings=False,
        **sizes,
    )


def hugging_face(case: Any) -> Any:
    """Hugging Face's Llama of the same sizes."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=case.vocab_size,
        hidden_size=case.dim,
        intermediate_size=case.hidden,
        num_hidden_layers=case.depth,
        num_attention_heads=case.heads,
        num_key_value_heads=case.kv_heads,
        max_position_embeddings=max(case.length, 64),
        use_cache=False,
        bos_token_id=None,
        eos_token_id=None,
        **FUSED,
    )
    return LlamaForCausalLM(config)


@FAMILY.peer(OURS)
def zoo(case: LlamaCase) -> Arm:
    ours: Any = model(case)
    tokens, labels = case.rows()
    return trained(ours, lambda: ours(tokens), lambda: ours.head.loss(ours.features(tokens), labels) / labels.numel())


@FAMILY.peer("transformers")
def transformers(case: LlamaCase) -> Arm:
    tokens, labels = case.rows()
    return plain(hugging_face(case), [tokens], labels)
