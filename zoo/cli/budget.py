"""`budget=long`: more steps, and a model to match, where a recipe has settings for it."""

from __future__ import annotations

from typing import Any

from zoo import paths
from zoo.cli.errors import refuse

__all__ = ["check_budget"]


def check_budget(choices: Any) -> None:
    """Refuse a budget that nothing stands behind. `choices` are Hydra's, by group. Raises ConfigError."""
    recipe, data, budget = (choices.get(group) for group in ("recipe", "data", "budget"))
    if budget in (None, "default"):
        return
    folder = paths.config_dir() / "tuned" / "budget"
    if (folder / f"{recipe}_{data}_{budget}.yaml").is_file():
        return
    found = sorted(file.stem.removesuffix(f"_{budget}") for file in folder.glob(f"*_{budget}.yaml"))
    pairs = ", ".join("recipe={} data={}".format(*name.split("_", 1)) for name in found)
    raise refuse(f"recipe={recipe} data={data} has no budget '{budget}'; those that have: {pairs}", "budget")
