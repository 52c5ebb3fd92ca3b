"""The command line of a run: compose the settings with Hydra, then hand them to the recipe.

    python -m zoo.run recipe=vit mixer=attention trainer.max_steps=500

torch, Lightning and the recipes are imported only once the settings are composed, so that `--help` and most mistakes
are answered at once.
"""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zoo import paths
from zoo.cli.errors import guarded
from zoo.cli.options import Options, read_options

__all__ = ["compose", "main"]

USAGE = """\
Train, evaluate and report one recipe.

  python -m zoo.run recipe=vit                              train with the recipe's own settings
  python -m zoo.run recipe=vit data=mnist5k seed=1 optim.lr=1e-3 trainer.max_steps=500
  python -m zoo.run recipe=vit mixer=attention mixer.window=8 norm=rmsnorm ffn=swiglu position=rope
  python -m zoo.run recipe=gpt budget=long                  more steps and a larger model, up to an hour
  python -m zoo.run -m recipe=vit norm=layernorm,rmsnorm seed=0,1     one run for each combination
  python -m zoo.run resume=RUN_DIR                          go on with a stopped run
  python -m zoo.run mode=eval checkpoint=RUN_DIR            evaluate its exported model once more
"""
OPTIONS = """\
Settings are written key=value; model.*, data.*, optim.*, trainer.*, logger.* and task.* reach all that lies below.
`python -m zoo list` prints every part with its paper. A run writes into out=FOLDER, by default runs/RECIPE/TIME.

options:
  -m, --multirun     run every combination of the values given with commas
  --cfg              print the resolved settings and stop
  --config-dir DIR   also read configs from DIR, e.g. DIR/recipe/mine.yaml for recipe=mine
  -h, --help         print this and stop
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line (without the program's name; default: this process's) and return its exit code."""
    return guarded(lambda: _main(sys.argv[1:] if argv is None else argv))


def compose(overrides: Sequence[str], config_dirs: Sequence[Path] = ()) -> dict[str, Any]:
    """The settings that command-line words stand for, as a plain resolved dict. Raises ConfigError."""
    from zoo.cli.compose import Composer

    return Composer(Options(overrides=list(overrides), config_dirs=list(config_dirs))).compose()


def _main(words: Sequence[str]) -> int:
    options = read_options(words)
    if options.help:
        print(_help(options), end="")
        return 0
    # Must be said before torch loads OpenMP. Threads that spin long at each barrier stall when another process holds a
    # core; threads that sleep at once lose time in short operations. A T5 step takes, beside a busy loop and alone, in
    # ms: spinning 20,000 times 267 and 75, 2,000 times 170 and 72, 500 times 121 and 77, never (PASSIVE) 124 and 86.
    # The second is taken: the time of a run is promised for idle cores, and a loaded machine must not stall.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    from zoo.cli.compose import Composer

    composer = Composer(options)
    if options.multirun:
        from zoo.cli.sweep import sweep

        return sweep(composer)
    settings = composer.compose()
    if options.cfg:
        import yaml

        print(yaml.safe_dump(settings, sort_keys=False, allow_unicode=True), end="")
        return 0
    from zoo.cli.start import exit_code, start

    return exit_code(start(settings, composer.repeatable))


def _help(options: Options) -> str:
    recipes = paths.catalogue("recipe", *options.config_dirs)
    width = max((len(name) for name in recipes), default=0)
    lines = [USAGE, "recipes:", *(f"  {name:<{width}}  {text}".rstrip() for name, text in recipes.items()), ""]
    for group in ("data", "budget", "optim", "trainer", "logger"):
        choices = ", ".join(paths.catalogue(group, *options.config_dirs))
        lines += textwrap.wrap(choices, 110, initial_indent=f"{group + '=':<10}", subsequent_indent=" " * 10)
    return "\n".join([*lines, "", OPTIONS])


if __name__ == "__main__":
    sys.exit(main())
