"""Log-mel spectrogram, Whisper's front end. Radford et al. 2022, arXiv:2212.04356; openai/whisper audio.py.

    P(f, t) = |sum_n w(n) x(hop t + n - N/2) exp(-2 pi i f n / N)|^2        w: periodic Hann, N = n_fft
    S(m, t) = log10 max(sum_f M(m, f) P(f, t), 1e-10)                       M: triangles on Slaney's mel scale, area 1
    y(m, t) = (max(S(m, t), max_mt S - 8) + 4) / 4

x is mirrored at both of its ends by N/2 samples, and the last frame is dropped: `samples // hop` frames remain. The
mirror and the maximum are each clip's own, so a clip has the same features in any batch. Silence is padded to the
samples (`pad_to`), never to the features; frames beyond a clip's end hold the clip's floor, as silence would.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

__all__ = ["HOP", "SAMPLE_RATE", "log_mel", "mel_filters", "naive_log_mel"]

SAMPLE_RATE, WINDOW, HOP = 16000, 400, 160
"""Hertz; samples of a window (25 ms) and of a step (10 ms)."""
LEAST = 1e-10


def log_mel(
    audio: Tensor,
    lengths: Tensor | None = None,
    *,
    mels: int = 80,
    sample_rate: int = SAMPLE_RATE,
    n_fft: int = WINDOW,
    hop: int = HOP,
    floor: float = 8.0,
    pad_to: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Features (B, M, F) and mask (B, F) bool, True = a frame of the clip, of clips audio (B, L) or one clip (L,).

    lengths: (B,) int, samples of each clip, where rows are padded on the right with anything; None: all L.
    mels: filters M, from 0 Hz to half the sample rate.
    floor: decades below the clip's maximum at which features are cut (Whisper: 8).
    pad_to: samples of silence added, or samples cut, at the end of each clip, before anything else (Whisper's fixed
        form: 480000, 30 s). The mask then covers all of them.

    A clip shorter than half a window and one sample is taken as followed by silence up to there, so that every clip
    has a frame at least. Computed in fp32 or better, and returned in that dtype.
    Raises ValueError for audio that is no floating point or has a clip without samples.
    """
    audio = audio[None] if audio.dim() == 1 else audio  # (B, L)
    if audio.dim() != 2 or not audio.is_floating_point():
        raise ValueError(f"audio should be floating point (L,) or (B, L), got {audio.dtype} of {tuple(audio.shape)}")
    audio = audio if audio.dtype == torch.float64 else audio.float()
    batch, samples = audio.shape
    if lengths is None:
        lengths = torch.full((batch,), samples, device=audio.device)
    if tuple(lengths.shape) != (batch,) or not batch or int(lengths.min()) < 1 or int(lengths.max()) > samples:
        raise ValueError(f"lengths should be ({batch},) of 1 to {samples} samples, got {lengths.tolist()}")
    ends = lengths.clamp(min=n_fft // 2 + 1) if pad_to is None else torch.full_like(lengths, pad_to)
    if pad_to is not None and pad_to <= n_fft // 2:
        raise ValueError(f"pad_to should be above half a window of {n_fft} samples, got {pad_to}")
    power = _power(audio, lengths, ends, n_fft, hop)  # (B, n_fft / 2 + 1, F)
    filters = mel_filters(mels, sample_rate, n_fft).to(power)  # (M, n_fft / 2 + 1)
    x = (filters @ power).clamp(min=LEAST).log10()  # (B, M, F)
    mask = torch.arange(x.shape[2], device=x.device) < (ends // hop)[:, None]  # (B, F)
    beyond = ~mask[:, None]  # (B, 1, F)
    lowest = math.log10(LEAST)
    top = x.masked_fill(beyond, lowest).amax((1, 2), keepdim=True)  # (B, 1, 1)
    x = x.masked_fill(beyond, lowest).maximum(top - floor)
    return (x + 4.0) / 4.0, mask


def _power(audio: Tensor, lengths: Tensor, ends: Tensor, n_fft: int, hop: int) -> Tensor:
    """Squared magnitudes (B, n_fft / 2 + 1, F) of clips that are silent from `lengths` on and mirrored at `ends`."""
    from torchaudio.functional import spectrogram

    half, last = n_fft // 2, int(ends.max())
    place = torch.arange(-half, last + half, device=audio.device).abs()  # (L + 2 half,) mirrored at the start
    final = ends[:, None] - 1
    place = (final - (final - place).abs()).clamp(min=0)  # (B, L + 2 half) and at the end
    x = audio.gather(1, place.clamp(max=audio.shape[1] - 1)).masked_fill(place >= lengths[:, None], 0.0)
    window = torch.hann_window(n_fft, dtype=x.dtype, device=x.device)
    power = spectrogram(
        x, pad=0, window=window, n_fft=n_fft, hop_length=hop, win_length=n_fft, power=2.0, normalized=False,
        center=False,
    )  # fmt: skip
    return power[..., : last // hop]


@lru_cache(maxsize=16)
def mel_filters(mels: int, sample_rate: int = SAMPLE_RATE, n_fft: int = WINDOW) -> Tensor:
    """(M, n_fft / 2 + 1) triangles of area 1 on Slaney's mel scale, as librosa makes them. Not to be written to."""
    from torchaudio.functional import melscale_fbanks

    half = sample_rate / 2
    return melscale_fbanks(n_fft // 2 + 1, 0.0, half, mels, sample_rate, norm="slaney", mel_scale="slaney").T


def naive_log_mel(
    clip: Tensor,
    *,
    mels: int = 80,
    sample_rate: int = SAMPLE_RATE,
    n_fft: int = WINDOW,
    hop: int = HOP,
    floor: float = 8.0,
) -> Tensor:
    """`log_mel` of one clip (L,) of more than n_fft / 2 samples, frame by frame in fp64: (M, F)."""
    x, half = clip.double(), n_fft // 2
    n = torch.arange(n_fft, dtype=torch.float64)
    window = 0.5 - 0.5 * torch.cos(2 * math.pi * n / n_fft)
    bins = torch.arange(half + 1, dtype=torch.float64)
    waves = torch.exp(-2j * math.pi / n_fft * bins[:, None] * n)  # (n_fft / 2 + 1, n_fft)
    x = torch.cat((x[1 : half + 1].flip(0), x, x[-half - 1 : -1].flip(0)))
    edges = torch.tensor([_hertz(_mel(sample_rate / 2) * m / (mels + 1)) for m in range(mels + 2)])
    hertz = bins * sample_rate / n_fft
    rows = []
    for m in range(mels):
        low, top, high = edges[m : m + 3].tolist()
        rise, fall = (hertz - low) / (top - low), (high - hertz) / (high - top)
        rows.append(torch.minimum(rise, fall).clamp(min=0) * 2 / (high - low))
    filters = torch.stack(rows)  # (M, n_fft / 2 + 1)
    frames = []
    for t in range(len(clip) // hop):
        spectrum = waves @ (window * x[hop * t : hop * t + n_fft]).to(torch.complex128)
        frames.append((filters @ spectrum.abs().square()).clamp(min=LEAST).log10())
    s = torch.stack(frames, dim=1)
    return (torch.maximum(s, s.max() - floor) + 4) / 4


def _mel(hertz: float) -> float:
    """Slaney 1998, Auditory Toolbox: linear to 1000 Hz, then logarithmic."""
    return hertz * 3 / 200 if hertz < 1000 else 15 + 27 * math.log(hertz / 1000) / math.log(6.4)


def _hertz(mel: float) -> float:
    return mel * 200 / 3 if mel < 15 else 1000 * math.exp((mel - 15) * math.log(6.4) / 27)
