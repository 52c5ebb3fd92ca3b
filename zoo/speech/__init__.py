"""From audio to text with a speech model: files, windows, tokens, rules (`transcribe`)."""

from __future__ import annotations

from zoo.speech.audio import load_audio
from zoo.speech.conventions import SpeechConventions
from zoo.speech.transcribe import Segment, Transcript, transcribe

__all__ = ["Segment", "SpeechConventions", "Transcript", "load_audio", "transcribe"]
