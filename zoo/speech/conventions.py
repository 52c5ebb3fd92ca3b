"""What a speech model needs beside its weights to write text: tokenizer, special tokens, suppression rules, window.

Whisper's decoder is asked by its first tokens (Radford et al. 2022, arXiv:2212.04356, section 2.3):

    <|startoftranscript|> <|en|> <|transcribe|> <|notimestamps|> text ... <|endoftext|>

English-only models leave language and task out. The probability of <|nospeech|> after the first token tells silence.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from zoo.files import write_text
from zoo.registry import ConfigError, nearest

__all__ = ["Decodes", "SpeechConventions"]


class Decodes(Protocol):
    """A tokenizer, as far as speech needs it; `tokenizers.Tokenizer` is one."""

    def decode(self, ids: list[int]) -> str:
        """Text of ids without special tokens."""
        ...


@dataclass(frozen=True, kw_only=True)
class SpeechConventions:
    """Tokens, rules and window of one speech model. Ids are None where the model has no such token."""

    tokenizer: Decodes
    start_id: int
    end_id: int
    languages: dict[str, int] = field(default_factory=dict)
    """Ids by code, "en"; empty: the prompt names neither language nor task."""
    language: str | None = None
    """The one to write where none is asked for; None: that of the audio."""
    tasks: dict[str, int] = field(default_factory=dict)
    """Ids of "transcribe" and "translate"."""
    no_speech_id: int | None = None
    no_timestamps_id: int | None = None
    """Timestamps of 0.00, 0.02 ... seconds follow it."""
    suppress: tuple[int, ...] = ()
    """Tokens that never come."""
    begin_suppress: tuple[int, ...] = ()
    """Tokens that do not come first."""
    max_initial_timestamp: int | None = 50
    """Largest first timestamp, in steps of 0.02 s."""
    window: float = 30.0
    """Most seconds that the model reads at once."""
    fixed: bool = True
    """Pad every window with silence to its full length, as the model was trained; False: any length, with a mask."""
    floor: float = 8.0
    """Of the log-mel features, see zoo.ops.log_mel."""
    generation: dict[str, Any] = field(default_factory=dict)
    """generation_config.json as it was read."""

    def language_id(self, language: str) -> int:
        """Raises ConfigError for a language that the model does not know."""
        if language not in self.languages:
            choices = ", ".join(self.languages) or "none: the model has one language"
            raise ConfigError(
                f"language '{language}' is unknown{nearest(language, self.languages)}; choices: {choices}"
            )
        return self.languages[language]

    def prompt(self, language_id: int | None = None, task: str = "transcribe", timestamps: bool = False) -> list[int]:
        """The first tokens of a target. Raises ConfigError for a task that the model does not know."""
        ids = [self.start_id]
        if language_id is not None:
            ids.append(language_id)
        if self.tasks and self.languages:
            if task not in self.tasks:
                raise ConfigError(
                    f"task '{task}' is unknown{nearest(task, self.tasks)}; choices: {', '.join(self.tasks)}"
                )
            ids.append(self.tasks[task])
        elif task != "transcribe":
            raise ConfigError(f"task '{task}' is unknown to this model; choices: transcribe")
        if self.no_timestamps_id is not None and not timestamps:
            ids.append(self.no_timestamps_id)
        return ids

    def text(self, ids: list[int]) -> str:
        """The words of new tokens, without special tokens and timestamps."""
        first = self.no_timestamps_id
        words = [i for i in ids if i != self.end_id and (first is None or i <= first)]
        return self.tokenizer.decode(words).strip()

    @classmethod
    def from_folder(cls, folder: Path) -> SpeechConventions:
        """From tokenizer.json, generation_config.json and config.json of transformers. Raises ConfigError."""
        from tokenizers import Tokenizer

        try:
            tokenizer: Any = Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # tokenizers raises plain Exception
            raise ConfigError(f"{folder / 'tokenizer.json'}: {str(error).splitlines()[0]}") from None
        generation = _json(folder / "generation_config.json")
        plain = {**_json(folder / "config.json"), **generation}
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        languages = plain.get("lang_to_id") or {name: i for name, i in vocabulary.items() if _LANGUAGE.fullmatch(name)}
        tasks = {name: vocabulary.get(f"<|{name}|>") for name in ("transcribe", "translate")}
        tasks |= plain.get("task_to_id") or {}
        forced = dict(plain.get("forced_decoder_ids") or ())  # id by place, where older versions kept the prompt
        asked = not set(tasks.values()).isdisjoint(forced.values())
        multilingual = plain.get("is_multilingual", "lang_to_id" in plain or asked)
        languages = {name.strip("<|>"): i for name, i in sorted(languages.items())} if multilingual else {}
        end = plain.get("eos_token_id")
        no_timestamps = plain.get("no_timestamps_token_id", vocabulary.get("<|notimestamps|>"))
        no_speech = vocabulary.get("<|nospeech|>", vocabulary.get("<|nocaptions|>"))
        return cls(
            tokenizer=tokenizer,
            start_id=_id(plain, "decoder_start_token_id", vocabulary.get("<|startoftranscript|>"), folder),
            end_id=_id({"eos_token_id": end[0] if isinstance(end, list) else end}, "eos_token_id", None, folder),
            languages=languages,
            language=next((name for name, i in languages.items() if i == forced.get(1)), None),
            tasks={name: i for name, i in tasks.items() if i is not None} if multilingual else {},
            no_speech_id=no_speech if no_speech is not None else no_timestamps and no_timestamps - 1,
            no_timestamps_id=no_timestamps,
            suppress=tuple(plain.get("suppress_tokens") or ()),
            begin_suppress=tuple(plain.get("begin_suppress_tokens") or ()),
            max_initial_timestamp=plain.get("max_initial_timestamp_index"),
            generation=generation,
        )

    def to_folder(self, folder: Path) -> None:
        """Write tokenizer.json and generation_config.json."""
        tokenizer: Any = self.tokenizer
        plain: dict[str, Any] = {
            "decoder_start_token_id": self.start_id,
            "eos_token_id": self.end_id,
            "pad_token_id": self.end_id,
            "is_multilingual": bool(self.languages),
            "suppress_tokens": list(self.suppress),
            "begin_suppress_tokens": list(self.begin_suppress),
            "max_initial_timestamp_index": self.max_initial_timestamp,
            "no_timestamps_token_id": self.no_timestamps_id,
        }
        if self.languages:
            plain["lang_to_id"] = {f"<|{name}|>": i for name, i in self.languages.items()}
            plain["task_to_id"] = self.tasks
        write_text(folder / "tokenizer.json", tokenizer.to_str(pretty=True))
        write_text(folder / "generation_config.json", json.dumps(self.generation or plain, indent=2) + "\n")


_LANGUAGE = re.compile(r"<\|[a-z]{2,3}\|>")


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from None


def _id(plain: dict[str, Any], name: str, default: int | None, folder: Path) -> int:
    value = plain.get(name)
    value = default if value is None else value
    if not isinstance(value, int):
        raise ConfigError(f"{folder}: '{name}' should be a token id, got {value!r}; see generation_config.json")
    return value
