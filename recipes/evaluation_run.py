"""Evaluation of exported weights: at the end of a run, and once more with `mode=eval checkpoint=RUN_DIR`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from recipes.recipe import Metrics, Recipe, find_recipe
from recipes.report import table_text, title
from recipes.result import new_result, read_result, write_result
from recipes.run_folder import read_settings
from recipes.seeding import seed_all
from recipes.sizes import sizes
from zoo.registry import ConfigError, encode

_KEPT = ("model", "mixer", "steps", "examples", "tokens", "seconds")


def evaluate(settings: dict[str, Any], out: Path) -> dict[str, Any]:
    """Evaluate the exported model of the run in settings["checkpoint"]; prints its table and writes out/eval.json.

    The settings that are given (another data set, batch size ...) lie over those of the run, whose folder is not
    touched. Baselines are taken from the run where the data is the same. Raises ConfigError.
    """
    folder = Path(settings.get("checkpoint") or "")
    saved = read_settings(folder, "checkpoint")
    if not (folder / "model").is_dir():
        raise ConfigError(f"'{folder}' holds no exported model; the run has not finished", "checkpoint")
    before = read_result(folder / "result.json")
    given = {key: value for key, value in settings.items() if value not in (None, {}) and key != "model"}
    settings = {**saved, **given}
    recipe = find_recipe(settings.get("name"))(settings)
    seed_all(settings.get("seed") or 0)
    data = recipe.load()
    model = recipe.load_exported(folder / "model")
    recipe.check_fits(model, data)
    model.to("cuda" if torch.cuda.is_available() else "cpu")

    result = new_result(settings) | {key: before.get(key) for key in _KEPT} | sizes(recipe, model, data)
    result["device"] = next(model.parameters()).device.type
    result["metrics"] = evaluate_splits(recipe, model, data)
    same_data = encode(recipe.data_config) == saved.get("data")
    result["baselines"] = (before.get("baselines") if same_data else None) or recipe.baselines(data)
    result["status"] = "ok"
    out.mkdir(parents=True, exist_ok=True)
    write_result(out / "eval.json", result)
    print(table_text(result, recipe.headline, title(settings, data)), flush=True)
    return result


def evaluate_splits(recipe: Recipe, model: nn.Module, data: Any) -> Metrics:
    """Metrics on val and test, each from the random states of seed 0, so that they can be had again."""
    metrics: Metrics = {}
    device = next(model.parameters()).device
    with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.no_grad():
        for split in ("val", "test"):
            if len(getattr(data, split)):
                torch.manual_seed(0)
                metrics |= recipe.evaluate(model, data, split)
    return metrics
