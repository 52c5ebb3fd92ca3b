"""LSTM as a mixer: the recurrence before attention. Hochreiter & Schmidhuber 1997, doi:10.1162/neco.1997.9.8.1735.

    i, f, g, o = x W + h U + b                                       E wide each
    c <- sigmoid(f) c + sigmoid(i) tanh(g)        h <- sigmoid(o) tanh(c)
    out h

One layer of torch's own nn.LSTM. Time cannot be split into chunks, because h goes through the gates of the next token:
training takes T steps, one after the other. The forget gate's bias starts at 1, so that a new network remembers (Gers
et al. 2000, doi:10.1162/089976600300015015); the other biases start at 0, the matrices as torch starts them.

torch's LSTM cannot start afresh inside a row: each document becomes a row of its own for the pass, the first one of a
row with the row's state. It computes in the dtype of its weights: with weights in half precision the state is rounded
from token to token; under autocast it stays fp32.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from zoo.blocks.api import Slot
from zoo.blocks.fixed_state import FixedState
from zoo.blocks.init import init_linear
from zoo.blocks.recurrent_mixer import RecurrentConfig, RecurrentMixer, Tokens
from zoo.ops.precision import full_precision
from zoo.registry import register

__all__ = ["LSTM", "LSTMConfig"]


@register("mixer", "lstm", paper="Hochreiter & Schmidhuber 1997, doi:10.1162/neco.1997.9.8.1735")
class LSTMConfig(RecurrentConfig):
    """One LSTM layer: gates see the output before, so time goes step by step."""

    state_field: ClassVar[str | None] = "hidden"

    hidden: Annotated[int, Field(ge=1)] | None = None
    """Width E of the hidden and the cell state; None: D."""

    def build_causal(self, slot: Slot) -> LSTM:
        return LSTM(self, slot)


class LSTM(RecurrentMixer):
    """(B, T, D) -> (B, T, D). The state is `hidden` (B, E) and `cell` (B, E)."""

    layer: ClassVar[type[nn.LSTM | nn.GRU]] = nn.LSTM
    parts: ClassVar[tuple[str, ...]] = ("hidden", "cell")

    def __init__(self, config: LSTMConfig, slot: Slot) -> None:
        super().__init__()
        self.config, self.where = config, slot.where
        self.hidden = config.hidden or slot.dim
        self.rnn = self.layer(slot.dim, self.hidden, batch_first=True)
        self.out = nn.Linear(self.hidden, slot.dim, bias=False)
        self._out_std = slot.output_std(self.hidden)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.rnn.reset_parameters()
        for name in ("bias_ih_l0", "bias_hh_l0"):
            nn.init.zeros_(self.rnn.get_parameter(name))
        self.remember()
        init_linear(self.out, self._out_std)

    @torch.no_grad()
    def remember(self) -> None:
        """Start with the forget gate open; torch's order is i, f, g, o."""
        self.rnn.get_parameter("bias_ih_l0")[self.hidden : 2 * self.hidden] = 1.0

    def mix(self, x: Tensor, tokens: Tokens, state: FixedState | None) -> Tensor:
        wide = torch.promote_types(self.out.weight.dtype, torch.float32)
        before = [x.new_zeros(x.shape[0], self.hidden, dtype=wide) for _ in self.parts]
        if state is not None:
            before = [state[name].to(wide) for name in self.parts]
        with full_precision(x):
            if tokens.starts is not None or (tokens.mask is not None and state is not None):
                y, after = self._apart(x, tokens, before)
            else:  # real tokens come first and see none behind them: without a state, padding is harmless
                y, after = self._run(x, before)
        if state is not None:
            for name, value in zip(self.parts, after, strict=True):
                state[name] = value
        return self.out(y)  # (B, T, D)

    def _run(self, x: Tensor, state: list[Tensor], lengths: Tensor | None = None) -> tuple[Tensor, list[Tensor]]:
        """x (N, L, D), states (N, E), lengths (N,) on the CPU -> outputs (N, L, E) in x's dtype and states (N, E)."""
        dtype = self.out.weight.dtype
        given = [value[None].to(dtype) for value in state]
        rows = x.to(dtype)
        if lengths is not None:
            rows = pack_padded_sequence(rows, lengths, batch_first=True, enforce_sorted=False)
        y, last = self.rnn(rows, tuple(given) if len(given) > 1 else given[0])
        if lengths is not None:
            y = pad_packed_sequence(y, batch_first=True, total_length=x.shape[1])[0]
        last = last if isinstance(last, tuple) else (last,)
        return y.to(x.dtype), [value[0] for value in last]

    def _apart(self, x: Tensor, tokens: Tokens, state: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """The same for rows x (B, T, D) of real tokens first, with a row of its own for each document."""
        batch, length, _ = x.shape
        starts = tokens.starts if tokens.starts is not None else x.new_zeros(batch, length, dtype=torch.bool)
        begins = starts.index_fill(1, starts.new_zeros(1, dtype=torch.long), True)  # (B, T)
        row = begins.flatten().cumsum(0).view(batch, length) - 1  # (B, T) the row that each token goes to
        times = torch.arange(length, device=x.device).expand(batch, -1)
        place = times - torch.where(begins, times, 0).cummax(1).values  # (B, T) and where in it
        real = torch.ones_like(begins) if tokens.mask is None else tokens.mask
        lengths = torch.zeros(int(row[-1, -1]) + 1, dtype=torch.long, device=x.device)  # (N,)
        lengths.index_add_(0, row.flatten(), real.flatten().long())
        apart = x.new_zeros(lengths.shape[0], int(place.max()) + 1, x.shape[2])  # (N, L, D)
        apart[row, place] = x
        continued = (~starts[:, :1]).to(state[0].dtype)  # (B, 1)
        given = [h.new_zeros(lengths.shape[0], self.hidden).index_copy(0, row[:, 0], continued * h) for h in state]
        # a row without a token runs over one all the same; its state is put back
        y, after = self._run(apart, given, lengths.clamp(min=1).cpu())
        kept = (real.any(1) if tokens.mask is not None else begins[:, 0])[:, None]  # (B, 1)
        last = [torch.where(kept, a[row[:, -1]], h) for a, h in zip(after, state, strict=True)]
        return y[row, place], last  # (B, T, E), (B, E)

    def empty(self, batch: int, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        wide = torch.promote_types(dtype, torch.float32)
        return {name: torch.zeros(batch, self.hidden, device=device, dtype=wide) for name in self.parts}
