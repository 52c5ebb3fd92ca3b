"""Text to text with T5 1.0, against Hugging Face's: encoder, decoder that reads it, relative biases, tied head.

fp32 weights, no padding, dropout 0, ReLU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from benchmarks.speed.arms import BACKWARD, OURS, Arm, Family, Target
from benchmarks.speed.language import causal, ids, plain, trained

__all__ = ["FAMILY", "T5Case"]


@dataclass(frozen=True, kw_only=True)
class T5Case:
    name: str
    batch: int
    source_length: int
    target_length: int
    dim: int = 384
    depth: int = 4
    heads: int = 6
    hidden: int = 1536
    vocab_size: int = 1024
    smoke: bool = False

    def rows(self) -> tuple[Tensor, Tensor, Tensor]:
        """Source (B, S), target (B, T) and labels (B, T)."""
        return ids(self.vocab_size, self.batch, self.source_length), *causal(
            self.batch, self.target_length, self.vocab_size
        )


FAMILY: Family[T5Case] = Family(
    "t5",
    cases=(
        T5Case(name="s256-t128-b4", batch=4, source_length=256, target_length=128),
        T5Case(name="s512-t128-b4", batch=4, source_length=512, target_length=128),
        T5Case(
            name="smoke",
            batch=2,
            source_length=16,
            target_length=8,
            dim=32,
            depth=1,
            heads=2,
            hidden=64,
            vocab_size=50,
            smoke=True,
        ),
    ),
    targets=(
        Target("time", 1.05, peer="transformers", mode=BACKWARD),
        Target("memory", 1.05, peer="transformers", mode=BACKWARD),
    ),
)


@FAMILY.peer(OURS)
def zoo(case: T5Case) -> Arm:
    from zoo import create_model
    from zoo.blocks.api import Context

    ours: Any = create_model(
        "t5",
        dim=case.dim,
        depth=case.depth,
        heads=case.heads,
        vocab_size=case.vocab_size,
        mixer={"head_dim": case.dim // case.heads},
        ffn={"hidden": case.hidden},
    )
    source, target, labels = case.rows()

    def loss() -> Tensor:
        memory = ours.encode(source)  # (B, S, D)
        return ours.head.loss(ours.features(target, Context(memory=memory)), labels) / labels.numel()

    return trained(ours, lambda: ours(source, target), loss)


class _Pairs(nn.Module):
    """Two positional arguments, as the shared arm calls it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, source: Tensor, target: Tensor) -> Any:
        return self.model(input_ids=source, decoder_input_ids=target, use_cache=False)


@FAMILY.peer("transformers")
def transformers(case: T5Case) -> Arm:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=case.vocab_size,
        d_model=case.dim,
        d_kv=case.dim // case.heads,
        d_ff=case.hidden,
        num_layers=case.depth,
        num_decoder_layers=case.depth,
        num_heads=case.heads,
        dropout_rate=0.0,
        feed_forward_proj="relu",
    )
    source, target, labels = case.rows()
    return plain(_Pairs(T5ForConditionalGeneration(config)), [source, target], labels)
