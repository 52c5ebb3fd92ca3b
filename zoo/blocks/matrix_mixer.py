"""Mixers whose state is a matrix per head: linear attention, retention, lightning, GLA, Mamba-2, the delta rules.

    x --inputs--> q, k, v, decay, a, b --zoo/ops/recurrence.py--> y --outputs--> (B, T, D)

A mixer says what goes into the recurrence and what becomes of it, for rows of tokens (B, T, D) and for the one new
token (N, D) of every row alike. In decoding the same `inputs` and `outputs` run over a copy of the mixer whose linear
maps and convolution are made for one token, and the recurrence takes one turn, without the checks and chunks of a row.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from zoo.blocks.api import Context, Step
from zoo.blocks.fixed_state import FixedState
from zoo.blocks.recurrent_mixer import RecurrentMixer, Tokens
from zoo.blocks.short_conv import ShortConv
from zoo.ops.few_rows import few_rows
from zoo.ops.recurrence import recurrence, recurrence_step, shared_heads

__all__ = ["Inputs", "MatrixMixer"]


class Inputs(NamedTuple):
    """What a mixer gives to the recurrence, and what it keeps beside for its outputs; ... is B, T or N."""

    q: Tensor
    """(..., G, K)"""
    k: Tensor
    """(..., G, K)"""
    v: Tensor
    """(..., H, V)"""
    decay: Tensor | None = None
    """Log decays (H,), (..., H) or (..., H, K); None: nothing is forgotten."""
    a: Tensor | None = None
    """(..., H, K)"""
    b: Tensor | None = None
    """(..., H, K)"""
    rest: tuple[Tensor, ...] = ()


class MatrixMixer(RecurrentMixer):
    """(B, T, D) -> (B, T, D). A mixer defines `inputs`, and `outputs` where it has not the usual norm, gate and `out`.

    It sets `sizes`, H, K and V of its state, and `conv` where its state has the tail of a short convolution.
    """

    config: Any
    sizes: tuple[int, int, int]
    norm: Any
    gate: Any
    out: Any

    def __init__(self) -> None:
        super().__init__()
        self.conv: ShortConv | None = None

    def inputs(self, x: Tensor, tokens: Tokens, state: FixedState | None) -> Inputs:
        """Of x (B, T, D), real tokens first, or (N, D). What looks at other tokens has its part of `state` here."""
        raise NotImplementedError

    def outputs(self, y: Tensor, made: Inputs) -> Tensor:
        """y (..., H, V) -> (..., D). Here: a norm for each head, a gate of x, which is all the rest, and `out`."""
        (x,) = made.rest
        return self.out(self.norm(y, None if self.gate is None else self.gate(x)))

    def mix(self, x: Tensor, tokens: Tokens, state: FixedState | None) -> Tensor:
        made = self.inputs(x, tokens, state)
        y, matrix = recurrence(
            *made[:6],
            state=None if state is None else state["matrix"],
            mask=tokens.mask,
            starts=tokens.starts,
            chunk=self.config.chunk,
        )  # (B, T, H, V), (B, H, K, V)
        if state is not None:
            state["matrix"] = matrix
        return self.outputs(y, made)  # (B, T, D)

    def step(self, state: FixedState) -> Step | None:
        if state.document is not None or torch.is_autocast_enabled(state.device.type):
            return super().step(state)
        mixer, heads = for_one_token(self, state), self.sizes[0]

        def step(x: Tensor, context: Context) -> Tensor:
            made = mixer.inputs(x, Tokens(positions=context.positions, memo=context.memo), state)
            matrix = state["matrix"]  # (N, H, K, V)
            q, k = shared_heads(made.q, heads), shared_heads(made.k, heads)
            turn = (_in(matrix.dtype, part) for part in (q, k, *made[2:6]))
            y, state["matrix"] = recurrence_step(*turn, matrix)  # type: ignore[arg-type]  # (N, H, V)
            state.advance_rows(1, None)
            return mixer.outputs(_in(made.v.dtype, y), made)  # (N, D)

        return step

    def empty(self, batch: int, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        matrix = torch.zeros(batch, *self.sizes, device=device, dtype=torch.promote_types(dtype, torch.float32))
        tail = {} if self.conv is None else {"tail": self.conv.empty(batch, device, dtype)}
        return {"matrix": matrix, **tail}


def for_one_token(module: Any, state: FixedState) -> Any:
    """A shallow copy of a module, or of what it is made of, for x (N, D): few_rows' linear maps, a convolution's step.

    Weights are shared.
    """
    if isinstance(module, nn.Linear):
        return few_rows(module)
    if isinstance(module, ShortConv):
        step = module.step(state)
        return lambda x, tokens, state: step(x)
    twin = copy.copy(module)
    twin._modules = {name: child and for_one_token(child, state) for name, child in module._modules.items()}
    return twin


def _in(dtype: torch.dtype, x: Tensor | None) -> Any:
    return x if x is None or x.dtype == dtype else x.to(dtype)
