"""Answers for a user: a picture of new images, a row for each class that is asked for."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from recipes.arguments import Parser
from recipes.data.preprocess import Preprocess, to_image
from recipes.generation.sampling import samples
from zoo.diffusion import ProcessConfig
from zoo.files import write_text, write_whole
from zoo.registry import ConfigError, decode, encode, nearest

__all__ = ["answer", "find_class", "picture", "read_process", "write_process"]

PROCESS_FILE = "process.json"
SIDE, GAP = 64, 2
"""Smallest side of an image in the picture, and the space between two, in pixels."""


def write_process(folder: Path, process: ProcessConfig, guidance: float) -> None:
    """What sampling needs beside the model."""
    write_text(folder / PROCESS_FILE, json.dumps({"process": encode(process), "guidance": guidance}, indent=2) + "\n")


def read_process(folder: Path) -> tuple[ProcessConfig, float]:
    """What `write_process` wrote. Raises ConfigError for a damaged file."""
    path = folder / PROCESS_FILE
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        return decode("process", held["process"], str(path)), float(held["guidance"])
    except (OSError, ValueError, KeyError, TypeError):
        raise ConfigError(f"'{path}' is missing or damaged", "RUN_DIR") from None


def answer(model: Any, folder: Path, argv: Sequence[str]) -> int:
    """Make images and write them as one picture. Returns 0. Raises ConfigError for wrong options.

    The image in column n of a class's row has seed --seed + n, whatever else is asked for.
    """
    options = _parse(argv)
    preprocess = Preprocess.load(folder / "preprocess.json")
    config, guidance = read_process(folder)
    names = preprocess.classes if options.classes is None else options.classes.split(",")
    labels = [find_class(name, preprocess.classes) for name in names]
    images = samples(
        model,
        config.build(),
        torch.tensor(labels).repeat_interleave(options.count),
        list(range(options.seed, options.seed + options.count)) * len(labels),
        guidance=guidance if options.guidance is None else options.guidance,
        steps=options.steps,
    )
    try:
        write_whole(options.out, lambda file: picture(images, options.count).save(file, format=_format(options.out)))
    except OSError as error:
        raise ConfigError(f"cannot write '{options.out}': {error.strerror or error}", "predict") from None
    told = ", ".join(preprocess.classes[label] for label in labels)
    print(f"written: {options.out} ({told}; {options.count} each, from seed {options.seed})")
    return 0


def find_class(name: str, classes: Sequence[str]) -> int:
    """The class of that name, or else of that number from 0. Raises ConfigError with the choices."""
    name = name.strip()
    if name in classes:
        return list(classes).index(name)
    if name.isdecimal() and int(name) < len(classes):
        return int(name)
    choices = ", ".join(classes[:20]) + (f" ... ({len(classes)} in all)" if len(classes) > 20 else "")
    raise ConfigError(f"unknown class '{name}'{nearest(name, list(classes))}; choices: {choices}", "predict")


def picture(images: Tensor, columns: int) -> Any:
    """PIL image of images (N, C, H, W) in -1..1, `columns` in a row; small ones are enlarged by a whole factor."""
    factor = max(1, -(-SIDE // min(images.shape[-2:])))
    large = images.repeat_interleave(factor, -2).repeat_interleave(factor, -1)  # (N, C, h, w)
    channels, height, width = large.shape[1:]
    rows = len(large) // columns
    sheet = torch.ones(channels, rows * (height + GAP) - GAP, columns * (width + GAP) - GAP)
    for number, image in enumerate(large):
        top, left = number // columns * (height + GAP), number % columns * (width + GAP)
        sheet[:, top : top + height, left : left + width] = (image + 1) / 2
    return to_image(sheet)


def _format(path: Path) -> str:
    """The format that PIL knows by the file's ending."""
    from PIL import Image

    known = Image.registered_extensions()
    if path.suffix.lower() not in known:
        raise ConfigError(f"--out should end in .png, .jpg or another picture's ending, got '{path}'", "predict")
    return known[path.suffix.lower()]


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser(
        "use RUN_DIR [--classes NAME,NAME] [--count N] [--out FILE.png] [--guidance SCALE] [--steps N] [--seed N]"
    )
    parser.add_argument("--classes", default=None)
    parser.add_argument("--count", type=int, default=8)
    parser.add_argument("--out", type=Path, default=Path("samples.png"))
    parser.add_argument("--guidance", type=float, default=None)
    parser.add_argument("--steps", type=int, default=None)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(list(argv))
    for name, least in (("count", 1), ("steps", 1), ("seed", 0)):
        value = getattr(options, name)
        if value is not None and value < least:
            parser.error(f"--{name} should be at least {least}, got {value}")
    _format(options.out)
    return options
