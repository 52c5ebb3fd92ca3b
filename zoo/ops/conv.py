"""Short causal depthwise convolution over time, with the tail of its inputs as state.

    y_t = bias + sum_j weight[:, W - 1 - j] x_{t - j dilation}        each channel on its own

What precedes the keys of Mamba (Gu & Dao 2023, arXiv:2312.00752) and of the delta rules; dilated: van den Oord et al.
2016, arXiv:1609.03499. Where a packed document begins, the taps see nothing from before it.

The sum is taken tap by tap over blocks of tokens that stay in a CPU's cache, in an autograd Function that keeps the
inputs alone. torch's convolution of (B, C, T) would transpose (B, T, C) twice.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["causal_conv", "naive_causal_conv"]

BLOCK = 1 << 17  # numbers of a block of tokens, half a MiB in fp32


def causal_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    tail: Tensor | None = None,
    lengths: Tensor | None = None,
    starts: Tensor | None = None,
    dilation: int = 1,
) -> tuple[Tensor, Tensor]:
    """x (B, T, C), weight (C, W), bias (C,) -> y (B, T, C) and the new tail (B, (W - 1) dilation, C), in x's dtype.

    tail: the inputs before x, oldest first; None: zeros. lengths: (B,) int, the real tokens of each row, which come
    first; None: all T. starts: (B, T) bool, True = the token begins a document. What the new tail holds of an earlier
    document is zero. Sums are taken in fp32 or better.
    """
    (batch, length, channels), past = x.shape, (weight.shape[1] - 1) * dilation
    tail = x.new_zeros(batch, past, channels) if tail is None else tail.to(x.dtype)
    joined = torch.cat([tail, x], dim=1)  # (B, past + T, C)
    if starts is not None and lengths is not None:  # what follows the last real token begins nothing
        starts = starts & (torch.arange(length, device=x.device) < lengths[:, None])
    age = None if starts is None else _age(starts)
    if length == 1 and age is None:
        y = _step(joined, weight, bias, dilation)
    elif torch.compiler.is_compiling():  # it joins the taps itself
        y = _taps(joined, weight, bias, age, dilation)
    elif torch.is_grad_enabled():
        y = _Taps.apply(joined, weight, bias, age, dilation)
    else:
        y = _in_blocks(joined, weight, bias, age, dilation)
    return y, _new_tail(joined, lengths, age, length, past)  # type: ignore[return-value]


class _Taps(torch.autograd.Function):
    @staticmethod
    def forward(ctx, joined: Tensor, weight: Tensor, bias: Tensor | None, age: Tensor | None, dilation: int) -> Tensor:
        ctx.save_for_backward(joined, weight, bias, age)
        ctx.dilation = dilation
        return _in_blocks(joined, weight, bias, age, dilation)

    @staticmethod
    def backward(ctx, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None, None]:
        joined, weight, bias, age = ctx.saved_tensors
        lags, wide = _lags(weight, ctx.dilation), torch.promote_types(joined.dtype, torch.float32)
        grad, taps = grads[0].to(wide), weight.mT.contiguous().to(wide)  # (B, T, C), (W, C)
        grad_joined, grad_taps = joined.new_zeros(joined.shape, dtype=wide), torch.zeros_like(taps)
        for block in _blocks(grad):
            for n, lag in enumerate(lags):
                seen = slice(block.start + lags[0] - lag, block.stop + lags[0] - lag)
                others = _others(None if age is None else age[:, block], lag)
                reached, product = grad_joined[:, seen], grad[:, block] * joined[:, seen]
                before = None if others is None else reached[others]
                reached.addcmul_(taps[n], grad[:, block])
                if others is not None:
                    reached[others], product[others] = before, 0.0
                grad_taps[n] += product.sum((0, 1))
        grad_bias = None if bias is None else grad.sum((0, 1)).to(bias.dtype)
        return grad_joined.to(joined.dtype), grad_taps.mT.to(weight.dtype), grad_bias, None, None


def _step(joined: Tensor, weight: Tensor, bias: Tensor | None, dilation: int) -> Tensor:
    """One token: joined (B, past + 1, C) -> (B, 1, C)."""
    wide = torch.promote_types(joined.dtype, torch.float32)
    y = (joined[:, ::dilation] * weight.mT.to(wide)).sum(1, keepdim=True)
    return (y if bias is None else y + bias).to(joined.dtype)


def _taps(joined: Tensor, weight: Tensor, bias: Tensor | None, age: Tensor | None, dilation: int) -> Tensor:
    """joined (B, past + T, C) -> (B, T, C)."""
    lags, wide = _lags(weight, dilation), torch.promote_types(joined.dtype, torch.float32)
    length, taps = joined.shape[1] - lags[0], weight.mT.contiguous().to(wide)  # (W, C)
    y = joined.new_zeros(1, dtype=wide) if bias is None else bias.to(wide)
    for tap, lag in zip(taps.unbind(0), lags, strict=True):
        seen = joined.narrow(1, lags[0] - lag, length)
        if age is None or lag == 0:
            y = torch.addcmul(y, tap, seen)
        elif torch.compiler.is_compiling():
            y = torch.addcmul(y, tap, seen.masked_fill((age < lag)[..., None], 0.0))
        else:
            others, before = _others(age, lag), y
            y = torch.addcmul(before, tap, seen)
            y[others] = before.expand_as(y)[others]
    return y.to(joined.dtype)


def _in_blocks(joined: Tensor, weight: Tensor, bias: Tensor | None, age: Tensor | None, dilation: int) -> Tensor:
    """`_taps`, one block of tokens after the other."""
    past = (weight.shape[1] - 1) * dilation
    blocks = [
        _taps(joined[:, b.start : b.stop + past], weight, bias, None if age is None else age[:, b], dilation)
        for b in _blocks(joined[:, past:])
    ]
    return blocks[0] if len(blocks) == 1 else torch.cat(blocks, dim=1)


def _blocks(x: Tensor) -> list[slice]:
    """Slices of tokens of x (B, T, C): on a CPU as many as stay in its cache while all taps read them."""
    length = x.shape[1]
    size = length if x.device.type != "cpu" else max(1, BLOCK // max(1, x.shape[0] * x.shape[2]))
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]


def _lags(weight: Tensor, dilation: int) -> list[int]:
    """How far back each tap looks, first to last."""
    return [j * dilation for j in reversed(range(weight.shape[1]))]


def _age(starts: Tensor) -> Tensor:
    """(B, T) int: tokens since the document's first one; T and more where it began before this call."""
    places = torch.arange(starts.shape[1], device=starts.device)
    return places - torch.where(starts, places, -(1 << 40)).cummax(1).values


