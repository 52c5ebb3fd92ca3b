"""The command line of `python -m benchmarks.speed`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.speed import families
from benchmarks.words import WordsError, choice, integer, nearest, split

__all__ = ["HELP", "KEYS", "Options", "parse"]

HELP = """Speed and memory of our models against other implementations, as ratios within one process.

    python -m benchmarks.speed model=vit [key=value ...]

    model=NAME[,NAME]    families to measure: {families} (a bare NAME says the same)
    case=NAME[,NAME]     only these cases, or all whose names begin with NAME-; case=smoke takes seconds and shows that
                         everything runs
    rounds=N             alternating repeats; one ratio a round, the median counts; default 11, mixers 3
    threads=1            threads of every arm
    device=cpu           cpu or cuda
    control=true         read our own arm twice a round: the noise that the other ratios are read by (not mixers)
    memory=true          peak memory of every arm, in a child process
    out=FILE             JSON, default benchmarks/results/speed_<model>.json (none for case=smoke)

Ratios are ours / theirs: below 1 ours is better. Judge by CPU time with one thread, by wall time otherwise.
"""


@dataclass(frozen=True)
class Options:
    """What to measure and how. rounds: None: as many as the family says."""

    models: tuple[str, ...]
    cases: tuple[str, ...] = ()
    rounds: int | None = None
    threads: int = 1
    device: str = "cpu"
    control: bool = True
    memory: bool = True
    out: Path | None = None


KEYS = ("model", "case", "rounds", "threads", "device", "control", "memory", "out")


def parse(words: Sequence[str]) -> Options:
    """Options from the words of the command line. Raises WordsError."""
    known = families.names()
    bare = [word for word in words if word in known]
    values = split([word for word in words if word not in known], KEYS)
    named = values["model"].split(",") if "model" in values else []
    models: list[str] = list(dict.fromkeys(bare + named))
    if not models:
        raise WordsError(f"model: is required; choices: {', '.join(known)}")
    for model in models:
        if model not in known:
            raise WordsError(f"model: unknown '{model}'{nearest(model, known)}; choices: {', '.join(known)}")
    return Options(
        models=tuple(models),
        cases=tuple(values["case"].split(",")) if "case" in values else (),
        rounds=integer(values, "rounds", 11, 1, 10_000) if "rounds" in values else None,
        threads=integer(values, "threads", 1, 1, os.cpu_count() or 1),
        device=choice(values, "device", "cpu", ("cpu", "cuda")),
        control=choice(values, "control", "true", ("true", "false")) == "true",
        memory=choice(values, "memory", "true", ("true", "false")) == "true",
        out=Path(values["out"]) if "out" in values else None,
    )
