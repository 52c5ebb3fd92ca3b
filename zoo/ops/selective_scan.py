"""Mamba's selective scan: a state of N numbers per channel, whose step size, input and output depend on the token.

    h_t = exp(delta_t A) h_{t-1} + delta_t B_t x_t      h (C, N), for each of C channels N decays A < 0
    y_t = h_t C_t + D x_t

Gu & Dao 2023, arXiv:2312.00752. A is discretised by zero-order hold and B by Euler's rule, as in the authors' code
(the paper's equation 4 has zero-order hold for B too).

Five forms, equal in outputs, final states and gradients: `naive_selective_scan` is the formula as a loop over time,
`selective_scan_step` one turn of that loop, chunked_scan.py (any device) and compiled/selective_scan.py (CPUs with
numba) keep only the states between chunks of tokens and compute the others again in backward, and `unrolled_scan` is
made of ordinary operations, for torch.compile, export, torch.func and second derivatives. On CUDA there is also the
authors' library, which knows no first state and no documents. `selective_scan` picks.

Shapes: B batch, T tokens, C channels, N state size.
"""

from __future__ import annotations

from functools import reduce
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from zoo.ops import chunked_scan
from zoo.ops.kernels import chosen
from zoo.ops.precision import full_precision

__all__ = ["naive_selective_scan", "selective_scan", "selective_scan_step"]


def selective_scan(
    x: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    *,
    state: Tensor | None = None,
    mask: Tensor | None = None,
    starts: Tensor | None = None,
    chunk: int = 16,
) -> tuple[Tensor, Tensor]:
    """Outputs (B, T, C) in x's dtype and the final state (B, C, N) of the scan above.

    x: (B, T, C). delta: (B, T, C), step sizes >= 0 (after softplus). A: (C, N), < 0. B, C: (B, T, N). D: (C,), the skip
    of each channel, or None for none. state: (B, C, N) or None for zeros. mask: (B, T) bool, False = the token leaves
    the state as it is, to the bit. starts: (B, T) bool, True = the token begins a document and sees an empty state.
    chunk: tokens between two states that are kept for backward. Half-precision inputs are computed in fp32, and the
    state is fp32 or better. Raises ValueError for shapes that do not fit.
    """
    check_shapes(x, delta, A, B, C, D, state, mask, starts, chunk)
    out_dtype, dtype = x.dtype, _dtype(x, delta, A, B, C, D, state)
    with full_precision(x):
        x, delta, A, B, C = (v.to(dtype) for v in (x, delta, A, B, C))
        D, state = (None if v is None else v.to(dtype) for v in (D, state))
        if mask is not None:  # a step of no size forgets nothing and writes nothing
            delta = delta.masked_fill(~mask[..., None], 0.0)
            starts = None if starts is None else starts & mask
        if x.shape[1] == 1:
            state = x.new_zeros(x.shape[0], *A.shape) if state is None else state
            state = state if starts is None else state.masked_fill(starts[..., None], 0.0)
            y, state = selective_scan_step(x[:, 0], delta[:, 0], A, B[:, 0], C[:, 0], D, state)
            return y[:, None].to(out_dtype), state
        y, state = _scan(x, delta, A, B, C, state, starts, chunk)
        y = y if D is None else torch.addcmul(y, x, D)  # (B, T, C)
        return y.to(out_dtype), state


def selective_scan_step(
    x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor]:
    """One token: x, delta (B, C), A (C, N), B, C (B, N), D (C,) or None, state (B, C, N) -> (B, C), state (B, C, N)."""
    decay = (delta[..., None] * A).exp()  # (B, C, N)
    state = torch.addcmul((delta * x)[..., None] * B[:, None], decay, state)
    y = (state @ C[..., None])[..., 0]  # (B, C)
    return y if D is None else torch.addcmul(y, x, D), state


