"""A tiny corpus of pairs in files, and settings of a small run from one sequence to another."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from recipes.data.text.corpora import Pair, PairData


def pairs(count: int, seed: int = 0, longest: int = 7) -> list[tuple[str, str]]:
    """Random words of the letters a to f, and their letters in upper case; each word once."""
    draw, found = random.Random(seed), {}
    while len(found) < count:
        word = "".join(draw.choice("abcdef") for _ in range(draw.randint(2, longest)))
        found[word] = " ".join(word.upper())
    return list(found.items())


def corpus(count: int) -> PairData:
    """The same words as a corpus, a fifth of it for val and for test."""
    made = [Pair(source, target, (target,)) for source, target in pairs(count)]
    fifth = count // 5
    return PairData(tuple(made[2 * fifth :]), tuple(made[:fifth]), tuple(made[fifth : 2 * fifth]), "memory", "0")


def write_pairs(folder: Path, count: int = 200) -> Path:
    """The corpus as jsonl files, one a split."""
    folder.mkdir(parents=True, exist_ok=True)
    made = corpus(count)
    for split in ("train", "val", "test"):
        rows = [json.dumps({"source": pair.source, "target": pair.target}) for pair in getattr(made, split)]
        (folder / f"{split}.jsonl").write_text("\n".join(rows) + "\n")
    return folder


def pair_settings(path: Path, name: str = "transformer", **changes: Any) -> dict[str, Any]:
    """Settings of a run of a second; groups are merged key by key."""
    settings: dict[str, Any] = {
        "name": name,
        "seed": 0,
        "mode": "train",
        "checkpoint": None,
        "resume": None,
        "model": {"family": name, "dim": 16, "depth": 1, "heads": 2},
        "data": {"name": "hub_pairs", "path": str(path), "splits": {"val": "val"}},
        "optim": {"name": "adam", "lr": 1e-2, "ema": 0.9, "schedule": {"name": "inverse_sqrt", "warmup": 2}},
        "trainer": {"max_steps": 6, "log_every_n_steps": 2, "save_every": 2, "val_check_interval": 3},
        "logger": {"name": "csv"},
        "task": {"batch_size": 20, "eval_batch_size": 16},
    }
    for key, value in changes.items():
        settings[key] = {**settings[key], **value} if isinstance(value, dict) else value
    return settings
