"""Mamba's selective scan (zoo/ops/selective_scan.py) as compiled loops over tokens, one row and block of channels after
the other.

    h <- exp(d A) h + u B        y = h C        with u = d x

A block's state (N, WIDTH) stays in the first cache while time runs. Forward keeps the states that the chunks of tokens
start from. Backward computes a chunk's states again from the kept one and goes from its last token to its first with g,
the gradient of the state: with s = g + C dy, and h' for the state before the token,

    dC = h dy     dB = s u     du = s B     g <- q = exp(d A) s     dA += d q h'     dd = A q h' + x du     dx = d du

What the innermost loops touch stands in two or three arrays, WIDTH is known to the compiler, and so it sees that the
vectors do not overlap: as arguments of small functions they would be compared before every loop, which takes as long as
the loop. A last block that is not full ends in zeros.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numba import types
from numba.extending import overload
from torch import Tensor

from zoo.ops.compiled import compiled, spread

__all__ = ["backward", "forward"]

WIDTH = 64  # channels of a block
FORWARD_WORK, BACKWARD_WORK = 8, 16  # in multiply-adds, of one number of the state and one token
LOG2_E, LOG_2 = 1 / math.log(2), math.log(2)


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
    (B, n, N, C) that n chunks of equal size, at most `chunk` tokens, start from: none of them unless `keep`. All of one
    dtype, fp32 or fp64; any strides."""
    batch, length, _ = x.shape
    y, last = (torch.empty_like(v, memory_format=torch.contiguous_format) for v in (x, state))
    kept = x.new_empty(batch, -(-length // chunk) if keep else 0, *A.shape)
    kernel = compiled(_forward, x.dtype, 3, 3, 2, 3, 3, 3, 2, 3, 3, 4)
    work = FORWARD_WORK * state.numel() * length
    spread(kernel, batch * _blocks(x), work, x, delta, A, B, C, state, _alive(starts, x), y, last, kept)
    return y, last, kept


def backward(
    x: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    kept: Tensor,
    starts: Tensor | None,
    chunk: int,
    grad_y: Tensor,
    grad_last: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, delta, A, B, C and the first state; `kept` and the shapes are those of `forward`."""
    batch, length, _ = x.shape
    dx, dd, dstate = (torch.empty_like(v, memory_format=torch.contiguous_format) for v in (x, x, grad_last))
    dA = torch.empty_like(dstate)  # of each row
    dB, dC = (x.new_empty(_blocks(x), *B.shape) for _ in range(2))  # of each block
    kernel = compiled(_backward, x.dtype, 3, 3, 2, 3, 3, 4, 2, 3, 3, 3, 3, 3, 4, 4, 3)
    work = BACKWARD_WORK * dstate.numel() * length
    inputs = (x, delta, A, B, C, kept, _alive(starts, x), grad_y, grad_last)
    spread(kernel, batch * _blocks(x), work, *inputs, dx, dd, dA, dB, dC, dstate)
    return dx, dd, dA.sum(0), dB.sum(0), dC.sum(0), dstate


def _blocks(x: Tensor) -> int:
    return -(-x.shape[2] // WIDTH)


def _alive(starts: Tensor | None, x: Tensor) -> Tensor:
    """(B, T), 0 where the state before the token is forgotten, else 1; empty where no document starts."""
    return x.new_empty(0, 0) if starts is None else (~starts).to(x.dtype)


def _forward(first, last, x, delta, A, B, C, state, alive, y, final, kept):
    length, channels = x.shape[1:]
    states, blocks = A.shape[0], (channels + WIDTH - 1) // WIDTH
    chunk = (length - 1) // kept.shape[1] + 1 if kept.size else length
    for unit in range(first, last):
        row, begin = unit // blocks, unit % blocks * WIDTH
        width = min(WIDTH, channels - begin)
        rows, vectors = np.zeros((states, 2, WIDTH), x.dtype), np.zeros((3, WIDTH), x.dtype)
        d, u, yt = vectors
        for n in range(states):
            for i in range(width):
                rows[n, 0, i] = A[n, begin + i] * LOG2_E
                rows[n, 1, i] = state[row, n, begin + i]
        for t in range(length):
            if kept.size and t % chunk == 0:
                for n in range(states):
                    for i in range(width):
                        kept[row, t // chunk, n, begin + i] = rows[n, 1, i]
            if alive.size and alive[row, t] == 0:
                rows[:, 1] = 0
            for i in range(width):
                d[i] = delta[row, t, begin + i]
                u[i] = d[i] * x[row, t, begin + i]
            yt[:] = 0
            for n in range(states):
                a, h, b, c = rows[n, 0], rows[n, 1], B[row, t, n], C[row, t, n]
                for i in range(WIDTH):
                    s = _exp2(d[i] * a[i]) * h[i] + u[i] * b
                    h[i] = s
                    yt[i] += c * s
            for i in range(width):
                y[row, t, begin + i] = yt[i]
        for n in range(states):
            for i in range(width):
                final[row, n, begin + i] = rows[n, 1, i]


def _backward(
    first, last, x, delta, A, B, C, kept, alive, grad_y, grad_last, dx, dd, dA, dB, dC, dstate
):  # fmt: skip
    length, channels = x.shape[1:]
    states, blocks = A.shape[0], (channels + WIDTH - 1) // WIDTH
    chunk = (length - 1) // kept.shape[1] + 1
    for unit in range(first, last):
        row, block = unit // blocks, unit % blocks
        begin = block * WIDTH
        width = min(WIDTH, channels - begin)
        rows, vectors = np.zeros((states, 3, WIDTH), x.dtype), np.zeros((5, WIDTH), x.dtype)
        past = np.zeros((states, chunk + 1, 2, WIDTH), x.dtype)
        d, u, gy, du, q_a = vectors
        for n in range(states):
            for i in range(width):
                rows[n, 0, i] = A[n, begin + i] * LOG2_E
                rows[n, 1, i] = grad_last[row, n, begin + i]
        for start in range((length - 1) // chunk * chunk, -1, -chunk):
            tokens = min(chunk, length - start)
            for n in range(states):
                for i in range(width):
                    past[n, 0, 0, i] = kept[row, start // chunk, n, begin + i]
            for j in range(tokens):
                t = start + j
                stays = alive[row, t] if alive.size else x.dtype.type(1)
                for i in range(width):
                    d[i] = delta[row, t, begin + i]
                    u[i] = d[i] * x[row, t, begin + i]
                for n in range(states):
                    a, before, decay, after, b = (
                        rows[n, 0],
                        past[n, j, 0],
                        past[n, j, 1],
                        past[n, j + 1, 0],
                        B[row, t, n],
                    )
                    for i in range(WIDTH):
                        decay[i] = stays * _exp2(d[i] * a[i])
                        after[i] = decay[i] * before[i] + u[i] * b
            for j in range(tokens - 1, -1, -1):
                t = start + j
                for i in range(width):
                    d[i] = delta[row, t, begin + i]
                    u[i] = d[i] * x[row, t, begin + i]
                    gy[i] = grad_y[row, t, begin + i]
                du[:] = 0
                q_a[:] = 0
                for n in range(states):
                    before, decay, after = past[n, j, 0], past[n, j, 1], past[n, j + 1, 0]
                    a, g, da, b, c = rows[n, 0], rows[n, 1], rows[n, 2], B[row, t, n], C[row, t, n]
                    gb, gc = b * 0, c * 0
                    for i in range(WIDTH):
                        s = g[i] + c * gy[i]
                        gb += s * u[i]
                        gc += after[i] * gy[i]
                        du[i] += b * s
                        s *= decay[i]
                        g[i] = s
                        s *= before[i]
                        q_a[i] += s * a[i]
                        da[i] += s * d[i]
                    dB[block, row, t, n] = gb
                    dC[block, row, t, n] = gc
                for i in range(width):
                    dx[row, t, begin + i] = du[i] * d[i]
                    dd[row, t, begin + i] = q_a[i] * LOG_2 + du[i] * x[row, t, begin + i]
        for n in range(states):
            for i in range(width):
                dstate[row, n, begin + i] = rows[n, 1, i]
                dA[row, n, begin + i] = rows[n, 2, i]


def _exp2(z):
    """2 to the z, in compiled code only: np.exp2 is a call for each number, which no loop over vectors survives."""
    raise NotImplementedError


@overload(_exp2, jit_options={"fastmath": {"contract"}})  # reordered, adding and subtracting `rounder` would vanish
def _exp2_of(z):
    if z != types.float32:
        return lambda z: np.exp2(z)

    lowest = np.float32(-125.0)  # below, what should be 0 is 2 to the -125
    rounder = np.float32(1.5 * 2**23)  # numbers of this size have no bits below 1: to add it is to round
    shift, one = np.int32(23), np.float32(1.0)
    # 2 to the r for |r| <= 1/2, fitted for the smallest relative error: 9e-8.
    c1, c2, c3 = np.float32(6.9314697759e-1), np.float32(2.4022242080e-1), np.float32(5.5507337542e-2)
    c4, c5 = np.float32(9.6715128699e-3), np.float32(1.3264723896e-3)

    def exp2(z):
        z = lowest if z < lowest else z
        rounded = z + rounder
        r = z - (rounded - rounder)
        p = ((((c5 * r + c4) * r + c3) * r + c2) * r + c1) * r + one
        # The low bits of `rounded` are the integer: added to p's exponent they multiply it by 2 to the integer.
        return np.int32(np.float32(p).view(np.int32) + (np.float32(rounded).view(np.int32) << shift)).view(np.float32)

    return exp2
