"""Which characters a tokenizer knows, and how it spells the others: two tokens for each byte of their UTF-8, one for
its upper and one for its lower four bits.

So any string can be written with an alphabet of a few letters and 16 tokens more (a token for each byte would be 256),
and read back.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

__all__ = ["NIBBLES", "Alphabet", "find_alphabet"]

NIBBLES = 16
# Private characters that tokenizers use for themselves; in a text they are spelled.
RESERVED = range(0xF0000, 0xFFFFE)


class Alphabet:
    """Known characters, in a fixed order. `runs` cuts a text into stretches of known and of other characters."""

    def __init__(self, characters: Iterable[str]) -> None:
        self.characters = "".join(characters)
        escaped = "".join(re.escape(character) for character in self.characters)
        self._unknown = re.compile(f"[^{escaped}]+" if escaped else "(?s:.+)")

    def covers(self, text: str) -> bool:
        return self._unknown.search(text) is None

    def runs(self, text: str) -> Iterator[tuple[bool, str]]:
        """(known, stretch), in order and without gaps."""
        place = 0
        for found in self._unknown.finditer(text):
            if found.start() > place:
                yield True, text[place : found.start()]
            yield False, found.group()
            place = found.end()
        if place < len(text):
            yield True, text[place:]

    def known_only(self, text: str) -> str:
        """The text without unknown characters."""
        return self._unknown.sub("", text)


def find_alphabet(texts: Iterable[str], limit: int) -> Alphabet:
    """The characters of the texts, at most the `limit` most frequent, in the order of their code points."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text)
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    kept = [character for character, _ in ranked if ord(character) not in RESERVED and not _is_surrogate(character)]
    return Alphabet(sorted(kept[:limit]))


def spell(text: str) -> list[int]:
    """The upper and lower four bits of each byte. Raises UnicodeEncodeError on a lone surrogate."""
    return [nibble for byte in text.encode("utf-8") for nibble in divmod(byte, NIBBLES)]


def _is_surrogate(character: str) -> bool:
    return 0xD800 <= ord(character) < 0xE000
