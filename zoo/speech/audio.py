"""Audio as the front end reads it: one channel at one rate, from files of any rate and number of channels."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor

from zoo.ops.log_mel import SAMPLE_RATE
from zoo.registry import ConfigError

__all__ = ["load_audio", "mono", "windows"]


def load_audio(path: str | os.PathLike[str], sample_rate: int = SAMPLE_RATE) -> Tensor:
    """Samples (L,) fp32 of a wav, flac, ogg or mp3 file: channels averaged, resampled. Raises ConfigError."""
    try:
        import soundfile
    except ImportError:
        raise ConfigError("audio files need soundfile: pip install soundfile") from None
    try:
        samples, rate = soundfile.read(os.fspath(path), dtype="float32", always_2d=True)  # (L, channels)
    except (soundfile.SoundFileError, OSError, TypeError) as error:
        raise ConfigError(f"{os.fspath(path)} cannot be read as audio: {str(error).splitlines()[0]}") from None
    if not len(samples):
        raise ConfigError(f"{os.fspath(path)} holds no sample")
    return mono(torch.from_numpy(samples.T), rate, sample_rate)


def mono(audio: Any, rate: int, sample_rate: int = SAMPLE_RATE) -> Tensor:
    """Samples (L,) fp32 at `sample_rate` of an array (L,) or (channels, L) at `rate`. Raises ConfigError."""
    samples = torch.as_tensor(audio)
    if samples.dim() not in (1, 2) or not samples.is_floating_point() or not samples.numel():
        found = f"{samples.dtype} of {tuple(samples.shape)}"
        raise ConfigError(f"audio should be floating point samples (L,) or (channels, L), got {found}")
    samples = samples.float()
    samples = samples if samples.dim() == 1 else samples.mean(0)  # (L,)
    if not bool(samples.isfinite().all()):
        raise ConfigError("audio holds samples that are not numbers (NaN or inf)")
    if rate != sample_rate:
        from torchaudio.functional import resample

        samples = resample(samples, rate, sample_rate)
    return samples


def windows(audio: Tensor, size: int, sample_rate: int = SAMPLE_RATE) -> list[tuple[int, int]]:
    """(start, stop) of pieces of at most `size` samples that fill audio (L,).

    Each but the last ends in the middle of the quietest tenth of a second of the window's last sixth, so that few
    words are cut: 5 s of Whisper's 30.
    """
    length, step, cuts = audio.shape[0], max(sample_rate // 10, 1), [0]
    while length - cuts[-1] > size:
        tail = audio[cuts[-1] + size - max(size // 6, 1) : cuts[-1] + size]
        loudness = tail[: tail.shape[0] // step * step].view(-1, step).square().mean(1)  # (tenths,)
        quiet = int(loudness.flip(0).argmin()) if loudness.numel() else 0  # the last of equals
        back = tail.shape[0] - (loudness.numel() - 1 - quiet) * step - step // 2 if loudness.numel() else 0
        cuts.append(cuts[-1] + size - back)
    return list(zip(cuts, [*cuts[1:], length], strict=True))
