"""Noise in the samples of a clip, other vocal tracts, rooms and microphones, and stretches of its spectrogram removed.

Vocal tract length perturbation (Jaitly and Hinton 2013, ICML workshop): the frequency axis of a clip is stretched or
squeezed, as if another person spoke. Here it is the axis of mels, y(m) = x(a m) with a in 1 - warp .. 1 + warp, between
two mels by linear interpolation.

Echo: a clip of power P(m, f) becomes P(m, f) + g P(m, f - d), the sound and one reflection of it, not in phase: the
least of a room (for whole ones: Ko et al. 2017, ICASSP). Tilt: a straight line over the mels is added to the decibels,
as another microphone might do; a plain form of FilterAugment (Nam et al. 2021, arXiv:2110.03282).

SpecAugment (Park et al. 2019, arXiv:1904.08779) without its time warp: `frequency_masks` bands of up to
`frequency_width` mels, and `time_masks` stretches of up to the share `time_share` of a clip's own frames. They become
the clip's mean. What happens to a clip depends on (seed, epoch, clip) alone.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from recipes.data.text.draws import Draws
from zoo.registry import Config, ConfigError

__all__ = ["SpeechAugment", "echoed", "noisy", "spec_augment", "tilted", "warped"]

DECIBELS = 40.0
"""Decibels that one unit of a feature is."""
ECHO_FRAMES, ECHO_DECIBELS = 15, 12.0

Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]


class SpeechAugment(Config):
    """Augmentation of training clips; the defaults change nothing."""

    noise: Share = 0.0
    """Share of the clips that get white noise."""
    snr: tuple[float, float] = (10.0, 35.0)
    """Its level: decibels of the clip above it, uniform between these."""
    warp: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Most that the axis of mels is stretched or squeezed by, as a share."""
    echo: Share = 0.0
    """Share of the clips that get an echo, 10 to 150 ms late and 0 to 12 decibels below."""
    tilt: Annotated[float, Field(ge=0)] = 0.0
    """Most decibels that the lowest and the highest mel are raised or lowered by, against each other."""
    frequency_masks: Count = 0
    frequency_width: Count = 8
    """Most mels of a band."""
    time_masks: Count = 0
    time_share: Share = 0.1
    """Most frames of a stretch, as a share of the clip's."""

    @model_validator(mode="after")
    def _ordered(self) -> SpeechAugment:
        if self.snr[0] > self.snr[1]:
            raise ConfigError(f"should rise from the least to the most, got {list(self.snr)}", "snr")
        return self


def noisy(samples: Tensor, decibels: float, draw: np.random.Generator) -> Tensor:
    """Samples (L,) with white noise `decibels` below their mean power."""
    power = float(samples.square().mean()) * 10 ** (-decibels / 10)
    noise = draw.standard_normal(samples.shape[0], dtype=np.float32)
    return samples + torch.from_numpy(noise) * power**0.5


def warped(x: Tensor, most: float, draws: Draws) -> Tensor:
    """Features (B, M, F) with each clip's axis of mels scaled by its own factor; beyond the last mel, its value."""
    factor = 1 + most * (2 * torch.from_numpy(draws.uniform("warp", 1)) - 1)  # (B, 1)
    last = x.shape[1] - 1
    place = (torch.arange(last + 1) * factor).clamp(max=last).to(x.dtype)  # (B, M)
    low = place.long()
    share = (place - low)[:, :, None]
    below, above = (x.gather(1, n[:, :, None].expand_as(x)) for n in (low, (low + 1).clamp(max=last)))  # (B, M, F)
    return torch.lerp(below, above, share)


def echoed(x: Tensor, frames: Tensor, share: float, draws: Draws) -> Tensor:
    """Features (B, M, F) of clips of `frames` (B,) frames, some with an echo. Frames beyond a clip's end stay."""
    chance, late, below = torch.from_numpy(draws.uniform("echo", 3)).to(x.dtype).unbind(1)  # (B,) each
    delay = 1 + (late * ECHO_FRAMES).long()
    lower = torch.where(chance < share, ECHO_DECIBELS * below, torch.inf) / DECIBELS
    place = torch.arange(x.shape[-1])
    source = place - delay[:, None]  # (B, F)
    copy = x.gather(2, source.clamp(min=0)[:, None].expand_as(x)) - lower[:, None, None]
    heard = (source >= 0) & (place < frames[:, None])
    louder, softer = torch.maximum(x, copy), torch.minimum(x, copy)
    both = louder + torch.log10(1 + 10.0 ** (4 * (softer - louder))) / 4  # features are (log10 P + 4) / 4
    return torch.where(heard[:, None], both, x)


def tilted(x: Tensor, frames: Tensor, most: float, draws: Draws) -> Tensor:
    """Features (B, M, F) of clips of `frames` (B,) frames, each with its own line over the mels; padding stays."""
    slope = (2 * torch.from_numpy(draws.uniform("tilt", 1)).to(x.dtype) - 1) * (most / DECIBELS)  # (B, 1)
    line = slope * torch.linspace(-1, 1, x.shape[1], dtype=x.dtype)  # (B, M)
    real = torch.arange(x.shape[-1]) < frames[:, None]  # (B, F)
    return x + line[:, :, None] * real[:, None]


def spec_augment(x: Tensor, frames: Tensor, config: SpeechAugment, draws: Draws) -> Tensor:
    """Features (B, M, F) of clips of `frames` (B,) frames, with bands and stretches at each clip's mean. Frames beyond
    a clip's end stay as they are."""
    mels, width = x.shape[1:]
    place, band = torch.arange(width), torch.arange(mels)
    real = place < frames[:, None]  # (B, F)
    gone = torch.zeros(x.shape, dtype=torch.bool)
    for n in range(config.frequency_masks):
        size, start = torch.from_numpy(draws.uniform(f"band {n}", 2)).unbind(1)  # (B,) each
        size = (size * (min(config.frequency_width, mels) + 1)).long()
        start = (start * (mels - size + 1)).long()
        gone |= ((band >= start[:, None]) & (band < (start + size)[:, None]))[:, :, None]
    for n in range(config.time_masks):
        size, start = torch.from_numpy(draws.uniform(f"stretch {n}", 2)).unbind(1)
        size = (size * (frames * config.time_share + 1)).long().minimum(frames)
        start = (start * (frames - size + 1)).long()
        gone |= ((place >= start[:, None]) & (place < (start + size)[:, None]))[:, None]
    gone &= real[:, None]
    mean = x.masked_fill(~real[:, None], 0).sum((1, 2)) / (frames * mels)  # (B,)
    return torch.where(gone, mean[:, None, None].to(x.dtype), x)
