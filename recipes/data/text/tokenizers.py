"""Tokenizers: trained once on the training split, saved with the run, and free of loss: decode(encode(s)) == s.

`TokenizerConfig.train` makes a `Tokenizer`. It adds special tokens to one of the ways to cut text of
`tokenizer_models`: ids 0, 1, ... are the special tokens in the order of the config, then come the sentinels, then the
text. Special tokens are no text: none of their names means anything in a text, and no text is ever cut into one.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, field_validator
from torch import Tensor

from recipes.data.text.sequences import Sequences
from recipes.data.text.spelling import NIBBLES
from recipes.data.text.tokenizer_models import TextModel, model_from
from zoo.files import write_text
from zoo.registry import Config, ConfigError, nearest

__all__ = ["ROLES", "Tokenizer", "TokenizerConfig"]

ROLES = ("pad", "bos", "eos", "unk", "cls", "sep", "mask")
FILE = "tokenizer.json"
ROLES_FILE = "tokenizer_roles.json"
AT_ONCE = 4096  # texts that are cut in one call; their ids as Python numbers take ten times the memory of an array


class TokenizerConfig(Config):
    """Base of tokenizers, kind "tokenizer".

    special: roles that get a token, in the order of their ids from 0: pad, bos, eos, unk, cls, sep, mask. sentinels:
    tokens that stand for spans taken out, as in T5.
    """

    special: tuple[str, ...] = ("pad", "bos", "eos")
    sentinels: int = Field(default=0, ge=0)

    @field_validator("special")
    @classmethod
    def _known_roles(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for role in value:
            if role not in ROLES:
                raise ValueError(f"'{role}' is not a special token{nearest(role, ROLES)}; choices: {', '.join(ROLES)}")
        if len(set(value)) < len(value):
            raise ValueError(f"should name each special token once, got {', '.join(value)}")
        return value

    @property
    def reserved(self) -> int:
        """Ids that are no text."""
        return len(self.special) + self.sentinels

    def train(self, texts: Iterable[str]) -> Tokenizer:
        """The tokenizer of these texts; the same texts give the same one. Raises ConfigError when the settings leave
        no room, ValueError when a text holds a lone surrogate (no UTF-8 can)."""
        texts = texts if isinstance(texts, Sequence) else list(texts)
        for text in texts:
            text.encode("utf-8")
        return Tokenizer(self.model(texts), self.special, self.sentinels)

    def model(self, texts: Sequence[str]) -> TextModel:
        """The way to cut text, trained."""
        raise NotImplementedError

    def room(self, vocab_size: int, base: int) -> int:
        """Tokens left for text in a vocabulary of `vocab_size`. Raises ConfigError when the base takes more."""
        room = vocab_size - self.reserved
        if room < base:
            problem = f"should be at least {base + self.reserved}, which its single characters take, got {vocab_size}"
            raise ConfigError([(("vocab_size",), problem)])
        return room


class Tokenizer:
    """From strings to ids and back; `encode` writes every string but those with a lone surrogate (ValueError).

    pad_id, bos_id, eos_id, unk_id, cls_id, sep_id, mask_id: None where the tokenizer was made without.
    sentinel_ids: in the order of use. is_special: (V,) bool, special tokens and sentinels. random_ids: int64, the ids
    of text that training can have met, from which masked language models draw.
    """

    FORMAT: ClassVar[int] = 1

    def __init__(self, model: TextModel, special: Sequence[str], sentinels: int) -> None:
        self.model = model
        self.special = tuple(special)
        self.first = len(self.special) + sentinels
        self.vocab_size = self.first + len(model.pieces)
        self.sentinel_ids = tuple(range(len(self.special), self.first))
        roles = {role: place for place, role in enumerate(self.special)}
        self.pad_id, self.bos_id, self.eos_id, self.unk_id = map(roles.get, ("pad", "bos", "eos", "unk"))
        self.cls_id, self.sep_id, self.mask_id = map(roles.get, ("cls", "sep", "mask"))
        self.text_first = self.first + (NIBBLES if model.spells else 0)
        self.is_special: Tensor = torch.arange(self.vocab_size) < self.first
        self.random_ids: Tensor = torch.arange(self.text_first, self.vocab_size)
        self._pieces = [b""] * self.first + model.pieces
        self._lengths = np.array([len(piece) for piece in self._pieces], dtype=np.int64)
        heads = [sum(byte & 0xC0 != 0x80 for byte in piece) for piece in self._pieces]
        self._characters = np.array(heads, dtype=np.int64)
        self._begins, self._inside, self._joins = self._edges()

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Ids of a text. special: between cls and sep, or else bos and eos, as far as the tokenizer has them."""
        ids = self.encode_batch([text])[0]
        if not special:
            return ids
        before, after = (self.cls_id, self.sep_id) if self.cls_id is not None else (self.bos_id, self.eos_id)
        return [i for i in (before,) if i is not None] + ids + [i for i in (after,) if i is not None]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, the same as one by one."""
        return [self._final(ids) for ids in self.model.encode(list(texts))]

    def sequences(self, texts: Iterable[str]) -> Sequences:
        """Ids of all texts in one flat array."""
        parts: list[Sequences] = []
        waiting: list[str] = []
        for text in texts:
            waiting.append(text)
            if len(waiting) == AT_ONCE:
                parts.append(Sequences.of(self.encode_batch(waiting)))
                waiting = []
        return Sequences.join([*parts, Sequences.of(self.encode_batch(waiting))])

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """The text of ids. Special tokens are left out, or written as <pad>; bytes that are no UTF-8, which `encode`
        never gives but a model may, become U+FFFD. Raises ValueError for ids beyond the vocabulary."""
        parts: list[bytes] = []
        for i, piece in self._bytes(ids):
            if i >= self.first:
                parts.append(piece)
            elif not skip_special:
                parts.append(self.name(i).encode())
        return self.model.joiner.join(parts).decode("utf-8", errors="replace")

    def name(self, i: int) -> str:
        """What an id is called: <pad>, <sentinel_0>, or its text."""
        if not 0 <= i < self.vocab_size:
            raise ValueError(f"id should be below the vocabulary of {self.vocab_size}, got {i}")
        if i < len(self.special):
            return f"<{self.special[i]}>"
        if i < self.first:
            return f"<sentinel_{i - len(self.special)}>"
        if i < self.text_first:
            return f"<{i - self.first:x}>"
        return self._pieces[i].decode("utf-8", errors="backslashreplace")

    def truncate(self, ids: Sequence[int], length: int) -> list[int]:
        """The longest start of at most `length` ids whose text is a start of the whole text: no character is split."""
        for end in range(min(length, len(ids)), 0, -1):
            reader = codecs.getincrementaldecoder("utf-8")("replace")
            reader.decode(b"".join(piece for _, piece in self._bytes(ids[:end])))
            half = self.model.spells and self._open(ids[:end])
            if end == len(ids) or not (half or reader.getstate()[0]):
                return list(ids[:end])
        return []

    def bytes_of(self, ids: Iterable[int]) -> list[int]:
        """Bytes of UTF-8 that each id adds to the text; special tokens add none."""
        return self._adds(ids, self._lengths, lambda byte: 1)

    def characters_of(self, ids: Iterable[int]) -> list[int]:
        """Characters that begin in each id; their sum is the length of the text."""
        return self._adds(ids, self._characters, lambda byte: int(byte & 0xC0 != 0x80))

    def word_starts(self, ids: Iterable[int]) -> list[bool]:
        """Whether a word begins with each id; the ids up to the next start are its rest. See `starts_words`."""
        return self.starts_words(np.fromiter(ids, dtype=np.int64)).tolist()

    def starts_words(self, ids: NDArray[Any]) -> NDArray[np.bool_]:
        """(N,) bool for ids (N,). A word is a stretch of letters and digits with the white space before it, or a
        punctuation mark; each special token is one, and where symbols are joined by white space, each symbol."""
        if self.model.joiner:
            return np.ones(len(ids), dtype=bool)
        starts = ~self._inside[ids]  # (N,) not in the middle of a character
        starts[1:] &= ~(self._begins[ids[1:]] & self._joins[ids[:-1]])
        starts[:1] = True
        starts[1:] |= ids[:-1] < self.first
        return starts

    def save(self, folder: str | Path) -> None:
        """Write tokenizer_roles.json and, where the `tokenizers` library cuts the text, tokenizer.json."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        stored = {
            "format": self.FORMAT,
            "kind": self.model.kind,
            "special": list(self.special),
            "sentinels": len(self.sentinel_ids),
            **self.model.state(),
        }
        library = getattr(self.model, "library", None)
        if library is not None:
            write_text(folder / FILE, library.to_str())
        write_text(folder / ROLES_FILE, json.dumps(stored, ensure_ascii=True, indent=1) + "\n")

    @classmethod
    def load(cls, folder: str | Path) -> Tokenizer:
        """The tokenizer that `save` wrote. Raises ConfigError in one line where it is not there or damaged."""
        folder = Path(folder)
        try:
            stored = json.loads((folder / ROLES_FILE).read_text(encoding="utf-8"))
            library = None
            if stored["kind"] in ("bpe", "wordpiece", "unigram"):
                from tokenizers import Tokenizer as Library

                library = Library.from_str((folder / FILE).read_text(encoding="utf-8"))
            return cls(model_from(stored["kind"], stored, library), stored["special"], stored["sentinels"])
        except FileNotFoundError as error:
            raise ConfigError(f"'{folder}' holds no tokenizer: {error.filename} is missing") from None
        except Exception as error:  # broken JSON, missing keys, and the library's own plain Exception
            why = (str(error) or type(error).__name__).splitlines()[0]
            raise ConfigError(f"cannot read the tokenizer in '{folder}': {why}") from None

    def _final(self, ids: list[int]) -> list[int]:
        first, unknown = self.first, self.unk_id
        return [i + first if i >= 0 else unknown for i in ids]  # type: ignore[misc]  # -1 only where there is 'unk'

    def _bytes(self, ids: Iterable[int]) -> Iterable[tuple[int, bytes]]:
        """Each id with the bytes it adds. The second of two spelling tokens adds their byte; one without its partner
        adds 0xFF, which no UTF-8 holds."""
        pending: int | None = None
        spelled = range(self.first, self.text_first)
        for i in map(int, ids):
            if not 0 <= i < self.vocab_size:
                raise ValueError(f"id should be below the vocabulary of {self.vocab_size}, got {i}")
            if i not in spelled:
                if pending is not None:
                    yield self.first, b"\xff"
                    pending = None
                yield i, self._pieces[i]
            elif pending is None:
                pending = i - self.first
                yield i, b""
            else:
                yield i, bytes([pending * NIBBLES + i - self.first])
                pending = None
        if pending is not None:
            yield self.first, b"\xff"

    def _open(self, ids: Sequence[int]) -> bool:
        """Whether the ids end between two spelling tokens."""
        tail = 0
        for i in reversed(ids):
            if not self.first <= i < self.text_first:
                break
            tail += 1
        return tail % 2 == 1

    def _adds(self, ids: Iterable[int], table: NDArray[np.int64], of_byte: Any) -> list[int]:
        rows = np.fromiter(ids, dtype=np.int64)
        counts = table[rows].tolist()
        pending: int | None = None
        for place in np.flatnonzero((rows >= self.first) & (rows < self.text_first)).tolist():
            if pending == place - 1:
                byte = (int(rows[pending]) - self.first) * NIBBLES + int(rows[place]) - self.first
                counts[place], pending = of_byte(byte), None
            else:
                pending = place
        return counts

    def _edges(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
        """Tables (V,): whether a token begins with a letter or digit, begins inside a character, ends with a letter or
        digit. A part of a character that is not ASCII counts as a letter, and so does a spelling token."""
        begins, inside, joins = (np.zeros(self.vocab_size, dtype=bool) for _ in range(3))
        for i, piece in enumerate(self._pieces):
            if self.first <= i < self.text_first:
                begins[i] = joins[i] = True
            elif piece:
                text = piece.decode("utf-8", errors="replace")
                begins[i] = text[0].isalnum() or (piece[0] >= 0x80 and text[0] == "\ufffd")
                joins[i] = text[-1].isalnum() or (piece[-1] >= 0x80 and text[-1] == "\ufffd")
                inside[i] = piece[0] & 0xC0 == 0x80
        return begins, inside, joins
