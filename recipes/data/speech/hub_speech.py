"""`hub_speech`: recordings and their words from the Hugging Face Hub, or from local tables."""

from __future__ import annotations

from typing import Any

from recipes.data.hub import TABLES, check_column
from recipes.data.speech.clips import Clips, SpeechData, SpeechDataConfig
from recipes.data.speech.recordings import TableAudio, text_of
from recipes.data.text.corpora import check_splits, text_hash
from recipes.data.text.hub_tables import HubSource, hold_out
from zoo.registry import Config, ConfigError, register

__all__ = ["HubSpeech", "SpeechColumns"]


class SpeechColumns(Config):
    """Names of the set's columns."""

    audio: str = "audio"
    text: str = "text"
    """Words, or a class whose name is the word; a class named _silence_ has none."""
    speaker: str | None = None


@register("data", "hub_speech")
class HubSpeech(SpeechDataConfig, HubSource):
    """Any speech set of the Hugging Face Hub (`id`), or a local copy of it (`path`). Licence: see its card.

    columns: what the set calls audio, text and, where it has them, speakers. lowercase: words in small letters. A split
    that is missing is held out of the training split by speaker, or by text where none is known.
    """

    columns: SpeechColumns = SpeechColumns()
    lowercase: bool = True

    def load(self, seed: int = 0) -> SpeechData:
        place = self.place
        known = {split: self._clips(table, place) for split, table in self.tables("spoken_digits", TABLES).items()}
        keys = {
            split: [(row, speaker or text) for row, (speaker, text) in enumerate(zip(c.speakers, c.texts, strict=True))]
            for split, c in known.items()
        }
        held = hold_out(keys, self.held_out, lambda item: item[1], self.limit)
        parts: dict[str, Clips] = {}
        for split, rows in zip(("train", "val", "test"), held, strict=True):
            parts[split] = known.get(split, known["train"])[[row for row, _ in rows]]
        check_splits(place, **parts)
        content = text_hash(text for clips in parts.values() for text in clips.texts)
        return SpeechData(**parts, source=place, content_hash=content)

    def _clips(self, table: Any, place: str) -> Clips:
        import datasets

        columns = self.columns
        check_column(table, columns.audio, "audio", place)
        check_column(table, columns.text, "text", place)
        if not isinstance(table.features[columns.audio], datasets.Audio):
            raise ConfigError(f"column '{columns.audio}' of {place} holds no audio", "data.columns.audio")
        table = table.cast_column(columns.audio, datasets.Audio(decode=False))
        values, kind = list(table[columns.text]), table.features[columns.text]
        texts = [kind.int2str(value) for value in values] if hasattr(kind, "int2str") else [v or "" for v in values]
        speakers: list[str] = [""] * len(texts)
        if columns.speaker is not None:
            check_column(table, columns.speaker, "speaker", place)
            speakers = ["" if value is None else str(value) for value in table[columns.speaker]]
        audio = TableAudio(table, columns.audio, place)
        words = tuple(text_of(text, self.lowercase) for text in texts)
        return Clips(words, tuple(speakers), audio.lengths(), audio)
