"""Whisper's log-mel features: equal to its own code and to transformers', the same in any batch."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import WhisperFeatureExtractor
from transformers.audio_utils import mel_filter_bank

from zoo.ops.log_mel import log_mel, mel_filters, naive_log_mel

RATE, WINDOW = 16000, 480_000


def openai(audio: Tensor, mels: int, padding: int = 0) -> Tensor:
    """`log_mel_spectrogram` of openai-whisper 20250625, whisper/audio.py (MIT), with librosa's filters of transformers
    in the place of its file of the same numbers."""
    if padding > 0:
        audio = F.pad(audio, (0, padding))
    window = torch.hann_window(400)
    stft = torch.stft(audio, 400, 160, window=window, return_complex=True)
    magnitudes = stft[..., :-1].abs() ** 2
    bank = mel_filter_bank(201, mels, 0.0, 8000.0, RATE, norm="slaney", mel_scale="slaney")
    mel_spec = torch.from_numpy(bank.T).float() @ magnitudes
    log_spec = torch.clamp(mel_spec, min=1e-10).log10()
    log_spec = torch.maximum(log_spec, log_spec.max() - 8.0)
    return (log_spec + 4.0) / 4.0


def sound(name: str) -> Tensor:
    """Samples (L,)."""
    generator = torch.Generator().manual_seed(0)
    time = torch.arange(RATE) / RATE
    return {
        "tone": lambda: 0.5 * torch.sin(2 * math.pi * 440 * time),
        "chirp": lambda: torch.sin(2 * math.pi * (100 + 3000 * time) * time),
        "noise": lambda: 0.1 * torch.randn(RATE, generator=generator),
        "silence": lambda: torch.zeros(RATE),
        "impulse": lambda: F.one_hot(torch.tensor(5000), RATE).float(),
        "1 sample": lambda: torch.tensor([0.7]),
        "29.99 s": lambda: 0.1 * torch.randn(round(29.99 * RATE), generator=generator),
        "31 s": lambda: 0.1 * torch.randn(31 * RATE, generator=generator),
    }[name]()


SOUNDS = ["tone", "chirp", "noise", "silence", "impulse", "1 sample", "29.99 s", "31 s"]


@pytest.mark.parametrize("mels", [80, 128])
@pytest.mark.parametrize("name", SOUNDS)
def test_features_equal_those_of_openai_with_30_s_of_padding(name: str, mels: int) -> None:
    audio = sound(name)
    found, mask = log_mel(audio, mels=mels, pad_to=len(audio) + WINDOW)
    expected = openai(audio, mels, padding=WINDOW)
    assert found.shape == (1, mels, (len(audio) + WINDOW) // 160) and bool(mask.all())
    torch.testing.assert_close(found[0], expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", [name for name in SOUNDS if name != "1 sample"])
def test_features_equal_those_of_openai_without_padding(name: str) -> None:
    audio = sound(name)
    torch.testing.assert_close(log_mel(audio)[0][0], openai(audio, 80), rtol=0, atol=1e-4)


@pytest.mark.parametrize("mels", [80, 128])
@pytest.mark.parametrize("name", SOUNDS)
def test_the_fixed_form_equals_transformers_feature_extractor(name: str, mels: int) -> None:
    audio = sound(name)
    peer = WhisperFeatureExtractor(feature_size=mels)
    expected = torch.from_numpy(np.asarray(peer(audio.numpy(), sampling_rate=RATE)["input_features"]))
    found, _ = log_mel(audio, mels=mels, pad_to=WINDOW)
    assert found.shape == (1, mels, 3000)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("mels", [40, 80, 128])
def test_filters_equal_librosas(mels: int) -> None:
    bank = mel_filter_bank(201, mels, 0.0, 8000.0, RATE, norm="slaney", mel_scale="slaney")
    torch.testing.assert_close(mel_filters(mels), torch.from_numpy(bank.T).float(), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("mels", "n_fft", "hop"), [(80, 400, 160), (7, 64, 20)])
def test_features_equal_the_naive_twins(mels: int, n_fft: int, hop: int) -> None:
    clip = sound("chirp")[:1501].double() + 0.1 * sound("noise")[:1501].double()
    found, _ = log_mel(clip, mels=mels, n_fft=n_fft, hop=hop, floor=6.0)
    expected = naive_log_mel(clip, mels=mels, n_fft=n_fft, hop=hop, floor=6.0)
    assert found.shape[1:] == (mels, 1501 // hop)
    torch.testing.assert_close(found[0], expected, rtol=0, atol=1e-5)  # torchaudio's filters are fp32


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 2000), min_size=1, max_size=4), seed=st.integers(0, 99), rest=st.integers(0, 300)
)
def test_a_clip_has_the_same_features_in_any_batch(lengths: list[int], seed: int, rest: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    audio = 9.0 * torch.randn(len(lengths), max(lengths) + rest, generator=generator)  # loud padding: it must not count
    clips = []
    for n, length in enumerate(lengths):
        audio[n, :length] *= 0.1 ** (n + 1)
        clips.append(audio[n, :length])
    found, mask = log_mel(audio, torch.tensor(lengths), mels=20)
    for n, clip in enumerate(clips):
        alone, _ = log_mel(clip, mels=20)
        frames = alone.shape[2]
        assert mask[n].sum() == frames == max(len(clip) // 160, 1)
        torch.testing.assert_close(found[n, :, :frames], alone[0], rtol=0, atol=1e-5)
        floor = max((alone.max() * 4 - 4).item() - 8, -10)
        torch.testing.assert_close(found[n, :, frames:], torch.full_like(found[n, :, frames:], (floor + 4) / 4))


def test_a_tone_padded_in_its_samples_has_the_floor_there_and_never_zero() -> None:
    """whisper.cpp#579: a spectrogram padded with zeros says that the padding is louder than the tone's background."""
    found, _ = log_mel(sound("tone"), pad_to=WINDOW)
    padding = found[0, :, 110:]
    assert torch.equal(padding, (found.max() - 2.0).expand_as(padding))
    assert found.max() - found.min() <= 2.0 and not bool((padding == 0).any())


