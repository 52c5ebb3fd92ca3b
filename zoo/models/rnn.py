"""RNN: an LSTM encoder-decoder with additive attention, as before the Transformer.

Bahdanau, Cho & Bengio 2014, arXiv:1409.0473; Sutskever, Vinyals & Le 2014, arXiv:1409.3215.

    source (B, S) -> embedding -> LSTM in both directions -> memory (B, S, D)
    step t: read c_t of the memory with s_{t-1};  s_t = LSTM([y_t; c_t], s_{t-1});  out = tanh(W [s_t; c_t; y_t])

The decoder starts at tanh of a linear map of the backward direction at the first source token. Departures: LSTM cells
instead of gated recurrent units, a tanh layer instead of maxout before the head, and one table for source, target and
head (`tie_embeddings`), as the other encoder-decoders have.
"""

from __future__ import annotations

from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from zoo.blocks.additive_attention import AdditiveAttention
from zoo.blocks.api import Context, ModelConfig, Recorder
from zoo.blocks.embeddings import TokenEmbedding
from zoo.blocks.heads import LanguageModelHead
from zoo.blocks.init import init_linear
from zoo.blocks.recurrent import RecurrentState, masked_lstm
from zoo.registry import ConfigError, register

__all__ = ["RNN", "RNNConfig"]


@register("model", "rnn", paper="Bahdanau, Cho & Bengio 2014, arXiv:1409.0473")
class RNNConfig(ModelConfig):
    """LSTM encoder-decoder with additive attention. `depth` is that of the decoder."""

    vocab_size: Annotated[int, Field(ge=1)] = 32128
    source_vocab_size: Annotated[int, Field(ge=1)] | None = None
    """Vocabulary of the source where it has one of its own; None: one vocabulary and one table."""
    dim: Annotated[int, Field(ge=2)] = 256
    """Width of tables, states and memory; each direction of the encoder has half of it."""
    depth: Annotated[int, Field(ge=1)] = 1
    encoder_depth: Annotated[int, Field(ge=1)] | None = None
    """None: `depth`."""
    max_len: Annotated[int, Field(ge=1)] = 512
    """Longest row expected; longer ones are taken too."""
    start_id: Annotated[int, Field(ge=0)] = 0
    """First token of every target row."""
    tie_embeddings: bool = True
    """The head reads the target embedding's table."""
    head_bias: bool = True
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """On embeddings, between layers, and on what the head reads."""

    def build(self) -> RNN:
        return RNN(self)


