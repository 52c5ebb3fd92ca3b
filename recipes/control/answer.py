"""Answers for a user: episodes of the model at a return that is asked for, a line each."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from recipes.arguments import Parser
from recipes.control.evaluation import TEST_SEED, policy_of
from recipes.control.figures import episode_gif
from recipes.control.rollout import rollout
from recipes.data.control.episodes import Environment, Scaling
from zoo.registry import ConfigError

__all__ = ["answer", "read_world", "write_world"]

WORLD_FILE = "environment.json"


def write_world(folder: Path, environment: Environment, scaling: Scaling, targets: Sequence[float], mode: str) -> None:
    """What a rollout needs beside the model."""
    from dataclasses import asdict

    from zoo.files import write_text

    held = {"environment": asdict(environment), "scaling": asdict(scaling), "targets": list(targets), "rollout": mode}
    write_text(folder / WORLD_FILE, json.dumps(held, indent=2) + "\n")


def read_world(folder: Path) -> tuple[Environment, Scaling, list[float], Any]:
    """What `write_world` wrote. Raises ConfigError for a damaged file."""
    path = folder / WORLD_FILE
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        world: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in held["environment"].items()}
        scaling: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in held["scaling"].items()}
        return Environment(**world), Scaling(**scaling), held["targets"], held["rollout"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise ConfigError(f"'{path}' is missing or damaged", "RUN_DIR") from None


def answer(model: Any, folder: Path, argv: Sequence[str]) -> int:
    """Act and print each episode's return, and their mean. Returns 0. Raises ConfigError for wrong options."""
    options = _parse(argv)
    environment, scaling, targets, mode = read_world(folder)
    target = targets[0] if options.target is None else options.target
    count, first = options.episodes, next(model.parameters())
    outcome = rollout(
        policy_of(model, environment, mode),
        environment,
        scaling,
        [target] * count,
        [options.seed + number for number in range(count)],
        greedy=torch.full((count,), options.greedy),
        seed=options.seed,
        device=first.device,
        dtype=first.dtype,
    )
    returns, lengths = outcome.returns.tolist(), outcome.lengths.tolist()
    for number, (value, length) in enumerate(zip(returns, lengths, strict=True), 1):
        if options.json:
            print(json.dumps({"episode": number, "target": target, "return": value, "steps": length}))
        else:
            print(f"episode {number}: return {value:g} in {length} steps (asked for {target:g})")
    if not options.json and count > 1:
        spread = float(outcome.returns.std(unbiased=False))
        print(f"mean of {count}: {sum(returns) / count:.1f} +- {spread:.1f}")
    if options.gif is not None:
        made = episode_gif(model, environment, scaling, target, options.gif, mode=mode, seed=options.seed)
        if made is None:
            raise ConfigError(f"'{environment.id}' does not draw itself here; leave --gif out", "predict")
        print(f"written: {made}")
    return 0


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser("use RUN_DIR [--target RETURN] [--episodes N] [--greedy] [--seed N] [--gif FILE.gif] [--json]")
    parser.add_argument("--target", type=float, default=None)
    parser.add_argument("--episodes", type=int, default=5)
    parser.add_argument("--greedy", action="store_true")
    parser.add_argument("--seed", type=int, default=TEST_SEED)
    parser.add_argument("--gif", type=Path, default=None)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(list(argv))
    if options.episodes < 1:
        parser.error(f"--episodes should be at least 1, got {options.episodes}")
    if options.seed < 0:
        parser.error(f"--seed should be at least 0, got {options.seed}")
    return options
