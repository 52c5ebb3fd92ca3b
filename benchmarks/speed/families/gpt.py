"""Causal language modelling with GPT-2's form, against Hugging Face's GPT-2 in three settings.

    transformers            as it is by default but for dropout: gelu_new written in Python, fused attention
    transformers-dropout    its default configuration in training, with dropout 0.1 in four places
    transformers-fused      the activation replaced by PyTorch's own tanh GELU: its best setting

All have pre-norm, learned positions, a tied head and fp32 weights; ours has the tanh GELU and no dropout.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from benchmarks.speed.arms import BACKWARD, OURS, Arm, Family, Target
from benchmarks.speed.language import FUSED, causal, plain, trained

__all__ = ["FAMILY", "GPTCase", "hugging_face", "model"]


@dataclass(frozen=True, kw_only=True)
class GPTCase:
    name: str
    batch: int
    length: int
    dim: int = 384
    depth: int = 6
    heads: int = 6
    vocab_size: int = 1024
    smoke: bool = False

    def rows(self) -> tuple[Tensor, Tensor]:
        return causal(self.batch, self.length, self.vocab_size)  # ids and labels, (B, T) each


FAMILY: Family[GPTCase] = Family(
    "gpt",
    cases=(
        GPTCase(name="t256-b8", batch=8, length=256),
        GPTCase(name="t1024-b2", batch=2, length=1024),
        GPTCase(name="vocab50257", batch=2, length=256, vocab_size=50257),
        GPTCase(name="smoke", batch=2, length=16, dim=32, depth=1, heads=2, vocab_size=50, smoke=True),
    ),
    targets=(
        Target("time", 1.00, peer="transformers", mode=BACKWARD),
        Target("time", 1.00, peer="transformers-dropout", mode=BACKWARD),
        Target("time", 1.05, peer="transformers-fused", mode=BACKWARD),
        Target("memory", 0.60, peer="transformers", mode=BACKWARD),
        Target("memory", 0.60, peer="transformers-dropout", mode=BACKWARD),
        Target("share", 0.60, mode=BACKWARD),
    ),
)


def model(case: Any) -> Any:
    """Our GPT-2 of the case's sizes."""
    from zoo import create_model

    sizes = {"dim": case.dim, "depth": case.depth, "heads": case.heads, "vocab_size": case.vocab_size}
    choices = {"norm": {"name": "layernorm", "eps": 1e-5}, "ffn": {"name": "mlp", "activation": "gelu_tanh"}}
    return create_model("gpt", max_len=max(case.length, 64), **sizes, **choices)


def hugging_face(case: Any, *, dropout: float = 0.0, activation: str = "gelu_new") -> Any:
    """Hugging Face's GPT-2 of the same sizes."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=case.vocab_size,
        n_positions=max(case.length, 64),
        n_embd=case.dim,
        n_layer=case.depth,
        n_head=case.heads,
        activation_function=activation,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        use_cache=False,
        bos_token_id=None,
        eos_token_id=None,
        **FUSED,
    )
    return GPT2LMHeadModel(config)


@FAMILY.peer(OURS)
def zoo(case: GPTCase) -> Arm:
    ours: Any = model(case)
    tokens, labels = case.rows()
    return trained(ours, lambda: ours(tokens), lambda: ours.head.loss(ours.features(tokens), labels) / labels.numel())


@FAMILY.peer("transformers")
def transformers(case: GPTCase) -> Arm:
    tokens, labels = case.rows()
    return plain(hugging_face(case), [tokens], labels)


@FAMILY.peer("transformers-dropout")
def transformers_dropout(case: GPTCase) -> Arm:
    tokens, labels = case.rows()
    return plain(hugging_face(case, dropout=0.1), [tokens], labels)


@FAMILY.peer("transformers-fused")
def transformers_fused(case: GPTCase) -> Arm:
    tokens, labels = case.rows()
    return plain(hugging_face(case, activation="gelu_pytorch_tanh"), [tokens], labels)
