"""Audio of any length in pieces that a model of short clips can read."""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.ops.log_mel import HOP, SAMPLE_RATE

__all__ = ["pieces"]

SILENT = 1e-3
"""RMS of 10 ms, below which nothing is heard: 60 dB below full scale."""
FAINT = 1e-2
"""The same, as a share of the loudest 10 ms of a piece: what lies before and after it is cut off."""
MARGIN = SAMPLE_RATE // 10
PAUSE = 15
"""Frames of 10 ms over which a place to cut is sought."""


def pieces(samples: Tensor, seconds: float) -> list[Tensor]:
    """Stretches of at most `seconds` of samples (L,) at 16,000 hertz, in order, without those that are silent.

    A cut lies in the quietest 0.15 s of the later half of what one stretch can hold, so that few words are cut. A
    stretch is silent, and left out, where no 10 ms of it are louder than -60 dB of full scale. Silence at both ends of
    a stretch, 40 dB below its loudest 10 ms, is cut off, up to a margin of 0.1 s.
    """
    size = max(int(seconds * SAMPLE_RATE), 2 * PAUSE * HOP)
    found, start = [], 0
    while start < samples.shape[0]:
        stop = samples.shape[0]
        if stop - start > size:
            stop = start + size // 2 + _quietest(samples[start + size // 2 : start + size])
        piece = _trimmed(samples[start:stop])
        if piece is not None:
            found.append(piece)
        start = stop
    return found


def _loudness(samples: Tensor) -> Tensor:
    """RMS of each 10 ms of samples (L,), the last of them shorter: (ceil(L / HOP),)."""
    short = -samples.shape[0] % HOP
    power = torch.nn.functional.pad(samples.square(), (0, short)).view(-1, HOP).sum(1)
    counts = torch.full_like(power, HOP)
    counts[-1] = HOP - short
    return (power / counts).sqrt()


def _quietest(samples: Tensor) -> int:
    """The middle of the quietest stretch of samples (L,); the last of equals."""
    smooth = _loudness(samples).square().unfold(0, PAUSE, 1).mean(1)
    place = smooth.shape[0] - 1 - int(smooth.flip(0).argmin())
    return min((place + PAUSE // 2) * HOP + HOP // 2, samples.shape[0])


def _trimmed(samples: Tensor) -> Tensor | None:
    loudness = _loudness(samples)
    top = float(loudness.max())
    if top < SILENT:
        return None
    heard = (loudness >= max(top * FAINT, SILENT)).nonzero().flatten()
    first, last = int(heard[0]) * HOP, (int(heard[-1]) + 1) * HOP
    return samples[max(first - MARGIN, 0) : last + MARGIN]
