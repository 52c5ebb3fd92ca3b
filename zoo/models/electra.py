"""ELECTRA: learn to tell replaced tokens from original ones. Clark et al. 2020, arXiv:2003.10555.

    masked ids -> generator (a small BERT) -> sampled tokens in the masked places -> corrupted ids (B, T)
    corrupted ids -> discriminator -> one logit a token, "replaced" (B, T)

Both read the same token, segment and position embeddings. The discriminator is what is kept afterwards. A sampled
token that happens to be the original one counts as original; no gradient passes the sampling.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from zoo.blocks.api import Context, Recorder
from zoo.blocks.init import init_linear
from zoo.models.bert import BERT, BERTConfig
from zoo.registry import ConfigError, register, register_preset

__all__ = ["ELECTRA", "ELECTRAConfig", "Replaced"]


@register("model", "electra", paper="Clark et al. 2020, arXiv:2003.10555")
class ELECTRAConfig(BERTConfig):
    """Discriminator of replaced tokens with its generator; the fields are the discriminator's."""

    pooler: bool = False
    masked_lm: bool = False
    generator_share: Annotated[float, Field(gt=0, le=1)] = 0.25
    """Width, heads and feed-forward of the generator over the discriminator's."""

    def build(self) -> ELECTRA:  # type: ignore[override]
        return ELECTRA(self)

    def part(self, share: float, masked_lm: bool) -> BERTConfig:
        """The generator's config, or with a share of 1 the discriminator's."""
        fields = {name: getattr(self, name) for name in BERTConfig.model_fields}
        dim, heads = round(self.dim * share), max(1, round(self.heads * share))
        if dim % heads:
            raise ConfigError(
                f"generator_share {share} gives width {dim} and {heads} heads, which do not divide; choose another",
                "electra.generator_share",
            )
        changes = {"dim": dim, "heads": heads, "ffn": self.ffn.scaled(share), "masked_lm": masked_lm}
        return BERTConfig(**{**fields, **changes, "embedding_dim": self.embedding_dim or self.dim})


class Replaced(NamedTuple):
    """What the generator made of a masked batch."""

    ids: Tensor
    """(B, T) the masked places filled with sampled tokens."""
    replaced: Tensor
    """(B, T) bool, True where they differ from the original."""
    generator_loss: Tensor
    """Cross entropy summed over the masked places."""


class ELECTRA(nn.Module):
    """ids (B, T) -> logits (B, T), high where a token is held to be replaced."""

    def __init__(self, config: ELECTRAConfig) -> None:
        super().__init__()
        self.config = config
        self.discriminator = BERT(config.part(1.0, masked_lm=False), where="electra.discriminator")
        self.generator = BERT(
            config.part(config.generator_share, masked_lm=True), self.discriminator.embed, "electra.generator"
        )
        self.generator.types = self.discriminator.types
        self.generator.stack.position = self.discriminator.stack.position
        self.dense = nn.Linear(config.dim, config.dim)
        self.replaced_head = nn.Linear(config.dim, 1)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for linear in (self.dense, self.replaced_head):
            init_linear(linear, self.discriminator._std)

    def features(self, ids: Tensor, context: Context | None = None, token_types: Tensor | None = None) -> Tensor:
        """The discriminator's contextual tokens (B, T, D)."""
        return self.discriminator.features(ids, context, token_types)

    def replaced_logits(self, x: Tensor) -> Tensor:
        """Features (B, T, D) -> (B, T)."""
        return self.replaced_head(nn.functional.gelu(self.dense(x))).squeeze(-1)

    def forward(
        self,
        ids: Tensor,
        *,
        token_mask: Tensor | None = None,
        token_types: Tensor | None = None,
        record: Recorder | None = None,
    ) -> Tensor:
        """Logits (B, T) of "replaced"."""
        return self.replaced_logits(self.features(ids, Context(token_mask=token_mask, record=record), token_types))

    def replace(
        self,
        masked: Tensor,
        labels: Tensor,
        *,
        token_mask: Tensor | None = None,
        token_types: Tensor | None = None,
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> Replaced:
        """Fill the places with a label (labels (B, T), -100 elsewhere) of masked ids (B, T) by the generator's samples.

        `generator` is the random stream of the sampling. The temperature divides the logits of the sampling only.
        """
        x = self.generator.features(masked, Context(token_mask=token_mask), token_types)  # (B, T, D')
        head = self.generator.head
        assert head is not None
        places = labels != -100  # (B, T)
        logits = head(x[places])  # (N, V), the masked places only
        wide = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
        original = labels[places]  # (N,)
        loss = nn.functional.cross_entropy(wide, original, reduction="sum")
        chances = (wide.detach() / temperature).softmax(-1)
        drawn = torch.multinomial(chances, 1, generator=generator).squeeze(-1) if len(chances) else original
        ids, replaced = masked.clone(), torch.zeros_like(places)
        ids[places], replaced[places] = drawn, drawn != original
        return Replaced(ids, replaced, loss)


_PAPER = "Clark et al. 2020, arXiv:2003.10555"


def _preset(name: str, summary: str, choices: dict[str, Any]) -> None:
    register_preset(ELECTRAConfig, name, summary, _PAPER, choices)


_preset("electra_small", "ELECTRA small with its generator.", {"dim": 256, "heads": 4, "embedding_dim": 128})
_preset("electra_base", "ELECTRA base with its generator.", {"dim": 768, "heads": 12, "generator_share": 1 / 3})
_preset("electra_large", "ELECTRA large with its generator.", {"dim": 1024, "depth": 24, "heads": 16})
