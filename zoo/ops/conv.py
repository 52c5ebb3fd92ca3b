"""Short causal depthwise convolution over time, with the tail of its inputs as state.

    y_t = bias + sum_j weight[:, W - 1 - j] x_{t - j dilation}        each channel on its own

What precedes the keys of Mamba (Gu & Dao 2023, arXiv:2312.00752) and of the delta rules; dilated: van den Oord et al.
2016, arXiv:1609.03499. Where a packed document begins, the taps see nothing from before it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["causal_conv", "naive_causal_conv"]


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
    """x (B, T, C), weight (C, W), bias (C,) -> y (B, T, C) and the new tail (B, (W - 1) dilation, C).

    tail: the inputs before x, oldest first; None: zeros. lengths: (B,) int, the real tokens of each row, which come
    first; None: all T. starts: (B, T) bool, True = the token begins a document.
    """
    (channels, width), length = weight.shape, x.shape[1]
    past = (width - 1) * dilation
    if tail is None:
        tail = x.new_zeros(x.shape[0], past, channels)
    joined = torch.cat([tail.to(x.dtype), x], dim=1)  # (B, past + T, C)
    if starts is None:
        y = F.conv1d(joined.mT, weight[:, None], bias, dilation=dilation, groups=channels).mT  # (B, T, C)
    else:
        y = _conv_of_documents(joined, weight, bias, starts, dilation)
    return y, _new_tail(joined, lengths, length, past)


def _conv_of_documents(
    joined: Tensor, weight: Tensor, bias: Tensor | None, starts: Tensor, dilation: int
) -> Tensor:
    """One tap after another, each only where it stays inside the document."""
    (_, width), length = weight.shape, starts.shape[1]
    here = starts.cumsum(1)  # (B, T) number of the document
    there = F.pad(here, (joined.shape[1] - length, 0))  # (B, past + T)
    y = joined.new_zeros(()) if bias is None else bias
    for tap, first in zip(weight.unbind(1), range(0, width * dilation, dilation), strict=True):
        same = there.narrow(1, first, length) == here
        y = y + tap * joined.narrow(1, first, length).masked_fill(~same[..., None], 0.0)
    return y


def _new_tail(joined: Tensor, lengths: Tensor | None, length: int, past: int) -> Tensor:
    if lengths is None:
        return joined[:, length:]
    places = lengths[:, None] + torch.arange(past, device=joined.device)  # (B, past)
    return joined.gather(1, places[..., None].expand(-1, -1, joined.shape[2]))


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
    channels, width = weight.shape
    past = (width - 1) * dilation
    outputs, tails = [], []
    for r in range(x.shape[0]):
        before = list(tail[r]) if tail is not None else [x.new_zeros(channels)] * past
        inputs, document = before + list(x[r]), [0] * past
        for t in range(x.shape[1]):
            begins = starts is not None and bool(starts[r, t])
            document.append((document[-1] if document else 0) + begins)
            y = torch.zeros_like(x[r, t]) if bias is None else bias
            for j in range(width):
                place = past + t - j * dilation
                if document[place] == document[past + t]:
                    y = y + weight[:, width - 1 - j] * inputs[place]
            outputs.append(y)
        last = x.shape[1] if lengths is None else int(lengths[r])
        tails += inputs[last : last + past]
    return torch.stack(outputs).view_as(x), torch.stack(tails).view(x.shape[0], past, channels) if tails else x[:, :0]
