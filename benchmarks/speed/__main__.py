"""python -m benchmarks.speed model=vit"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.speed import families
from benchmarks.speed.options import HELP, Options, parse
from benchmarks.words import WordsError

__all__ = ["main"]


def main(words: Sequence[str]) -> int:
    """Exit code: 0 measured (whether or not the targets hold), 1 could not be measured, 2 wrong words."""
    if not words or any(word in ("-h", "--help", "help") for word in words):
        print(HELP.format(families=", ".join(families.names())), end="")
        return 0
    try:
        options = parse(words)
        chosen = {name: _cases(options, name) for name in options.models}
        _check(options)
    except WordsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    try:
        for name, (family, cases) in chosen.items():
            _measure(options, name, family, cases, words)
    except (OSError, RuntimeError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


def _cases(options: Options, name: str) -> tuple[Any, list[Any]]:
    family = families.load(name)
    known = {case.name: case for case in family.cases}
    for case in options.cases:
        if case not in known and len(options.models) == 1:
            raise WordsError(f"case: unknown '{case}'; choices: {', '.join(known)}")
    wanted = options.cases or [case.name for case in family.cases if not case.smoke]
    return family, [known[case] for case in wanted if case in known]


def _check(options: Options) -> None:
    import torch

    if options.device == "cuda" and not torch.cuda.is_available():
        raise WordsError("device: cuda is not available here; use device=cpu")
    if options.out is not None and len(options.models) > 1:
        raise WordsError("out: one file cannot hold several models; leave it out, or measure one model")
    if options.out is not None and options.out.is_dir():
        raise WordsError(f"out: {options.out} is a folder, give a file")


def _measure(options: Options, name: str, family: Any, cases: list[Any], words: Sequence[str]) -> None:
    from benchmarks.files import console, header, results, write_json
    from benchmarks.speed.memory import peaks_in_child
    from benchmarks.speed.report import document, growth, growth_table, table, verdict
    from benchmarks.speed.run import Row, measure_case

    out = options.out
    if out is None and not all(case.smoke for case in cases):
        out = results() / f"speed_{name}.json"
    about = header(" ".join(["python -m benchmarks.speed", *words]), options.threads, options.device)
    screen = console()
    rows: list[Row] = []
    absent: dict[str, str] = {}
    for case in cases:
        screen.print(f"{name} {case.name}: {options.rounds} rounds ...")
        found, missing = measure_case(
            family,
            case,
            rounds=options.rounds,
            threads=options.threads,
            device=options.device,
            control=options.control,
            memory=peaks_in_child if options.memory else None,
        )
        rows += found
        absent |= missing
        if out is not None:
            write_json(
                out, document(rows, absent, about, growth(rows, family, cases))
            )  # what is measured so far stays, should a later case fail
    screen.print(table(rows, f"{name}, {options.threads} thread(s), {options.device}, fp32"))
    if grown := growth(rows, family, cases):
        screen.print(growth_table(grown))
    for peer, reason in absent.items():
        screen.print(f"{peer} is left out: {reason}")
    screen.print(verdict(rows))
    if out is not None:
        screen.print(f"written to {out}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
