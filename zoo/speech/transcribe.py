"""Text of audio of any length: windows, language, silence, words. Radford et al. 2022, arXiv:2212.04356, section 4.5.

    model = zoo.from_hf("openai/whisper-tiny.en")
    zoo.transcribe(model, "speech.wav").text

Each window is encoded once. The logits after the first token tell its language and whether anybody speaks; then the
words are written, greedily or by beams. A window counts as silent, and has no text, where the probability of
<|nospeech|> is above a threshold and the words are unlikely too.

Not here: the retries at higher temperatures of the paper, text of the window before as a prompt, word timestamps.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from zoo.blocks.api import Context
from zoo.generation import Generated, generate
from zoo.ops.log_mel import SAMPLE_RATE, log_mel
from zoo.registry import ConfigError
from zoo.speech.audio import load_audio, mono, windows
from zoo.speech.conventions import SpeechConventions
from zoo.speech.rules import SpeechRule

__all__ = ["Segment", "Transcript", "transcribe"]


@dataclass(frozen=True)
class Segment:
    """A piece of audio and its words: a window, or what stands between two timestamps."""

    start: float
    """Seconds."""
    stop: float
    text: str
    no_speech: float
    """Probability that the window holds no speech; 0 where the model does not tell."""
    log_prob: float
    """Mean log-probability of the window's tokens."""


@dataclass(frozen=True)
class Transcript:
    """Words of one audio."""

    segments: tuple[Segment, ...]
    language: str | None
    """Code of the language named to the model; None for a model of one language."""

    @property
    def text(self) -> str:
        return " ".join(segment.text for segment in self.segments if segment.text)


@dataclass
class _Piece:
    clip: int
    start: int
    stop: int
    found: tuple[Segment, ...] = ()


