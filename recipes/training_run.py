"""A training run from settings to a finished folder: train, export, evaluate, compare, draw, report."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from recipes.callbacks.checkpoints import Checkpoints, Stopped, StopRequest, WholeFileIO
from recipes.callbacks.log import Log, LoggerSink
from recipes.callbacks.progress import Bar, Lines
from recipes.callbacks.random_state import RandomState
from recipes.callbacks.stopwatch import Stopwatch
from recipes.callbacks.validate import Validate
from recipes.evaluation_run import evaluate_splits
from recipes.journal import Journal, journal
from recipes.lightning_import import Callback, Trainer
from recipes.loggers import LoggerConfig
from recipes.metrics_file import MetricsSink
from recipes.optim import parameter_groups
from recipes.recipe import Recipe, find_recipe
from recipes.report import table_text, title
from recipes.result import new_result, write_result
from recipes.resuming import Origin, check_fits, newest_readable, set_aside
from recipes.run_folder import check_folder, open_folder, rank, step_of
from recipes.seeding import seed_all
from recipes.sharding import unshard
from recipes.sizes import PeakShare, sizes
from recipes.task import Task
from recipes.trainer import RunOptions, build_trainer, decode_trainer
from zoo.registry import decode, encode


@dataclass
class Run:
    """Everything of a run that is ready before its folder is touched."""

    settings: dict[str, Any]
    out: Path
    recipe: Recipe
    data: Any
    task: Task
    trainer: Trainer
    log: Log
    checkpoint: Path | None
    """Where a resumed run goes on; None for a new run, and for one that was stopped before its first checkpoint."""
    journal: Journal
    damaged: list[Path] = field(default_factory=list)
    """Checkpoints after it that cannot be read."""


def train(settings: dict[str, Any], out: Path) -> dict[str, Any]:
    """Train and report; raises as `recipes.launch.launch` says."""
    with StopRequest() as stop, journal() as said:
        run = prepare(settings, out, stop, said)
        result = new_result(run.settings)
        if rank() == 0:
            open_folder(run.settings, out, step_of(run.checkpoint) if settings.get("resume") else None)
            set_aside(run.damaged)
            said.open(out / "log.txt")
        try:
            _fit(run, stop)
            if rank() == 0:
                _finish(run, result)
                write_result(out / "result.json", result | {"status": "ok"})
            result["status"] = "ok"
        except BaseException as error:
            _ended_early(run, result, error)
            if isinstance(error, SystemExit) and stop.signum is not None:
                raise Stopped(stop.signum) from None  # Lightning's own exit after SIGTERM would be code 0
            raise
    return result


def prepare(settings: dict[str, Any], out: Path, stop: StopRequest, said: Journal) -> Run:
    """Decode, load and build everything. Raises ConfigError; writes nothing."""
    check_folder(settings, out)
    recipe = find_recipe(settings.get("name"))(settings)
    optim = decode("optim", settings.get("optim") or "adamw", "optim")
    options, arguments = decode_trainer(settings.get("trainer") or {})
    logger = decode("logger", settings.get("logger") or "csv", "logger")
    seed = settings.get("seed") or 0
    seed_all(seed)
    data = recipe.load()
    config = recipe.model_config(data)
    model = config.build()
    recipe.prepare(model, data)
    complete = {
        "seed": seed,
        "model": encode(config),
        "data": encode(recipe.data_config),
        "optim": encode(optim),
        "task": encode(recipe.task),
    }
    settings = {**settings, **complete}
    accumulate = arguments.get("accumulate_grad_batches", 1)
    task = Task(settings, recipe, model, lambda rank, ranks: recipe.train_batches(data, accumulate, rank, ranks))
    _check_optim(task, arguments.get("max_steps", -1))
    trainer, log = _trainer(task, data, options, arguments, logger, out, stop, said)
    origin = newest_readable(out / "checkpoints") if settings.get("resume") else Origin()
    if origin.path is not None:
        check_fits(origin.state, task, trainer.global_rank, trainer.world_size)
    return Run(settings, out, recipe, data, task, trainer, log, origin.path, said, origin.damaged)


def _check_optim(task: Task, max_steps: int) -> None:
    """What the fit would refuse when the folder is touched already. Raises ConfigError."""
    task.optim.build(parameter_groups(task.model, task.optim, task.recipe.optional_lr_scale))
    if max_steps > 0:
        task.optim.schedule.factor(0, max_steps)


def _trainer(
    task: Task,
    data: Any,
    options: RunOptions,
    arguments: dict[str, Any],
    logger: LoggerConfig,
    out: Path,
    stop: StopRequest,
    said: Journal,
) -> tuple[Trainer, Log]:
    """The Trainer with its callbacks, in the order in which they must act."""
    clock = Stopwatch()
    loggers = logger.build(out, f"{out.parent.name}-{out.name}")
    bar = sys.stdout.isatty() if options.enable_progress_bar is None else options.enable_progress_bar
    display: Any = Bar(clock) if bar else Lines(said.say, clock, lambda: task.total_steps)
    sinks: list[Any] = [MetricsSink(out / "metrics.csv"), display, LoggerSink(loggers)]
    log = Log(sinks, options.log_every_n_steps, clock, PeakShare(task.recipe, data, task))
    callbacks: list[Callback] = []
    if len(data.val):
        callbacks.append(Validate(task.recipe.eval_batches(data.val), sinks, options, clock))
    callbacks.append(log)
    if isinstance(display, Bar):
        callbacks.append(display)
    callbacks.append(RandomState())
    callbacks.append(Checkpoints(out / "checkpoints", options.save_every, options.keep, clock, stop))
    decided = {"callbacks": callbacks, "logger": loggers or False, "plugins": [WholeFileIO()]}
    return build_trainer(arguments, default_root_dir=str(out), **decided), log


def _fit(run: Run, stop: StopRequest) -> None:
    for path in run.damaged:
        run.journal.say(f"skipped {path.name}: it is damaged")
    if run.checkpoint is not None:
        run.journal.say(f"going on from step {step_of(run.checkpoint)} in {run.out}")
    stop.training = True
    try:
        run.trainer.fit(run.task, ckpt_path=str(run.checkpoint) if run.checkpoint else None)
    finally:
        stop.training = False
    unshard(run.task)


def _finish(run: Run, result: dict[str, Any]) -> None:
    """Export, evaluate, compare and draw; `result` is filled as far as this comes."""
    _keep_counts(run, result)
    recipe, data, model = run.recipe, run.data, run.task.exported.eval()
    recipe.export(model, data, run.out / "model")
    model.to(run.trainer.strategy.root_device)
    result |= sizes(recipe, model, data)
    result["metrics"] = evaluate_splits(recipe, model, data)
    result["baselines"] = recipe.baselines(data)
    folder = run.out / "figures"
    folder.mkdir(exist_ok=True)
    recipe.figures(model, data, folder)
    run.journal.say("\n" + table_text(result, recipe.headline, title(run.settings, data)))
    run.journal.say(f"\nrun folder: {run.out}")


def _ended_early(run: Run, result: dict[str, Any], error: BaseException) -> None:
    """Note how a run ended, as far as the disk allows."""
    stopped = isinstance(error, (KeyboardInterrupt, SystemExit))
    result["status"] = "interrupted" if stopped else "failed"
    result["error"] = None if stopped else _told(error)
    _keep_counts(run, result)
    if rank() > 0:
        return
    if stopped:
        run.journal.say(f"stopped at step {result['steps']}; go on with resume={run.out}")
    else:
        run.journal.note(f"failed: {result['error']}")
    with suppress(OSError):
        write_result(run.out / "result.json", result)


def _told(error: BaseException) -> str:
    """The first line of an error, of a length to read."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]


def _keep_counts(run: Run, result: dict[str, Any]) -> None:
    result |= run.log.counts
    result["seconds"] = round(run.log.clock.seconds, 2)
    device = run.trainer.strategy.root_device
    result["device"] = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