def test_silence_gives_one_number() -> None:
    for audio, options in ((torch.zeros(RATE), {}), (torch.zeros(1), {"pad_to": WINDOW}), (torch.zeros(1), {})):
        found, _ = log_mel(audio, **options)
        assert torch.equal(found, torch.full_like(found, -1.5))


@pytest.mark.parametrize("samples", [1, 200, 201, 399, 400, 1000])
def test_short_audio_has_a_frame_for_each_whole_step_and_one_at_least(samples: int) -> None:
    found, mask = log_mel(0.1 * sound("noise")[:samples])
    assert found.shape == (1, 80, max(samples // 160, 1)) and bool(mask.all())
    assert bool(found.isfinite().all()) and found.max() - found.min() <= 2.0


def test_audio_beyond_the_window_is_cut_in_its_samples() -> None:
    audio = sound("31 s")
    found, _ = log_mel(audio, pad_to=WINDOW)
    torch.testing.assert_close(found, log_mel(audio[:WINDOW], pad_to=WINDOW)[0])


def test_half_precision_is_computed_in_fp32() -> None:
    assert log_mel(sound("tone").half())[0].dtype == torch.float32


@pytest.mark.parametrize(
    ("audio", "lengths", "words"),
    [
        (torch.zeros(2, 500, dtype=torch.int16), None, "floating point"),
        (torch.zeros(2, 500), torch.tensor([500, 0]), "1 to 500"),
        (torch.zeros(2, 500), torch.tensor([501, 3]), "1 to 500"),
        (torch.zeros(2, 500), torch.tensor([500]), "(2,)"),
        (torch.zeros(0), None, "1 to 0"),
    ],
)
def test_audio_that_cannot_be_read_is_refused(audio: Tensor, lengths: Tensor | None, words: str) -> None:
    with pytest.raises(ValueError, match=words.replace("(", r"\(").replace(")", r"\)")):
        log_mel(audio, lengths)
