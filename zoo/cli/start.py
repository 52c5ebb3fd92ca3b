"""From settings to a run: its folder, its command line, and the hand-over to the recipe."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from zoo import paths
from zoo.cli.compose import escaped
from zoo.cli.errors import refuse

__all__ = ["claimed", "exit_code", "start"]

RANKS = ("LOCAL_RANK", "NODE_RANK", "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PL_GLOBAL_SEED")


def start(settings: dict[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """Run the recipe of `settings` in settings["out"] and return its result. `words` are those that gave the settings.

    Raises ConfigError for what the parts refuse, and whatever the run itself raises.
    """
    out = Path(settings["out"])
    with claimed(out, resumed=settings["resume"] is not None), _own_command_line(words, out):
        paths.use()
        from recipes.launch import launch

        return launch(settings, out)


def exit_code(result: dict[str, Any]) -> int:
    """0 for a run that ended well, 130 for an interrupted one, 1 for any other."""
    return {"ok": 0, "interrupted": 130}.get(result.get("status", "ok"), 1)


@contextlib.contextmanager
def claimed(out: Path, resumed: bool = False) -> Iterator[None]:
    """`out`, writable and free of another run's results. Folders made for a run that left nothing go again.

    Raises ConfigError.
    """
    if int(os.environ.get("LOCAL_RANK") or 0) > 0:  # a further rank of a run whose first rank has made the folder
        yield
        return
    if not resumed:
        held = [name for name in ("result.json", "eval.json", "checkpoints", "multirun.yaml") if (out / name).exists()]
        if held:
            raise refuse(f"'{out}' holds a run already ({held[0]}); name another folder, or use resume={out}", "out")
    made = [folder for folder in (out, *out.parents) if not folder.exists()]
    try:
        out.mkdir(parents=True, exist_ok=True)
        probe = out / f".writable-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise refuse(f"cannot write to '{out}': {error.strerror}", "out") from None
    try:
        yield
    except Exception:
        with contextlib.suppress(OSError):  # ends at the first that holds something
            for folder in made:
                folder.rmdir()
        raise


@contextlib.contextmanager
def _own_command_line(words: Sequence[str], out: Path) -> Iterator[None]:
    """Lightning starts the other ranks of a run with sys.argv: let it be the command line of this very run.

    Afterwards the ranks part and the variables that tell a rank who it is are taken back, or the next run of a sweep
    would join the ranks of this one.
    """
    before, argv = {name: os.environ.get(name) for name in RANKS}, sys.argv
    verb = [] if argv[0].endswith("run.py") else ["run"]  # python -m zoo.run, or else zoo run, python -m zoo run
    sys.argv = [argv[0], *verb, *words, f"out='{escaped(str(out))}'"]
    try:
        yield
    finally:
        sys.argv = argv
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            distributed.destroy_process_group()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