def naive_selective_scan(
    x: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    *,
    state: Tensor | None = None,
    mask: Tensor | None = None,
    starts: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`selective_scan` as a loop over rows and tokens, in the notation of the formula."""
    rows, length, _ = x.shape
    outputs, finals = [], []
    for r in range(rows):
        h = state[r] if state is not None else x.new_zeros(A.shape)  # (C, N)
        for t in range(length):
            before = h
            if starts is not None and starts[r, t]:
                h = torch.zeros_like(h)
            A_bar, B_bar = torch.exp(delta[r, t][:, None] * A), torch.outer(delta[r, t], B[r, t])
            h = A_bar * h + B_bar * x[r, t][:, None]
            if mask is not None and not mask[r, t]:
                h = before
            outputs.append(h @ C[r, t] + (0 if D is None else D * x[r, t]))
        finals.append(h)
    return torch.stack(outputs).view_as(x), torch.stack(finals)


def _scan(
    x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, state: Tensor | None, starts: Tensor | None, chunk: int
) -> tuple[Tensor, Tensor]:
    """The scan without its skip, by the form that fits the place; one dtype, fp32 or better."""
    tracing = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
    form = "torch" if tracing else chosen("selective_scan", x.device, x.dtype)
    if form == "mamba_ssm" and state is None and starts is None:
        return _library_scan(x, delta, A, B, C)
    A, state = A.mT, x.new_zeros(x.shape[0], *A.mT.shape) if state is None else state.mT  # (N, C), (B, N, C)
    if tracing:
        y, state = unrolled_scan(x, delta, A, B, C, state, starts, chunk)
    else:
        y, state = _recomputed_scan(_form(form), x, delta, A, B, C, state, starts, chunk)
    return y, state.mT


def _form(name: str) -> ModuleType:
    """What has the `forward` and `backward` of a form."""
    if name == "numba":
        from zoo.ops.compiled import selective_scan as compiled

        return compiled
    return chunked_scan


def _library_scan(x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor) -> tuple[Tensor, Tensor]:
    """The kernel of the authors' library, mamba_ssm, in its layout (B, C, T).

    Its own final state has no gradient. The outputs of N more tokens that leave the state alone do: each reads one of
    the N columns.
    """
    from mamba_ssm.ops.selective_scan_interface import selective_scan_fn  # type: ignore[import-not-found]

    length, states = x.shape[1], A.shape[1]
    x, delta, B = (F.pad(v.mT, (0, states)) for v in (x, delta, B))  # (B, C or N, T + N)
    eye = torch.eye(states, dtype=C.dtype, device=C.device).expand(C.shape[0], -1, -1)
    C = torch.cat([C.mT, eye], dim=-1)
    y = selective_scan_fn(x, delta, A, B, C)  # (B, C, T + N)
    return y[..., :length].mT, y[..., length:]


def _recomputed_scan(form: ModuleType, *inputs: Any) -> tuple[Tensor, Tensor]:
    """inputs: x, delta, A, B, C, state, starts, chunk."""
    if torch.is_grad_enabled() and any(v.requires_grad for v in inputs[:6]):
        return _RecomputedScan.apply(form, *inputs)  # type: ignore[return-value]
    y, last, _ = form.forward(*inputs, keep=False)
    return y, last


class _RecomputedScan(torch.autograd.Function):
    """A form's forward and backward: the states between chunks are kept, those inside are computed again."""

    @staticmethod
    def forward(ctx, form: ModuleType, *inputs: Any) -> tuple[Tensor, Tensor]:
        *tensors, starts, chunk = inputs
        y, last, before = form.forward(*inputs, keep=True)
        ctx.save_for_backward(*tensors, starts, before)
        ctx.form, ctx.chunk = form, chunk
        return y, last

    @staticmethod
    def backward(ctx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, starts, before = ctx.saved_tensors
        with full_precision(before):
            if torch.is_grad_enabled():  # a second derivative is asked for
                found = _differentiable_gradients(tensors, starts, ctx.chunk, grads)
            else:
                found = ctx.form.backward(*tensors[:5], before, starts, ctx.chunk, *grads)
        return None, *found, None, None


def _differentiable_gradients(
    tensors: list[Tensor], starts: Tensor | None, chunk: int, grads: tuple[Tensor, ...]
) -> list[Tensor | None]:
    wanted = [v for v in tensors if v.requires_grad]
    x, delta, A, B, C, state = tensors
    outputs = unrolled_scan(x, delta, A, B, C, state, starts, chunk)
    found = iter(torch.autograd.grad(outputs, wanted, grads, create_graph=True))
    return [next(found) if v.requires_grad else None for v in tensors]


def unrolled_scan(
    x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, state: Tensor, starts: Tensor | None, chunk: int
) -> tuple[Tensor, Tensor]:
    """Two short loops of differentiable operations: over the tokens of all chunks at once, then over the chunks.

    x, delta (B, T, C), A (N, C), B, C (B, T, N), state (B, N, C), starts (B, T) -> (B, T, C), (B, N, C). The decays
    from a chunk's start are products of what is at most 1. It keeps every state.
    """
    length = x.shape[1]
    decay = (delta[:, :, None] * A).exp()  # (B, T, N, C)
    if starts is not None:
        decay = decay.masked_fill(starts[..., None, None], 0.0)
    written = (delta * x)[:, :, None] * B[..., None]  # (B, T, N, C)
    short = (0, 0, 0, 0, 0, -length % chunk)  # tokens after the last one forget nothing and write nothing
    decays = F.pad(decay, short, value=1.0).unflatten(1, (-1, chunk)).unbind(2)  # chunk of (B, n, N, C)
    writes = F.pad(written, short).unflatten(1, (-1, chunk)).unbind(2)
    local, since = [writes[0]], [decays[0]]
    for factor, new in zip(decays[1:], writes[1:], strict=True):
        local.append(torch.addcmul(new, factor, local[-1]))
        since.append(since[-1] * factor)
    before = []
    for factor, new in zip(since[-1].unbind(1), local[-1].unbind(1), strict=True):
        before.append(state)
        state = torch.addcmul(new, factor, state)
    first = torch.stack(before, dim=1)[:, :, None]  # (B, n, 1, N, C)
    h = torch.addcmul(torch.stack(local, dim=2), torch.stack(since, dim=2), first)  # (B, n, chunk, N, C)
    y = (C[:, :, None] @ h.flatten(1, 2)[:, :length])[:, :, 0]  # (B, T, C)
    return y, state


def _dtype(*tensors: Tensor | None) -> torch.dtype:
    """What all are computed in: fp32, or fp64 where one of them is."""
    return reduce(torch.promote_types, (v.dtype for v in tensors if v is not None), torch.float32)


def check_shapes(
    x: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    state: Tensor | None,
    mask: Tensor | None,
    starts: Tensor | None,
    chunk: int,
) -> None:
    """Raises ValueError, in one line, for shapes that `selective_scan` does not know."""
    if x.dim() != 3 or x.shape[1] == 0 or A.dim() != 2:
        raise ValueError(
            f"selective_scan: x should be (B, T, C) with T >= 1 and A (C, N), got {tuple(x.shape)} and {tuple(A.shape)}"
        )
    if chunk < 1:
        raise ValueError(f"selective_scan: chunk should be at least 1, got {chunk}")
    (batch, length, channels), states = x.shape, A.shape[1]
    wanted = {
        "delta": (delta, (batch, length, channels)),
        "A": (A, (channels, states)),
        "B": (B, (batch, length, states)),
        "C": (C, (batch, length, states)),
        "D": (D, (channels,)),
        "state": (state, (batch, channels, states)),
        "mask": (mask, (batch, length)),
        "starts": (starts, (batch, length)),
    }
    for name, (value, shape) in wanted.items():
        if value is not None and tuple(value.shape) != shape:
            raise ValueError(f"selective_scan: {name} should be {shape}, got {tuple(value.shape)}")
    for name, flags in (("mask", mask), ("starts", starts)):
        if flags is not None and flags.dtype != torch.bool:
            raise ValueError(f"selective_scan: {name} should be of torch.bool, got {flags.dtype}")
