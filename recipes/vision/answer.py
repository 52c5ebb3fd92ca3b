"""Answers for a user's own image files: classes with probabilities, a line a file."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from recipes.arguments import Parser
from recipes.data.preprocess import Preprocess
from recipes.recipe import fed
from zoo.registry import ConfigError

TOGETHER = 64
"""Files that go through the model at once."""


def answer(model: nn.Module, preprocess: Preprocess, argv: Sequence[str]) -> int:
    """Print an answer for each file in `argv`; a broken file is named on stderr and the others are still answered.

    Options: --top K classes, --json for one JSON object a line (with "error" where a file failed).
    Returns 0, or 1 when any file failed. Raises ConfigError for wrong options.
    """
    options = _parse(argv)
    top = min(options.top, len(preprocess.classes))
    failed = False
    for start in range(0, len(options.files), TOGETHER):
        files = options.files[start : start + TOGETHER]
        opened: dict[int, torch.Tensor] = {}
        problems: dict[int, str] = {}
        for place, file in enumerate(files):
            try:
                opened[place] = preprocess.open(Path(file))
            except ConfigError as error:
                problems[place] = str(error)
        answers = dict(zip(opened, _classes(model, list(opened.values()), preprocess, top), strict=True))
        for place, file in enumerate(files):
            _tell(file, answers.get(place), problems.get(place), options.json)
        failed = failed or bool(problems)
    return int(failed)


@torch.no_grad()
def _classes(
    model: nn.Module, images: list[torch.Tensor], preprocess: Preprocess, top: int
) -> list[list[tuple[str, float]]]:
    if not images:
        return []
    shares, classes = model(fed(model, torch.stack(images))).float().softmax(dim=1).topk(top, dim=1)  # (B, top) each
    return [
        [(preprocess.classes[index], share) for index, share in zip(row, values, strict=True)]
        for row, values in zip(classes.tolist(), shares.tolist(), strict=True)
    ]


def _tell(file: str, found: list[tuple[str, float]] | None, problem: str | None, as_json: bool) -> None:
    if problem is not None:
        sys.stdout.flush()
        print(f"error: {problem}", file=sys.stderr, flush=True)
    if as_json:
        told: dict[str, Any] = {"file": file}
        if found is None:
            told["error"] = problem
        else:
            told["classes"] = [{"class": name, "probability": round(share, 6)} for name, share in found]
        print(json.dumps(told, ensure_ascii=False), flush=True)
    elif found is not None:
        print(f"{file}: " + "  ".join(f"{name} {share:.3f}" for name, share in found), flush=True)


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser("use RUN_DIR image.png ... [--top K] [--json]")
    parser.add_argument("files", nargs="+", metavar="image.png")
    parser.add_argument("--top", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_intermixed_args(list(argv))
    if options.top < 1:
        parser.error(f"--top should be at least 1, got {options.top}")
    return options
