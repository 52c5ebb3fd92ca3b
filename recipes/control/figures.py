"""Pictures of a policy: returns asked for against returns achieved, and an episode as a moving picture."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from recipes.control.evaluation import policy_of
from recipes.control.rollout import rollout
from recipes.data.control.episodes import Environment, Scaling
from recipes.figures import new_figure, save_figure
from zoo.files import write_whole
from zoo.registry import ConfigError

__all__ = ["episode_gif", "target_curve"]

MOST_FRAMES, WIDTH = 250, 300


def target_curve(drawn: Mapping[float, Tensor], arms: Mapping[str, float], best: float, path: Path) -> Path:
    """Mean and spread of the return at each target; `arms`: mean returns of policies that know no target."""
    figure = new_figure(6, 4.5)
    axis = figure.subplots()
    targets = sorted(drawn)
    means = [float(drawn[target].mean()) for target in targets]
    spreads = [float(drawn[target].std(unbiased=False)) for target in targets]
    axis.plot(targets, targets, ":", color="grey", label="as asked")
    axis.errorbar(targets, means, yerr=spreads, fmt="o-", capsize=3, label="Decision Transformer")
    for number, (name, value) in enumerate(arms.items(), 1):
        axis.axhline(value, linestyle="--", linewidth=1, color=f"C{number}", label=name)
    axis.axvline(best, color="grey", linewidth=0.5)
    axis.set(xlabel="return asked for (line: the best of the data)", ylabel="return achieved")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    return save_figure(figure, path)


def episode_gif(
    model: Any,
    environment: Environment,
    scaling: Scaling,
    target: float,
    path: Path,
    *,
    mode: Any = "cached",
    seed: int,
) -> Path | None:
    """One episode of the model at `target`; None where the environment does not draw itself."""
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # no screen needed
    every = max(1, environment.max_steps // MOST_FRAMES)
    frames: list[Any] = []
    seen = 0

    def watch(envs: Any) -> None:
        nonlocal seen
        if seen % every == 0:
            frames.append(envs.render()[0])
        seen += 1

    first = next(model.parameters())
    options: dict[str, Any] = {"device": first.device, "dtype": first.dtype, "watch": watch}
    try:
        policy = policy_of(model, environment, mode)
        rollout(policy, environment, scaling, [target], [seed], render_mode="rgb_array", **options)
    except (ConfigError, ImportError, _undrawn()):
        return None
    pictures = [_small(frame) for frame in frames if frame is not None]
    if not pictures:
        return None
    options = {"save_all": True, "append_images": pictures[1:], "duration": 20 * every if every > 1 else 60, "loop": 0}
    write_whole(path, lambda file: pictures[0].save(file, format="GIF", **options))
    return path


def _undrawn() -> type[Exception]:
    from gymnasium.error import Error

    return Error


def _small(frame: Any) -> Any:
    """A picture of at most WIDTH pixels, with few colours."""
    from PIL import Image

    picture = Image.fromarray(frame)
    if picture.width > WIDTH:
        picture = picture.resize((WIDTH, round(picture.height * WIDTH / picture.width)))
    return picture.quantize(32)
