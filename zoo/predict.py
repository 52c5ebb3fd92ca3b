"""Answers of a trained run for the user's own images, texts and sounds: `python -m zoo.predict RUN_DIR ...`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from zoo import paths
from zoo.cli.errors import guarded, refuse

__all__ = ["main"]

USAGE = """\
Answer for your own images, texts and sounds with the model of a finished run.

  python -m zoo.predict RUN_DIR image.png ...       vit: classes with probabilities, a line a file
  python -m zoo.predict RUN_DIR --prompt "In the"   gpt: the text goes on;  bert: masked places are filled
  python -m zoo.predict RUN_DIR --input FILE        t5, transformer: an answer to each line
  python -m zoo.predict RUN_DIR file.wav ...        whisper: the words of each file
  python -m zoo.predict RUN_DIR --target 400 --episodes 5   decision: returns of real episodes
  python -m zoo.predict RUN_DIR --classes 3,7 --count 8 --out grid.png   dit: a picture, a row a class

RUN_DIR is the folder that `python -m zoo.run` wrote. What follows it is what the run's recipe takes.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line (without the program's name; default: this process's) and return its exit code."""
    return guarded(lambda: _main(sys.argv[1:] if argv is None else argv))


def _main(words: Sequence[str]) -> int:
    if "-h" in words or "--help" in words:
        print(USAGE, end="")
        return 0
    if not words:
        raise refuse("name a run folder and what to answer, e.g. python -m zoo.predict RUN_DIR image.png")
    from zoo.cli.settings import read_run

    read_run(words[0], "RUN_DIR")
    if not (Path(words[0]) / "model").is_dir():
        raise refuse(f"'{words[0]}' holds no exported model; the run has not ended, go on with resume={words[0]}")
    paths.use()
    from recipes.launch import predict

    return predict(Path(words[0]), list(words[1:]))


if __name__ == "__main__":
    sys.exit(main())
