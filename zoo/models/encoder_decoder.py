"""What the families with an encoder and a decoder share. Sutskever et al. 2014, arXiv:1409.3215; Vaswani et al. 2017,
arXiv:1706.03762.

    source (B, S) -> embedding -> two-sided stack -> memory (B, S, D)
    target (B, T) -> embedding -> causal stack that reads the memory in each layer -> logits (B, T, V)

One table serves source, target and head ("three-way", Press & Wolf 2016, arXiv:1608.05859) unless the source has a
vocabulary of its own or the head is untied.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from zoo.blocks.api import Capability, Context, MixerConfig, Recorder, Slot
from zoo.blocks.embeddings import TokenEmbedding
from zoo.blocks.heads import LanguageModelHead
from zoo.blocks.mixers.attention import AttentionConfig
from zoo.blocks.stack import Stack, TransformerConfig
from zoo.blocks.state import StackState
from zoo.registry import part

__all__ = ["EncoderDecoder", "EncoderDecoderConfig"]


class EncoderDecoderConfig(TransformerConfig):
    """Choices of an encoder-decoder. `depth` is that of the decoder."""

    vocab_size: Annotated[int, Field(ge=1)] = 32128
    source_vocab_size: Annotated[int, Field(ge=1)] | None = None
    """Vocabulary of the source where it has one of its own; None: one vocabulary and one table."""
    max_len: Annotated[int, Field(ge=1)] = 512
    """Longest source and target; only learned positions refuse longer ones."""
    encoder_depth: Annotated[int, Field(ge=0)] | None = None
    """None: `depth`."""
    cross: Annotated[MixerConfig | None, part("mixer")] = None
    """What reads the memory; None: `mixer` where it can read a second sequence, else attention. No recurrent mixer can:
    with `mixer=mamba2` the target runs through Mamba-2 and reads the source by attention."""
    start_id: Annotated[int, Field(ge=0)] = 0
    """First token of every target row."""
    tie_embeddings: bool = True
    """The head reads the target embedding's table."""
    scale_embeddings: bool = False
    """Multiply embeddings by sqrt(D)."""
    scale_head: bool = False
    """Multiply what the head reads by 1 / sqrt(D) (T5 with a tied head)."""
    head_bias: bool = False
    embedding_std: Annotated[float, Field(gt=0)] | None = None
    """Initial standard deviation of the tables; None: D^-0.5 where embeddings are scaled, else as other weights."""

    @property
    def cross_mixer(self) -> MixerConfig:
        return self.cross or self.mixer.for_memory() or AttentionConfig()

    @property
    def max_source_len(self) -> int:
        """Longest memory."""
        return self.max_len

    @property
    def encoder_stack(self) -> EncoderDecoderConfig:
        """The choices of the encoder's stack."""
        return self.model_copy(update={"depth": self.depth if self.encoder_depth is None else self.encoder_depth})

    def build(self) -> EncoderDecoder:
        return EncoderDecoder(self)


class EncoderDecoder(nn.Module):
    """source (B, S), target (B, T) -> logits (B, T, V)."""

    reads: Literal["ids", "features"] = "ids"
    """What a source is: token ids (B, S), or features (B, M, F) of frames."""

    def __init__(self, config: EncoderDecoderConfig) -> None:
        super().__init__()
        self.config = config
        name = config.registered_name
        slot = Slot(dim=config.dim, heads=config.heads, max_len=config.max_len, init_std=config.init_std, where=name)
        std = config.embedding_std
        if std is None:
            std = config.dim**-0.5 if config.scale_embeddings else slot.std(config.dim)
        table: dict[str, Any] = {"scale": config.scale_embeddings, "init_std": std}
        self.embed = TokenEmbedding(config.vocab_size, config.dim, **table)
        own = config.source_vocab_size
        self.source_embed = TokenEmbedding(own, config.dim, **table) if own is not None else None
        encoder = slot.at(needs=Capability.BIDIRECTIONAL, where=f"{name}.encoder", max_len=config.max_source_len)
        self.encoder = Stack(config.encoder_stack, encoder)
        decoder = slot.at(
            causal=True, memory_dim=config.dim, needs=Capability.CAUSAL, where=f"{name}.decoder", shared={}
        )
        self.decoder = Stack(config, decoder)
        self.head = LanguageModelHead(
            config.dim,
            config.vocab_size,
            embedding=self.embed if config.tie_embeddings else None,
            bias=config.head_bias,
            scale=config.dim**-0.5 if config.scale_head else 1.0,
            init_std=config.dim**-0.5,
        )

    def encode(self, source: Tensor, token_mask: Tensor | None = None, record: Recorder | None = None) -> Tensor:
        """Source ids (B, S) -> memory (B, S, D)."""
        embed = self.source_embed if self.source_embed is not None else self.embed
        return self.encoder(embed(source), Context(token_mask=token_mask, record=record))

    def memory_mask(self, source_mask: Tensor | None) -> Tensor | None:
        """The mask (B, S) of the memory of a source with a mask."""
        return source_mask

    def empty_source(self, batch: int, length: int, device: torch.device | str | None = None) -> Tensor:
        """A source of zeros."""
        return torch.zeros(batch, length, dtype=torch.int64, device=device)

    def features(self, ids: Tensor, context: Context, state: StackState | None = None) -> Tensor:
        """Target ids (B, T) -> what the head reads (B, T, D), from `context.memory` or what the state keeps of it."""
        return self.decoder(self.embed(ids), context, state)

    def step(self, state: StackState) -> Callable[[Tensor], Tensor] | None:
        """`features` for one new target token (N,) of every row, see Stack.step: -> (N, D)."""
        inner = self.decoder.step(state)
        return None if inner is None else lambda ids: inner(self.embed(ids))

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        *,
        source_mask: Tensor | None = None,
        target_mask: Tensor | None = None,
        record: Recorder | None = None,
    ) -> Tensor:
        """Logits (B, T, V), those at t for the token after target t. A target padded on the right needs no mask."""
        memory = self.encode(source, source_mask, record)  # (B, S, D)
        mask = self.memory_mask(source_mask)
        context = Context(token_mask=target_mask, memory=memory, memory_mask=mask, record=record)
        return self.head(self.features(target, context))

    def init_state(
        self, batch: int, max_len: int, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> StackState:
        """Empty decoder state for `batch` rows of up to `max_len` target tokens; the memory joins at the first call."""
        return self.decoder.init_state(batch, max_len, device=device, dtype=dtype)
