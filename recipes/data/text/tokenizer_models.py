"""How tokenizers cut text: one class a way, all with ids from 0 that know nothing of special tokens.

Each says the bytes that a token stands for (`pieces`); read in order they give back the text, so decoding is exact by
construction and the same for all. Tokens 0..15 of a model with `spells` are those of `spelling`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from recipes.data.text.spelling import NIBBLES, Alphabet, spell

__all__ = ["ByteModel", "CharacterModel", "PieceModel", "TextModel", "WordModel", "model_from"]


class TextModel(Protocol):
    """From texts to ids and back to bytes."""

    kind: str
    pieces: list[bytes]
    """The bytes of each token; those of the spelling tokens stand empty."""
    spells: bool
    joiner: bytes
    """What stands between two tokens."""

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text. Raises ValueError for what cannot be written: a lone surrogate, an unknown symbol."""
        ...

    def state(self) -> dict[str, Any]:
        """Plain values that `model_from` makes the model of, beside the library's own file."""
        ...


class ByteModel:
    """A token for each byte of UTF-8."""

    kind = "bytes"
    spells = False
    joiner = b""

    def __init__(self) -> None:
        self.pieces = [bytes([value]) for value in range(256)]

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [list(text.encode("utf-8")) for text in texts]

    def state(self) -> dict[str, Any]:
        return {}


class CharacterModel:
    """A token for each known character; others are spelled."""

    kind = "characters"
    spells = True
    joiner = b""

    def __init__(self, alphabet: str) -> None:
        self.alphabet = alphabet
        self.pieces = [b""] * NIBBLES + [character.encode("utf-8") for character in alphabet]
        self._ids = {character: NIBBLES + place for place, character in enumerate(alphabet)}

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [self._one(text) for text in texts]

    def _one(self, text: str) -> list[int]:
        ids = self._ids
        try:
            return [ids[character] for character in text]
        except KeyError:
            made: list[int] = []
            for character in text:
                if character in ids:
                    made.append(ids[character])
                else:
                    made += spell(character)
            return made

    def state(self) -> dict[str, Any]:
        return {"alphabet": self.alphabet}


class WordModel:
    """A token for each symbol; symbols are what white space separates. `unknown` stands for those not known."""

    kind = "words"
    spells = False
    joiner = b" "

    def __init__(self, symbols: Sequence[str], unknown: bool) -> None:
        self.symbols = list(symbols)
        self.unknown = unknown
        self.pieces = [symbol.encode("utf-8") for symbol in self.symbols]
        self._ids = {symbol: place for place, symbol in enumerate(self.symbols)}

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Unknown symbols are -1 where there is a token for them. Raises ValueError where there is none."""
        try:
            return [[self._ids[symbol] for symbol in text.split()] for text in texts]
        except KeyError as missing:
            if not self.unknown:
                problem = f"{missing} is not one of the {len(self.symbols)} symbols, and the tokenizer has no 'unk'"
                raise ValueError(problem) from None
            return [[self._ids.get(symbol, -1) for symbol in text.split()] for text in texts]

    def state(self) -> dict[str, Any]:
        return {"symbols": self.symbols, "unknown": self.unknown}


class PieceModel:
    """Tokens of several characters, cut by a model of the `tokenizers` library.

    library: cuts texts of known characters. alphabet: these characters; None where it cuts every text (byte-level).
    pieces: the bytes of the library's tokens by its ids.
    """

    joiner = b""

    def __init__(self, kind: str, library: Any, alphabet: str | None) -> None:
        self.kind = kind
        self.library = library
        self.spells = alphabet is not None
        self.alphabet = None if alphabet is None else Alphabet(alphabet)
        vocabulary = sorted(library.get_vocab(with_added_tokens=False).items(), key=lambda item: item[1])
        tokens = [token for token, _ in vocabulary]
        if alphabet is None:
            unmapped = _byte_of_character()
            self.pieces = [bytes(unmapped[character] for character in token) for token in tokens]
        else:
            texts = (token.removeprefix(CONTINUES) if kind == "wordpiece" else token for token in tokens)
            self.pieces = [b""] * NIBBLES + [text.encode("utf-8") for text in texts]

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        if self.alphabet is None:
            for text in texts:
                text.encode("utf-8")  # the library's own error for a lone surrogate does not tell it
            return [made.ids for made in self.library.encode_batch_fast(list(texts), add_special_tokens=False)]
        if all(map(self.alphabet.covers, texts)):
            return [_shifted(made.ids) for made in self.library.encode_batch_fast(texts, add_special_tokens=False)]
        runs = [list(self.alphabet.runs(text)) for text in texts]
        known = [stretch for cut in runs for is_known, stretch in cut if is_known]
        made = iter(self.library.encode_batch_fast(known, add_special_tokens=False))
        return [
            [i for is_known, stretch in cut for i in (_shifted(next(made).ids) if is_known else spell(stretch))]
            for cut in runs
        ]

    def state(self) -> dict[str, Any]:
        return {"alphabet": None if self.alphabet is None else self.alphabet.characters}


CONTINUES = "\U000f0000"
"""Before the pieces of WordPiece that continue a word (the paper's "##", which a text may hold itself)."""


def model_from(kind: str, state: dict[str, Any], library: Any) -> TextModel:
    """The model of a saved state."""
    if kind == "bytes":
        return ByteModel()
    if kind == "characters":
        return CharacterModel(state["alphabet"])
    if kind == "words":
        return WordModel(state["symbols"], state["unknown"])
    return PieceModel(kind, library, state["alphabet"])


def _shifted(ids: list[int]) -> list[int]:
    return (np.asarray(ids, dtype=np.int64) + NIBBLES).tolist()


def _byte_of_character() -> dict[str, int]:
    """The library's printable character for each byte (Radford et al. 2019), inverted: printable ones of Latin-1 stand
    for themselves, the others, in order, for U+0100 and on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [value for value in range(256) if value not in plain]
    return {chr(value): value for value in plain} | {chr(256 + place): value for place, value in enumerate(others)}
