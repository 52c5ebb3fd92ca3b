"""Encoder with a masked-language-model head. Devlin et al. 2018, arXiv:1810.04805.

    ids (B, T) -> token [+ segment] + position -> norm -> two-sided stack -> (B, T, D)
        -> transform -> logits (B, T, V) over the vocabulary, by the embedding's table
        -> first token -> pooler (D) -> next sentence (B, 2), or classes (B, N)

Presets: RoBERTa (Liu et al. 2019, arXiv:1907.11692), DistilBERT (Sanh et al. 2019, arXiv:1910.01108), ModernBERT
(Warner et al. 2024, arXiv:2412.13663).
"""

from __future__ import annotations

from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from zoo.blocks.api import Capability, Context, NormConfig, PositionConfig, Recorder, ResidualConfig, Slot
from zoo.blocks.embeddings import TokenEmbedding
from zoo.blocks.heads import HeadTransform, LanguageModelHead, Pool, pool_tokens
from zoo.blocks.init import init_linear
from zoo.blocks.norms import LayerNormConfig
from zoo.blocks.positions import LearnedPositionConfig
from zoo.blocks.residual import PostConfig
from zoo.blocks.stack import Stack, TransformerConfig
from zoo.registry import ConfigError, part, register, register_preset

__all__ = ["BERT", "BERTConfig"]


@register("model", "bert", paper="Devlin et al. 2018, arXiv:1810.04805")
class BERTConfig(TransformerConfig):
    """Encoder that fills in masked tokens, or classifies rows."""

    dim: Annotated[int, Field(ge=1)] = 768
    depth: Annotated[int, Field(ge=0)] = 12
    heads: Annotated[int, Field(ge=1)] = 12
    norm: Annotated[NormConfig, part("norm")] = LayerNormConfig(eps=1e-12)
    residual: Annotated[ResidualConfig, part("residual")] = PostConfig()
    position: Annotated[PositionConfig, part("position")] = LearnedPositionConfig()
    input_norm: bool = True
    scale_branches: bool = False
    vocab_size: Annotated[int, Field(ge=1)] = 30522
    max_len: Annotated[int, Field(ge=1)] = 512
    """Longest row; only learned positions refuse longer ones."""
    token_types: Annotated[int, Field(ge=0)] = 2
    """Kinds of segments with an embedding each; 0 for none."""
    embedding_dim: Annotated[int, Field(ge=1)] | None = None
    """Width of the embeddings where it is not D; a linear map follows (ELECTRA)."""
    masked_lm: bool = True
    head_bias: bool = True
    """Bias of the head's transform; the logits have one in any case."""
    pooler: bool = True
    """Dense and tanh on the pooled token, before next-sentence or class logits."""
    pool: Pool = "cls"
    next_sentence: bool = False
    num_classes: Annotated[int, Field(ge=0)] = 0
    """Above 0: `forward` gives class logits."""
    head_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """On the pooled token, before the class logits."""

    def build(self) -> BERT:
        return BERT(self)