def transcribe(
    model: Any,
    audio: Any,
    *,
    sample_rate: int = SAMPLE_RATE,
    speech: SpeechConventions | None = None,
    language: str | None = None,
    task: str = "transcribe",
    timestamps: bool = False,
    beams: int = 1,
    batch_size: int = 8,
    max_new_tokens: int | None = None,
    no_speech_threshold: float | None = 0.6,
    log_prob_threshold: float | None = -1.0,
) -> Any:
    """The Transcript of one audio, or a list of them for a list of audios.

    audio: a path (wav, flac, ogg, mp3), or samples (L,) or (channels, L) at `sample_rate`; or a list of these.
    speech: tokenizer and rules; None: those that `zoo.from_hf` found in the checkpoint's folder.
    language: code such as "en"; None: the checkpoint's own, or else told by the first window. For models of several
        languages.
    task: "transcribe" or "translate" (to English).
    timestamps: segments between the model's own timestamps; else a segment a window.
    max_new_tokens: of a window; None: half of the model's longest target, as in openai/whisper.
    no_speech_threshold, log_prob_threshold: a window is silent where no_speech is above the one and log_prob below the
        other; None: the first alone decides, or nothing does.

    Dropout is off meanwhile. Raises ConfigError for audio that cannot be read and for what the model does not know.
    """
    speech = speech or getattr(model, "speech", None)
    if speech is None:
        raise ConfigError(
            "the model has no tokenizer; give speech, or read a folder with tokenizer.json by zoo.from_hf"
        )
    if language is not None and not speech.languages and language != "en":
        raise ConfigError(f"language '{language}' is unknown to this model of one language; leave it out")
    language = language or speech.language
    many = isinstance(audio, Sequence) and not isinstance(audio, str)
    clips = [_samples(one, sample_rate) for one in (audio if many else [audio])]
    size = round(speech.window * SAMPLE_RATE)
    pieces = [_Piece(n, *place) for n, clip in enumerate(clips) for place in windows(clip, size)]
    pieces.sort(key=lambda piece: piece.start > 0)  # first windows first: they tell the language
    languages: dict[int, int] = {}
    if language is not None and speech.languages:
        languages = dict.fromkeys(range(len(clips)), speech.language_id(language))
    limit = max_new_tokens or max(model.config.max_len // 2, 1)
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            for start in range(0, len(pieces), batch_size):
                batch = pieces[start : start + batch_size]
                _words(
                    model, speech, clips, batch, languages, task, timestamps, beams, limit,
                    no_speech_threshold, log_prob_threshold,
                )  # fmt: skip
    finally:
        model.train(training)
    codes = {i: code for code, i in speech.languages.items()}
    pieces.sort(key=lambda piece: (piece.clip, piece.start))
    found = [
        Transcript(
            tuple(segment for piece in pieces if piece.clip == n for segment in piece.found),
            codes.get(languages.get(n, -1)),
        )
        for n in range(len(clips))
    ]
    return found if many else found[0]


def _samples(audio: Any, sample_rate: int) -> Tensor:
    return load_audio(audio) if isinstance(audio, (str, os.PathLike)) else mono(audio, sample_rate)


def _words(
    model: Any,
    speech: SpeechConventions,
    clips: list[Tensor],
    batch: list[_Piece],
    languages: dict[int, int],
    task: str,
    timestamps: bool,
    beams: int,
    limit: int,
    no_speech_threshold: float | None,
    log_prob_threshold: float | None,
) -> None:
    """Finds the segments of a batch of pieces, and the languages of clips whose first piece is among them."""
    table = model.head.table  # (V, D)
    cut = [clips[piece.clip][piece.start : piece.stop] for piece in batch]
    lengths = torch.tensor([len(samples) for samples in cut], device=table.device)
    audio = torch.nn.utils.rnn.pad_sequence(cut, batch_first=True).to(table.device)  # (B, L)
    pad_to = round(speech.window * SAMPLE_RATE) if speech.fixed else None
    features, mask = log_mel(
        audio, lengths, mels=model.config.mels, floor=speech.floor, pad_to=pad_to
    )  # (B, M, F), (B, F)
    frames = None if bool(mask.all()) else mask  # (B, F)
    memory = model.encode(features, frames)  # (B, S, D)
    memory_mask = model.memory_mask(frames)
    state = model.init_state(len(batch), limit + 8)
    start = torch.full((len(batch), 1), speech.start_id, device=table.device)
    first = model.features(start, Context(memory=memory, memory_mask=memory_mask), state)  # (B, 1, D)
    logits = model.head(first)[:, -1].float()  # (B, V)
    silence = [0.0] * len(batch)
    if speech.no_speech_id is not None:
        silence = logits.softmax(-1)[:, speech.no_speech_id].tolist()
    if speech.languages:
        known = torch.tensor(list(speech.languages.values()), device=table.device)
        told = known[logits[:, known].argmax(-1)].tolist()
        for piece, likeliest in zip(batch, told, strict=True):
            languages.setdefault(piece.clip, likeliest)
    prompts = [speech.prompt(languages.get(piece.clip), task, timestamps) for piece in batch]
    options: dict[str, Any] = {
        "max_new_tokens": min(limit, model.config.max_len - len(prompts[0]) + 1),
        "beams": beams,
        "eos_id": speech.end_id,
        "rule": SpeechRule(speech, table.shape[0], table.device, timestamps),
    }
    rest = [ids[1:] for ids in prompts]
    if all(rest):
        result = generate(model, rest, state=state, **options)
    else:  # nothing after the first token: the state has read all of the prompt
        result = generate(model, prompts, source=features, source_mask=frames, **options)
    _take(speech, batch, result, silence, timestamps, no_speech_threshold, log_prob_threshold)


def _take(
    speech: SpeechConventions,
    batch: list[_Piece],
    result: Generated,
    silence: list[float],
    timestamps: bool,
    no_speech_threshold: float | None,
    log_prob_threshold: float | None,
) -> None:
    for piece, ids, chances, none in zip(batch, result.new, result.log_probs, silence, strict=True):
        mean = float(chances.mean()) if len(chances) else 0.0
        silent = no_speech_threshold is not None and none > no_speech_threshold
        silent = silent and (log_prob_threshold is None or mean < log_prob_threshold)
        start, stop = piece.start / SAMPLE_RATE, piece.stop / SAMPLE_RATE
        if silent:
            spans = [(start, stop, "")]
        elif timestamps:
            spans = _spans(speech, ids.tolist(), start, stop)
        else:
            spans = [(start, stop, speech.text(ids.tolist()))]
        piece.found = tuple(Segment(*span, none, mean) for span in spans)


def _spans(speech: SpeechConventions, ids: list[int], start: float, stop: float) -> list[tuple[float, float, str]]:
    """Segments between timestamps, in seconds of the whole audio."""
    assert speech.no_timestamps_id is not None
    begin, spans, opened, words = speech.no_timestamps_id + 1, [], start, []
    for token in ids:
        if token < begin:
            words.append(token)
            continue
        time = min(start + (token - begin) * 0.02, stop)
        if text := speech.text(words):
            spans.append((opened, time, text))
        opened, words = time, []
    if text := speech.text(words):
        spans.append((opened, stop, text))
    return spans