def _others(age: Tensor | None, lag: int) -> tuple[Tensor, ...] | None:
    """Rows and places of the tokens that another document stands `lag` tokens before. They are few: what they gain from
    a tap is taken back."""
    return None if age is None or lag == 0 else (age < lag).nonzero(as_tuple=True)


def _new_tail(joined: Tensor, lengths: Tensor | None, age: Tensor | None, length: int, past: int) -> Tensor:
    if lengths is None:
        tail = joined[:, length:]  # (B, past, C)
    else:
        places = lengths[:, None] + torch.arange(past, device=joined.device)  # (B, past)
        tail = joined.gather(1, places[..., None].expand(-1, -1, joined.shape[2]))
    if age is None:
        return tail
    age = torch.nn.functional.pad(age, (1, 0), value=1 << 40)  # a row without a token ends where it did
    last = age[:, -1:] if lengths is None else age.gather(1, lengths[:, None])  # (B, 1)
    back = torch.arange(past - 1, -1, -1, device=joined.device)  # (past,) tokens before the last
    return tail.masked_fill((last < back)[..., None], 0.0)


def naive_causal_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    tail: Tensor | None = None,
    lengths: Tensor | None = None,
    starts: Tensor | None = None,
    dilation: int = 1,
) -> tuple[Tensor, Tensor]:
    """`causal_conv` as a loop over rows, tokens and taps."""
    (batch, length, channels), width = x.shape, weight.shape[1]
    past = (width - 1) * dilation
    outputs, tails = [], []
    for r in range(batch):
        inputs = list(tail[r]) if tail is not None else [x.new_zeros(channels)] * past
        last = length if lengths is None else int(lengths[r])
        for t in range(length):
            if starts is not None and starts[r, t] and t < last:
                inputs = [torch.zeros_like(value) for value in inputs]
            inputs.append(x[r, t])
            y = torch.zeros_like(x[r, t]) if bias is None else bias
            for j in range(width):
                y = y + weight[:, width - 1 - j] * inputs[past + t - j * dilation]
            outputs.append(y)
            if t == last - 1:
                tails += inputs[last : last + past]
        if last == 0:
            tails += inputs[:past]
    return torch.stack(outputs).view_as(x), torch.stack(tails).view(batch, past, channels) if past else x[:, :0]
