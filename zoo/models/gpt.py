"""Decoder-only language model. Radford et al. 2018 (GPT), Radford et al. 2019 (GPT-2), Touvron et al. 2023,
arXiv:2302.13971 (Llama) and what followed: one assembly, many presets (gpt_presets.py).

    ids (B, T) -> embedding (B, T, D) [* sqrt(D)] -> causal stack -> logits (B, T, V), those at t for token t + 1

The head shares the embedding's table, or has one of its own. Any causal mixer serves; a state carries it token by
token (zoo/generation/).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from zoo.blocks.api import Capability, Context, PositionConfig, Recorder, Slot
from zoo.blocks.embeddings import TokenEmbedding
from zoo.blocks.heads import LanguageModelHead
from zoo.blocks.positions import LearnedPositionConfig
from zoo.blocks.stack import Stack, TransformerConfig
from zoo.blocks.state import StackState
from zoo.registry import part, register

__all__ = ["GPT", "GPTConfig"]


@register("model", "gpt", paper="Radford et al. 2019, GPT-2")
class GPTConfig(TransformerConfig):
    """Decoder-only language model: each token is predicted from those before it."""

    vocab_size: Annotated[int, Field(ge=1)] = 50257
    max_len: Annotated[int, Field(ge=1)] = 1024
    """Longest row; only learned positions refuse longer ones."""
    position: Annotated[PositionConfig, part("position")] = LearnedPositionConfig()
    tie_embeddings: bool = True
    """The head reads the embedding's table (Press & Wolf 2016, arXiv:1608.05859)."""
    scale_embeddings: bool = False
    """Multiply embeddings by sqrt(D) (Vaswani et al. 2017; Gemma)."""
    logit_soft_cap: Annotated[float, Field(gt=0)] | None = None
    """Logits become cap * tanh(logits / cap) (Gemma Team 2024, arXiv:2408.00118)."""

    def build(self) -> GPT:
        return GPT(self)


class GPT(nn.Module):
    """ids (B, T) -> logits (B, T, V)."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        slot = Slot(
            dim=config.dim,
            heads=config.heads,
            max_len=config.max_len,
            causal=True,
            needs=Capability.CAUSAL,
            init_std=config.init_std,
            where="gpt",
        )
        std = slot.std(config.dim)
        self.embed = TokenEmbedding(config.vocab_size, config.dim, scale=config.scale_embeddings, init_std=std)
        self.stack = Stack(config, slot)
        self.head = LanguageModelHead(
            config.dim,
            config.vocab_size,
            embedding=self.embed if config.tie_embeddings else None,
            soft_cap=config.logit_soft_cap,
            init_std=std,
        )

    def features(self, ids: Tensor, context: Context | None = None, state: StackState | None = None) -> Tensor:
        """What the head reads, after the final norm: (B, T, D)."""
        return self.stack(self.embed(ids), context if context is not None else Context(), state)

    def step(self, state: StackState) -> Callable[[Tensor], Tensor] | None:
        """`features` for one new token (N,) of every row, see Stack.step: -> (N, D)."""
        inner = self.stack.step(state)
        return None if inner is None else lambda ids: inner(self.embed(ids))

    def forward(
        self,
        ids: Tensor,
        *,
        token_mask: Tensor | None = None,
        documents: Tensor | None = None,
        positions: Tensor | None = None,
        state: StackState | None = None,
        record: Recorder | None = None,
    ) -> Tensor:
        """Logits (B, T, V). The keywords are those of `Context`; with a state, `ids` go on from what it has seen."""
        context = Context(token_mask=token_mask, documents=documents, positions=positions, record=record)
        return self.head(self.features(ids, context, state))

    def init_state(
        self, batch: int, max_len: int, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Any:
        """Empty state for `batch` rows of up to `max_len` tokens."""
        return self.stack.init_state(batch, max_len, device=device, dtype=dtype)
