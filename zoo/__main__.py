"""`python -m zoo VERB ...`, also installed as `zoo VERB ...`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from zoo.cli.errors import guarded, refuse

__all__ = ["main"]

VERBS = {
    "run": ("zoo.run", "train, evaluate and report a recipe"),
    "predict": ("zoo.predict", "answer for your own files with the model of a run"),
    "count": ("zoo.cli.count", "parameters, FLOPs, state bytes and activation memory of a model"),
    "walk": ("zoo.cli.walk", "a forward pass step by step: operation, shapes, parameters, FLOPs"),
    "diff": ("zoo.cli.diff", "what differs between two models, in their choices and their counts"),
    "list": ("zoo.cli.listing", "print every part that can be named, with its paper"),
}
"""Verb: (module with `main(argv) -> exit code`, one line)."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line (without the program's name; default: this process's) and return its exit code."""
    return guarded(lambda: _main(list(sys.argv[1:] if argv is None else argv)))


def _main(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        print("A zoo of sequence architectures.\n")
        width = max(map(len, VERBS))
        for verb, (_, text) in VERBS.items():
            print(f"  python -m zoo {verb:<{width}}  {text}")
        print("\n`python -m zoo VERB --help` tells more.")
        return 0 if words else 2
    if words[0] == "--version":
        from zoo import __version__

        print(__version__)
        return 0
    if words[0] not in VERBS:
        from zoo.registry import nearest

        hint = f"; to train, write: run {words[0]}" if "=" in words[0] else ""
        raise refuse(f"unknown verb '{words[0]}'{nearest(words[0], VERBS)}; choices: {', '.join(VERBS)}{hint}")
    return import_module(VERBS[words[0]][0]).main(words[1:])


if __name__ == "__main__":
    sys.exit(main())
