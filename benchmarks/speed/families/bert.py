"""Masked language modelling with BERT, against Hugging Face's: 15 % of the tokens have a label.

Our head and its transform see those tokens only, Hugging Face's make the logits of all. Forward alone makes all logits
in both. fp32 weights, no padding, dropout 0, fused attention, and no pooler.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.speed.arms import BACKWARD, FORWARD, OURS, Arm, Family, Target
from benchmarks.speed.language import FUSED, ids, plain, trained

__all__ = ["FAMILY", "BERTCase"]

MASK_ID = 2


@dataclass(frozen=True, kw_only=True)
class BERTCase:
    name: str
    batch: int
    length: int
    vocab_size: int
    dim: int = 384
    depth: int = 6
    heads: int = 6
    smoke: bool = False

    def rows(self) -> tuple[Tensor, Tensor]:
        """Ids with masks and labels (B, T), -100 where nothing is asked."""
        tokens = ids(self.vocab_size, self.batch, self.length)
        masked = torch.rand(self.batch, self.length).argsort(1) < round(0.15 * self.length)
        return tokens.masked_fill(masked, MASK_ID), tokens.masked_fill(~masked, -100)


FAMILY: Family[BERTCase] = Family(
    "bert",
    cases=(
        BERTCase(name="vocab30522", batch=4, length=256, vocab_size=30522),
        BERTCase(name="vocab8192", batch=4, length=256, vocab_size=8192),
        BERTCase(name="smoke", batch=2, length=16, dim=32, depth=1, heads=2, vocab_size=50, smoke=True),
    ),
    targets=(
        Target("time", 0.80, peer="transformers", mode=BACKWARD, case="vocab30522"),
        Target("time", 0.90, peer="transformers", mode=BACKWARD, case="vocab8192"),
        Target("time", 1.05, peer="transformers", mode=FORWARD),
        Target("memory", 1.05, peer="transformers"),
    ),
)


@FAMILY.peer(OURS)
def zoo(case: BERTCase) -> Arm:
    from zoo import create_model

    sizes = {"dim": case.dim, "depth": case.depth, "heads": case.heads, "vocab_size": case.vocab_size}
    ours: Any = create_model("bert", max_len=max(case.length, 64), pooler=False, **sizes)
    tokens, labels = case.rows()
    count = (labels != -100).sum()
    return trained(ours, lambda: ours(tokens), lambda: ours.head.loss(ours.features(tokens), labels) / count)


@FAMILY.peer("transformers")
def transformers(case: BERTCase) -> Arm:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=case.vocab_size,
        hidden_size=case.dim,
        num_hidden_layers=case.depth,
        num_attention_heads=case.heads,
        intermediate_size=4 * case.dim,
        max_position_embeddings=max(case.length, 64),
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        **FUSED,
    )
    tokens, labels = case.rows()
    return plain(BertForMaskedLM(config), [tokens], labels)
