"""What it costs to get going: CPU seconds from the command to the first training step, and which imports they go to.

    python -m benchmarks.startup [recipe=vit] [rounds=3] [out=benchmarks/results/startup.json]

Runs the real command (`python -m zoo.run recipe=... out=<a temporary folder>`) as a child that stops at its first
training step and says what the process and its children have cost by then. A further child, with -X importtime, says
where the imports' time goes: wall time of each module itself, summed by package, so believe only the shares.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.files import console, header, results, write_json
from benchmarks.speed.measure import Spread
from benchmarks.words import WordsError, asks_help, integer, split

__all__ = ["import_seconds", "main", "measure"]

LIMIT = 12.0
KEYS = ("recipe", "rounds", "out")
HOME = Path(__file__).resolve().parents[1]

# Runs in the child before zoo.run. The hook waits for recipes.task to be imported, so that nothing is imported earlier
# than the command itself does it.
CHILD = """
import importlib.abc, importlib.util, json, os, sys, time

class AtFirstStep(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "recipes.task":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module
        def and_hook(module):
            execute(module)
            module.Task.training_step = stop
        spec.loader.exec_module = and_hook
        return spec

def stop(*_):
    children = os.times()
    spent = {"cpu": time.process_time() + children.children_user + children.children_system,
             "modules": len(sys.modules)}
    with open(report, "w") as file:
        json.dump(spent, file)
    sys.stderr.flush()
    os._exit(0)

sys.meta_path.insert(0, AtFirstStep())
report = sys.argv.pop(1)
import zoo.run
raise SystemExit(zoo.run.main(sys.argv[1:]))
"""


def measure(recipe: str, *flags: str) -> tuple[dict[str, Any], str]:
    """({"cpu": seconds, "modules": count} at the first training step, the child's standard error).

    Raises RuntimeError with the child's last line when it ends before a training step.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        words = [f"recipe={recipe}", f"out={folder}/run"]
        command = [sys.executable, *flags, "-c", CHILD, str(report), *words]
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, (str(HOME), os.getenv("PYTHONPATH")))))
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if not report.exists():
            lines = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
            raise RuntimeError(f"the run ended with code {done.returncode} before a training step: {lines[-1]}")
        return json.loads(report.read_text()), done.stderr


def import_seconds(log: str) -> dict[str, float]:
    """Seconds by top-level package from the output of -X importtime, most expensive first."""
    spent: dict[str, float] = defaultdict(float)
    for line in log.splitlines():
        parts = line.removeprefix("import time:").split("|")
        if line.startswith("import time:") and len(parts) == 3 and parts[0].strip().isdigit():
            spent[parts[2].strip().partition(".")[0]] += int(parts[0]) / 1e6
    return dict(sorted(spent.items(), key=lambda item: -item[1]))


def main(words: Sequence[str]) -> int:
    """Exit code: 0 measured, 1 could not be measured, 2 wrong words."""
    if asks_help(words):
        print(__doc__)
        return 0
    try:
        values = split(words, KEYS)
        rounds = integer(values, "rounds", 3, 1, 1000)
    except WordsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    recipe = values.get("recipe", "vit")
    out = Path(values["out"]) if "out" in values else results() / "startup.json"
    about = header(" ".join(["python -m benchmarks.startup", *words]), int(os.environ.get("OMP_NUM_THREADS", 0)))
    try:
        measure(recipe)  # the first start also writes byte code and fills the page cache
        spent = [measure(recipe)[0] for _ in range(rounds)]
        packages = import_seconds(measure(recipe, "-X", "importtime")[1])
        seconds = Spread.of([found["cpu"] for found in spent])
        figures = {"recipe": recipe, "cpu_seconds": seconds.plain(), "modules": spent[-1]["modules"]}
        write_json(out, about | figures | {"limit": LIMIT, "imports": packages})
    except (OSError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    screen = console()
    screen.print(f"recipe={recipe}: {seconds.median:.2f} s of CPU time from the command to the first training step")
    screen.print(
        f"  {seconds.low:.2f} to {seconds.high:.2f} in {rounds} runs, limit {LIMIT:g}; {figures['modules']} modules"
    )
    whole = sum(packages.values()) or 1.0
    for package, taken in list(packages.items())[:12]:
        screen.print(f"  {100 * taken / whole:4.0f} % of the imports: {package}")
    screen.print(f"written to {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
