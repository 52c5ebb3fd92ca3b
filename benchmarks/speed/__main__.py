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


def _cases(options: Options, name: str) -> tuple[Any, list[tuple[Any, Any]]]:
    """The family, and the cases to measure with the part of it that each belongs to."""
    family = families.load(name)
    everything = family.everything()
    if not options.cases:
        return family, [(part, case) for part, case in everything if not case.smoke]
    chosen = []
    for word in options.cases:
        found = [pair for pair in everything if pair[1].name == word]
        found = found or [pair for pair in everything if pair[1].name.startswith(f"{word}-")]
        if not found and len(options.models) == 1:
            raise WordsError(f"case: unknown '{word}'; choices: {', '.join(case.name for _, case in everything)}")
        chosen += [pair for pair in found if pair not in chosen]
    return family, chosen


def _check(options: Options) -> None:
    import torch

    if options.device == "cuda" and not torch.cuda.is_available():
        raise WordsError("device: cuda is not available here; use device=cpu")
    if options.out is not None and len(options.models) > 1:
        raise WordsError("out: one file cannot hold several models; leave it out, or measure one model")
    if options.out is not None and options.out.is_dir():
        raise WordsError(f"out: {options.out} is a folder, give a file")


def _measure(options: Options, name: str, family: Any, cases: list[tuple[Any, Any]], words: Sequence[str]) -> None:
    from benchmarks.files import console, header, results, write_json
    from benchmarks.speed.arms import OURS
    from benchmarks.speed.measure import told
    from benchmarks.speed.memory import PeakReader
    from benchmarks.speed.report import (
        document,
        growth,
        growth_table,
        line,
        promise_table,
        promises,
        table,
        verdict,
    )
    from benchmarks.speed.run import Row, measure_case

    out = options.out
    if out is None and not all(case.smoke for _, case in cases):
        out = results() / f"speed_{name}.json"
    rounds = family.rounds if options.rounds is None else options.rounds
    about = header(" ".join(["python -m benchmarks.speed", *words]), options.threads, options.device)
    screen = console()
    rows: list[Row] = []
    absent: dict[str, str] = {}
    failed: list[str] = []
    with PeakReader() as peaks:
        for part, case in cases:
            screen.print(f"{name} {case.name}: {rounds} rounds ...")
            try:
                found, missing = measure_case(
                    part,
                    case,
                    rounds=rounds,
                    threads=options.threads,
                    device=options.device,
                    control=options.control and family.control,
                    memory=peaks if options.memory else None,
                )
            except Exception as error:  # the other cases are still to be measured
                failed.append(case.name)
                absent[f"{OURS} ({case.name})"] = f"failed: {told(error)}"
                screen.print(f"  failed: {told(error)}", markup=False)
                continue
            rows += found
            absent |= missing
            for row in found:
                screen.print(line(row), markup=False)
            screen.file.flush()
            if out is not None:  # what is measured so far stays, should a later case fail
                so_far = growth(rows, cases)
                write_json(out, document(rows, absent, about, promises(rows, cases, so_far), so_far))
    screen.print(table(rows, f"{name}, {options.threads} thread(s), {options.device}, fp32"))
    grown = growth(rows, cases)
    judged = promises(rows, cases, grown)
    if grown:
        screen.print(growth_table(grown))
    if judged:
        screen.print(promise_table(judged))
    for peer, reason in absent.items():
        screen.print(f"{peer} is left out: {reason}", markup=False)
    screen.print(verdict(judged))
    if out is not None:
        write_json(out, document(rows, absent, about, judged, grown))
        screen.print(f"written to {out}")
    if failed:
        raise RuntimeError(f"{name}: our own arm failed in {', '.join(failed)}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