class BERT(nn.Module):
    """ids (B, T) -> logits (B, T, V), or (B, classes) where the config names classes."""

    def __init__(self, config: BERTConfig, embed: TokenEmbedding | None = None, where: str = "bert") -> None:
        super().__init__()
        if config.next_sentence and not config.pooler:
            raise ConfigError("next_sentence reads the pooler: set pooler=true, or leave next_sentence out", "bert")
        self.config = config
        width = config.embedding_dim or config.dim
        slot = Slot(
            dim=config.dim,
            heads=config.heads,
            max_len=config.max_len,
            needs=Capability.BIDIRECTIONAL,
            init_std=config.init_std,
            where=where,
        )
        std = self._std = slot.std(width)
        self.embed = embed if embed is not None else TokenEmbedding(config.vocab_size, width, init_std=std)
        self.types = TokenEmbedding(config.token_types, width, init_std=std) if config.token_types else None
        self.stack = Stack(config, slot, input_dim=width)
        self.head: LanguageModelHead | None = None
        if config.masked_lm:
            norm = config.norm.build(width)
            transform = HeadTransform(config.dim, norm, out_dim=width, bias=config.head_bias, init_std=std)
            self.head = LanguageModelHead(
                width, config.vocab_size, embedding=self.embed, bias=True, transform=transform
            )
        self.pooler = nn.Linear(config.dim, config.dim) if config.pooler else None
        self.sentence_head = nn.Linear(config.dim, 2) if config.next_sentence else None
        self.drop = nn.Dropout(config.head_dropout)
        self.classifier = nn.Linear(config.dim, config.num_classes) if config.num_classes else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for linear in (self.pooler, self.sentence_head, self.classifier):
            if linear is not None:
                init_linear(linear, self._std)

    def features(self, ids: Tensor, context: Context | None = None, token_types: Tensor | None = None) -> Tensor:
        """Contextual tokens (B, T, D). `token_types` (B, T) int: the segment of each token, 0 by default."""
        x = self.embed(ids)  # (B, T, E)
        if self.types is not None:
            x = x + (self.types.weight[0] if token_types is None else self.types(token_types))
        return self.stack(x, context if context is not None else Context())  # (B, T, D)

    def pooled(self, x: Tensor, context: Context) -> Tensor:
        """Features (B, T, D) -> (B, D): the first real token, or the mean of the real tokens; through the pooler."""
        pooled = pool_tokens(x, context, self.config.pool)  # (B, D)
        return torch.tanh(self.pooler(pooled)) if self.pooler is not None else pooled

    def class_logits(self, x: Tensor, context: Context) -> Tensor:
        """Features (B, T, D) -> (B, classes)."""
        if self.classifier is None:
            raise ConfigError("this model has no classes; build it with num_classes above 0", "bert")
        return self.classifier(self.drop(self.pooled(x, context)))

    def sentence_logits(self, x: Tensor, context: Context) -> Tensor:
        """Features (B, T, D) -> (B, 2): class 0 means that the second segment follows the first."""
        if self.sentence_head is None:
            raise ConfigError("this model has no such head; build it with next_sentence=true", "bert")
        return self.sentence_head(self.pooled(x, context))

    def forward(
        self,
        ids: Tensor,
        *,
        token_mask: Tensor | None = None,
        token_types: Tensor | None = None,
        documents: Tensor | None = None,
        positions: Tensor | None = None,
        record: Recorder | None = None,
    ) -> Tensor:
        """Class logits (B, classes) where there are classes, else vocabulary logits (B, T, V), else features."""
        context = Context(token_mask=token_mask, documents=documents, positions=positions, record=record)
        x = self.features(ids, context, token_types)  # (B, T, D)
        if self.classifier is not None:
            return self.class_logits(x, context)
        return x if self.head is None else self.head(x)


def _preset(name: str, summary: str, paper: str, choices: dict[str, Any]) -> None:
    register_preset(BERTConfig, name, summary, paper, choices)


_BASE = {"dim": 768, "depth": 12, "heads": 12}
_LARGE = {"dim": 1024, "depth": 24, "heads": 16}
_BERT = "Devlin et al. 2018, arXiv:1810.04805"
_preset("bert_base", "BERT base, with both pre-training heads, 110 M.", _BERT, {**_BASE, "next_sentence": True})
_preset("bert_large", "BERT large, with both pre-training heads, 336 M.", _BERT, {**_LARGE, "next_sentence": True})
_ROBERTA: dict[str, Any] = {
    "vocab_size": 50265,
    "token_types": 1,
    "pooler": False,
    "norm": {"name": "layernorm", "eps": 1e-5},
    "position": {"name": "learned", "offset": 2},
}
for _name, _widths in (("base", _BASE), ("large", _LARGE)):
    _choices = {**_widths, **_ROBERTA}
    _preset(f"roberta_{_name}", f"RoBERTa {_name}: no next sentence.", "Liu et al. 2019, arXiv:1907.11692", _choices)
_preset(
    "distilbert_base",
    "DistilBERT, 67 M: half of BERT's layers, no segments.",
    "Sanh et al. 2019, arXiv:1910.01108",
    {**_BASE, "depth": 6, "token_types": 0, "pooler": False},
)


def _modernbert(dim: int, depth: int, heads: int, hidden: int) -> dict[str, Any]:
    """Full attention in every third layer, windows of 64 to each side in the others, each with its own rotary base."""
    attention = {"name": "attention", "bias": False, "out_bias": False}
    full = {**attention, "position": {"name": "rope", "base": 160000.0}}
    local = {**attention, "position": {"name": "rope", "base": 10000.0}, "window": 65}
    return {
        "dim": dim,
        "depth": depth,
        "heads": heads,
        "mixer": {"name": "hybrid", "pattern": [full, local, local]},
        "ffn": {"name": "geglu", "hidden": hidden},
        "norm": {"name": "layernorm", "eps": 1e-5, "bias": False},
        "residual": {"name": "pre", "first_norm": False},
        "position": "none",
        "vocab_size": 50368,
        "max_len": 8192,
        "token_types": 0,
        "head_bias": False,
        "pooler": False,
    }


_MODERN = "Warner et al. 2024, arXiv:2412.13663"
_preset("modernbert_base", "ModernBERT base, 150 M.", _MODERN, _modernbert(768, 22, 12, 1152))
_preset("modernbert_large", "ModernBERT large, 396 M.", _MODERN, _modernbert(1024, 28, 16, 2624))
