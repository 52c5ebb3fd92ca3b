"""The selective scan (zoo/ops/selective_scan.py) in chunks of tokens, forward and backward, for any device.

A token is a few operations on a whole (B, N, C) state; what can be done for a chunk at once is. Forward keeps the
states that the chunks start from, T / chunk of T, and backward computes a chunk's states again (Chen et al. 2016,
arXiv:1604.06174). Channels stand last, (T, B, N, C), so that every operation runs along them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat

import torch
from torch import Tensor

__all__ = ["backward", "forward"]


def forward(
    x: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    state: Tensor,
    starts: Tensor | None,
    chunk: int,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """x, delta (B, T, C), A (N, C), B, C (B, T, N), state (B, N, C), starts (B, T) -> y, the last state, and the states
    (chunks, B, N, C) that the chunks start from: none of them unless `keep`."""
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    before = state.new_empty(-(-x.shape[1] // chunk) if keep else 0, *state.shape)
    chunk_states = _ChunkStates(A, state, chunk)
    for i, (x_, delta_, B_, C_, y_, starts_) in enumerate(_parts(chunk, x, delta, B, C, y, starts)):  # (c, B, C or N)
        if keep:
            before[i] = state
        _, h = chunk_states(x_, delta_, B_, starts_, state)
        y_.copy_((C_[:, :, None] @ h[1:])[:, :, 0])
        state = h[-1]
    return y, state.clone(), before


def backward(
    x: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    before: Tensor,
    starts: Tensor | None,
    chunk: int,
    grad_y: Tensor,
    grad_last: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, delta, A, B, C and the first state; `before` and the shapes are those of `forward`."""
    grad_x, grad_delta, grad_B, grad_C = (
        torch.empty_like(v, memory_format=torch.contiguous_format) for v in (x, delta, B, C)
    )
    grad_A, carried = torch.zeros_like(A), grad_last
    chunk_states, room = _ChunkStates(A, before[0], chunk), before.new_empty(chunk, *before.shape[1:])
    parts = _parts(chunk, x, delta, B, C, starts, grad_y, grad_x, grad_delta, grad_B, grad_C)
    for state, part in reversed(list(zip(before.unbind(0), parts, strict=True))):
        x_, delta_, B_, C_, starts_, grad_y_, grad_x_, grad_delta_, grad_B_, grad_C_ = part  # (c, B, C or N)
        decay, h = chunk_states(x_, delta_, B_, starts_, state)
        g = torch.mul(C_[..., None], grad_y_[:, :, None], out=room[: len(decay)])  # (c, B, N, C) of the states
        now, factors = g.unbind(0), decay.unbind(0)
        now[-1].add_(carried)
        for t in reversed(range(len(now) - 1)):
            now[t].addcmul_(factors[t + 1], now[t + 1])
        carried = now[0] * factors[0]
        grad_C_.copy_((grad_y_[:, :, None] @ h[1:].mT)[:, :, 0])  # a row: a column takes 5 times as long
        grad_B_.copy_(((delta_ * x_)[:, :, None] @ g.mT)[:, :, 0])
        written = (B_[:, :, None] @ g)[:, :, 0]  # (c, B, C) of delta x
        g.mul_(decay).mul_(h[:-1])  # of delta A
        torch.mul(written, delta_, out=grad_x_)
        grad_delta_.copy_(torch.mul(g, A, out=decay).sum(2)).addcmul_(written, x_)
        grad_A += g.mul_(delta_[:, :, None]).sum((0, 1))
    return grad_x, grad_delta, grad_A, grad_B, grad_C, carried


class _ChunkStates:
    """The states inside a chunk, in memory that all chunks share: fresh memory would cost more than the arithmetic."""

    def __init__(self, A: Tensor, state: Tensor, chunk: int) -> None:
        self.A = A
        self.decay, self.h = state.new_empty(chunk, *state.shape), state.new_empty(chunk + 1, *state.shape)

    def __call__(
        self, x: Tensor, delta: Tensor, B: Tensor, starts: Tensor | None, state: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Decays (c, B, N, C) of a chunk's tokens, and states (c + 1, B, N, C) before the first and after each."""
        length = len(x)
        decay, h = self.decay[:length], self.h[: length + 1]
        torch.mul(delta[:, :, None], self.A, out=decay).exp_()
        if starts is not None:
            decay.masked_fill_(starts[..., None, None], 0.0)
        h[0] = state
        torch.mul((delta * x)[:, :, None], B[..., None], out=h[1:])
        places = h.unbind(0)
        for old, new, factor in zip(places[:-1], places[1:], decay.unbind(0), strict=True):
            new.addcmul_(factor, old)
        return decay, h


def _parts(chunk: int, *tensors: Tensor | None) -> Iterator[tuple]:
    """(B, T, ...) -> for each chunk its (c, B, ...), which share memory with the whole; None stays None."""
    return zip(*(repeat(None) if v is None else v.transpose(0, 1).split(chunk) for v in tensors), strict=False)