class RNN(nn.Module):
    """source (B, S), target (B, T) -> logits (B, T, V)."""

    def __init__(self, config: RNNConfig) -> None:
        super().__init__()
        if config.dim % 2:
            raise ConfigError(f"should be even, half of it for each direction of the encoder, got {config.dim}", "dim")
        self.config = config
        dim = config.dim
        self.embed = TokenEmbedding(config.vocab_size, dim, init_std=dim**-0.5, scale=True)
        own = config.source_vocab_size
        self.source_embed = TokenEmbedding(own, dim, init_std=dim**-0.5, scale=True) if own is not None else None
        depth = config.encoder_depth or config.depth
        between = config.dropout if depth > 1 else 0.0
        self.encoder = nn.LSTM(dim, dim // 2, depth, batch_first=True, dropout=between, bidirectional=True)
        self.start = nn.Linear(dim // 2, config.depth * dim)
        self.attention = AdditiveAttention(dim, dim, dim)
        self.cells = nn.ModuleList(nn.LSTMCell(2 * dim if layer == 0 else dim, dim) for layer in range(config.depth))
        self.readout = nn.Linear(3 * dim, dim)
        self.drop = nn.Dropout(config.dropout) if config.dropout else nn.Identity()
        self.head = LanguageModelHead(
            dim,
            config.vocab_size,
            embedding=self.embed if config.tie_embeddings else None,
            bias=config.head_bias,
            init_std=dim**-0.5,
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for linear in (self.start, self.readout):
            init_linear(linear, linear.in_features**-0.5)
        width = self.config.dim
        for cell in self.cells:  # forget gates start open (Jozefowicz et al. 2015, PMLR 37:2342)
            assert isinstance(cell, nn.LSTMCell)
            with torch.no_grad():
                cell.bias_hh[width : 2 * width].fill_(1.0)

    def encode(self, source: Tensor, token_mask: Tensor | None = None, record: Recorder | None = None) -> Tensor:
        """Source ids (B, S) -> memory (B, S, D); masked tokens may stand anywhere."""
        embed = self.source_embed if self.source_embed is not None else self.embed
        return masked_lstm(self.encoder, self.drop(embed(source)), token_mask)

    def memory_mask(self, source_mask: Tensor | None) -> Tensor | None:
        """The mask (B, S) of the memory of a source with a mask."""
        return source_mask

    def empty_source(self, batch: int, length: int, device: torch.device | str | None = None) -> Tensor:
        """A source of zeros."""
        return torch.zeros(batch, length, dtype=torch.int64, device=device)

    def features(self, ids: Tensor, context: Context, state: RecurrentState | None = None) -> Tensor:
        """Target ids (B, T) -> what the head reads (B, T, D), from `context.memory` or what the state keeps of it.

        Raises ValueError without a memory, and for packed documents.
        """
        if context.documents is not None:
            raise ValueError("an LSTM runs through packed documents; give each document a row of its own")
        if state is None:
            state = self.init_state(ids.shape[0], 0, device=ids.device)
        if state.memory is None:
            self._open(state, context)
        mask = context.token_mask  # (B, T)
        embedded = self.drop(self.embed(ids))  # (B, T, D)
        made, maps = [], []
        for step, token in enumerate(embedded.unbind(1)):  # (B, D)
            out, weights = self._step(token, state, None if mask is None else mask[:, step, None])
            made.append(out)
            maps.append(weights)
        state.count = state.count + (ids.shape[1] if mask is None else mask.sum(1))
        if context.record is not None and context.record.wants("rnn.attention"):
            context.record.add("rnn.attention", torch.stack(maps, dim=1)[:, None])  # (B, 1, T, S)
        return self.drop(torch.tanh(self.readout(torch.stack(made, dim=1))))  # (B, T, 3 D) -> (B, T, D)

    def _open(self, state: RecurrentState, context: Context) -> None:
        """Take the memory in and put the states where it says."""
        memory, mask = context.memory, context.memory_mask
        if memory is None:
            raise ValueError("the first call needs context.memory: what `encode` made of the source")
        state.memory, state.mask, state.keys = memory, mask, self.attention.keys(memory)
        half = memory[..., memory.shape[-1] // 2 :]  # (B, S, D / 2) of the backward direction
        if mask is None:
            first = half[:, 0]
        else:
            place = mask.to(torch.uint8).argmax(1)  # (B,) first real token
            first = half.gather(1, place[:, None, None].expand(-1, 1, half.shape[-1])).squeeze(1)
        hidden = torch.tanh(self.start(first)).unflatten(1, (len(self.cells), -1))  # (B, L, D)
        state.hidden = hidden.transpose(0, 1)  # (L, B, D)
        state.cell = torch.zeros_like(state.hidden)

    def _step(self, token: Tensor, state: RecurrentState, real: Tensor | None) -> tuple[Tensor, Tensor]:
        """One target token (B, D): [state; read; token] (B, 3 D) and weights (B, S). Rows where `real` (B, 1) is False
        keep their state."""
        assert state.memory is not None and state.keys is not None
        read, weights = self.attention(state.hidden[-1], state.keys, state.memory, state.mask)  # (B, D), (B, S)
        x = torch.cat((token, read), dim=-1)  # (B, 2 D)
        hidden, cell = [], []
        for layer, lstm in enumerate(self.cells):
            before = state.hidden[layer], state.cell[layer]
            x, c = lstm(x if layer == 0 else self.drop(x), before)  # (B, D), (B, D)
            if real is not None:
                hidden.append(torch.where(real, x, before[0]))
                cell.append(torch.where(real, c, before[1]))
            else:
                hidden.append(x)
                cell.append(c)
        state.hidden, state.cell = torch.stack(hidden), torch.stack(cell)  # (L, B, D)
        return torch.cat((x, read, token), dim=-1), weights

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
        memory = self.encode(source, source_mask)  # (B, S, D)
        context = Context(token_mask=target_mask, memory=memory, memory_mask=source_mask, record=record)
        return self.head(self.features(target, context))

    def init_state(
        self, batch: int, max_len: int, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> RecurrentState:
        """Empty decoder state for `batch` rows; it does not grow with `max_len`. The memory joins at the first call."""
        table = self.head.table
        options: dict[str, Any] = {"device": device or table.device, "dtype": dtype or table.dtype}
        empty = torch.zeros(len(self.cells), batch, self.config.dim, **options)
        return RecurrentState(empty, empty.clone())
