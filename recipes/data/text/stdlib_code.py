"""`stdlib_code`: the source of the Python that runs, as a corpus of code."""

from __future__ import annotations

import hashlib
import platform
import sysconfig
from pathlib import Path

from pydantic import Field

from recipes.data.text.corpora import TextData, TextDataConfig, check_splits, text_hash
from zoo.registry import ConfigError, register

__all__ = ["StdlibCode"]

# Installed packages, tests, and files that are data more than code: these differ from one installation to the next.
LEFT_OUT = {
    "site-packages",
    "dist-packages",
    "test",
    "tests",
    "idle_test",
    "idlelib",
    "lib2to3",
    "__pycache__",
    "turtledemo",
}


@register("data", "stdlib_code")
class StdlibCode(TextDataConfig):
    """The standard library of the Python that runs (PSF licence): one document a file, nothing to install.

    Files are split by the sha1 of their name: 90 of 100 for training, 5 for validation, 5 for test. The text differs
    between versions of Python, so figures on it belong to the version and the content hash that are recorded with them.
    Tests, installed packages and files that are not UTF-8 are left out. limit: cap on the training files.
    """

    limit: int | None = Field(default=None, ge=1)

    def load(self, seed: int = 0) -> TextData:
        root = Path(sysconfig.get_path("stdlib"))
        splits: tuple[list[str], list[str], list[str]] = ([], [], [])
        for path in sorted(root.rglob("*.py"), key=lambda path: path.relative_to(root).as_posix()):
            below = path.relative_to(root)
            if LEFT_OUT & set(below.parts):
                continue
            try:
                text = path.read_text(encoding="utf-8")
            except (UnicodeDecodeError, OSError):
                continue
            place = int(hashlib.sha1(below.as_posix().encode()).hexdigest(), 16) % 100
            if text.strip():
                splits[0 if place < 90 else 1 if place < 95 else 2].append(text)
        if not any(splits):
            raise ConfigError([(("data",), f"'stdlib_code' finds no source in {root}; take data=kjv")])
        train, val, test = tuple(splits[0][: self.limit]), tuple(splits[1]), tuple(splits[2])
        check_splits("stdlib_code", train=train, val=val, test=test)
        source = f"standard library of {platform.python_implementation()} {platform.python_version()}"
        return TextData(train, val, test, source, text_hash((*train, *val, *test)))
