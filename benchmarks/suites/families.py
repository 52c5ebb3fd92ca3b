"""Families: every mixer in every recipe's own task, at the parameters that attention has there.

    python -m benchmarks.run suite=families mixer=attention,mamba2,gated_delta size=small

A task is a recipe: its data, model, loss, optimizer and schedule, as `python -m zoo.run recipe=<task>` has them, with
fewer steps and a smaller model where the size says so. Only the mixer is exchanged, in every stack of the model; one
that is causal by nature reads in both directions with one set of weights where the place is two-sided. The
feed-forward's hidden width then makes up for what the mixer has more or less than attention: parameters agree within
1 percent (matching.py), or the arm is refused.

Each task has one primary metric, of the test split:

    vit          accuracy            share of images told right
    gpt          bits_per_character  of the text
    bert         masked_accuracy     share of masked tokens told right
    t5           token_accuracy      with the right answer given so far
    transformer  token_accuracy      with the right answer given so far
    whisper      token_accuracy      with the right answer given so far
    dit          loss                mean squared error of the velocity, on noise and times that are the same for all
    decision     success             share of 64 rollouts of Key-to-Door that end at the open door: what was done in
                                     the first room decides in the last. CartPole, the recipe's other data, does not
                                     tell mixers apart: attention and retention reach 440 to 500 of 500 after 15 and
                                     30 steps of training

These are the cheap forms of what the recipes report: no text is generated and no image is sampled. The report places
each between the trivial answer (`Task.trivial`, benchmarks/suites/trivial.py) and attention in the same task:

    normalised = (metric - trivial) / (attention - trivial)        vit: (0.55 - 0.1) / (0.95 - 0.1) = 0.53

A mixer that cannot serve refuses, by the sentence that the family itself says.

Papers: those of the recipes; for one network over many modalities, Jaegle et al. 2021, arXiv:2103.03206.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from benchmarks.suites.api import Arm, Job, Outcome, Size, Task
from benchmarks.suites.costs import state_bytes
from benchmarks.suites.matching import match_params, params_of
from benchmarks.suites.synthetic import PRESETS, named
from benchmarks.suites.trivial import DATA
from recipes.journal import journal
from recipes.recipe import Recipe, find_recipe
from recipes.seeding import seed_all
from recipes.sizes import sizes
from recipes.task import Task as Training
from recipes.trainer import build_trainer, decode_trainer
from zoo.registry import decode, encode, names
from zoo.run import compose

__all__ = ["FAMILIES", "SUITE", "Families", "Family", "mean_of", "one_set_of_weights"]

EPISODES = 64
"""Rollouts of a decision model."""

Measure = Callable[[Any, Any, Any], float]
"""(recipe, model in eval mode, data) to the primary metric."""


@dataclass(frozen=True)
class Family:
    """A recipe as a task."""

    primary: str
    higher_is_better: bool
    trivial: float
    """What trivial.py computes from the recipe's own data."""
    lr: float
    """Middle of the first grid."""
    measure: Measure
    length: int
    """Tokens of a row (steps of an episode) after which the state is measured; 0 where nothing goes token by token."""
    words: Mapping[str, tuple[str, ...]]
    """Command-line words of a size, on top of recipe=<name>."""


@torch.no_grad()
def mean_of(name: str) -> Measure:
    """The recipe's loss, or another sum that its `loss` gives, as a mean over the real targets of the test split."""

    def measure(recipe: Recipe, model: nn.Module, data: Any) -> float:
        total, targets = 0.0, 0.0
        for batch in recipe.eval_batches(data.test):
            loss, sums = recipe.loss(model, batch)
            total += float(loss if name == "loss" else sums[name])
            targets += float(batch["window_targets"])
        return total / targets

    return measure


def _accuracy(recipe: Any, model: nn.Module, data: Any) -> float:
    return recipe.evaluate(model, data, "test")["test/accuracy"]


def _bits(recipe: Recipe, model: nn.Module, data: Any) -> float:
    from recipes.language.scoring import score

    return score(model, recipe.eval_batches(data.test), data.characters).bits_per_character


def _masked(recipe: Recipe, model: nn.Module, data: Any) -> float:
    from recipes.masked.scoring import masked_places

    return masked_places(model, recipe.eval_batches(data.test), data.tokenizer.mask_id).accuracy


def _success(recipe: Any, model: nn.Module, data: Any) -> float:
    from recipes.control.evaluation import achieved

    options: dict[str, Any] = {"episodes": EPISODES, "mode": recipe.task.rollout}
    (returns,) = achieved(model, data.environment, data.scaling, data.targets[:1], **options)[0].values()
    return float(returns.mean())


NARROW = ("model.dim=64", "model.depth=1", "model.heads=4", "task.batch_size=8", "trainer.max_steps=3")
PAIRS = ("model.ffn.ratio=4", "task.beams=1")

FAMILIES: dict[str, Family] = {
    "vit": Family(
        primary="accuracy",
        higher_is_better=True,
        trivial=0.1,
        lr=3e-3,
        measure=_accuracy,
        length=0,
        words={
            "smoke": (*NARROW, "model.ffn.ratio=4"),
            "small": ("model.depth=2", "model.ffn.ratio=4", "task.batch_size=48", "trainer.max_steps=150"),
            "paper": (),
        },
    ),
    "gpt": Family(
        primary="bits_per_character",
        higher_is_better=False,
        trivial=4.372,
        lr=1e-2,
        measure=_bits,
        length=128,
        words={
            "smoke": (*NARROW, "task.context=32", "task.stride=32", "task.tokenizer.vocab_size=300"),
            "small": (
                "model.dim=64",
                "model.depth=2",
                "task.context=64",
                "task.stride=64",
                "task.tokenizer.vocab_size=512",
                "trainer.max_steps=150",
            ),
            "paper": (),
        },
    ),
    "bert": Family(
        primary="masked_accuracy",
        higher_is_better=True,
        trivial=0.1162,
        lr=3e-3,
        measure=_masked,
        length=0,
        words={
            "smoke": NARROW,
            "small": ("model.depth=2", "task.batch_size=64", "trainer.max_steps=180"),
            "paper": (),
        },
    ),
    "t5": Family(
        primary="token_accuracy",
        higher_is_better=True,
        trivial=0.1366,
        lr=6e-3,
        measure=mean_of("token_accuracy"),
        length=16,
        words={
            "smoke": (*NARROW, "task.pretrain_steps=1", "task.limit=64", "task.beams=1"),
            "small": ("model.dim=64", "task.batch_size=64", "task.pretrain_steps=20", "trainer.max_steps=120"),
            "paper": (),
        },
    ),
    "transformer": Family(
        primary="token_accuracy",
        higher_is_better=True,
        trivial=0.1366,
        lr=6e-3,
        measure=mean_of("token_accuracy"),
        length=16,
        words={
            "smoke": (*NARROW, *PAIRS, "task.limit=64"),
            "small": ("model.dim=64", *PAIRS, "task.batch_size=64", "trainer.max_steps=120"),
            "paper": (),
        },
    ),
    "whisper": Family(
        primary="token_accuracy",
        higher_is_better=True,
        trivial=0.2905,
        lr=1e-2,
        measure=mean_of("token_accuracy"),
        length=8,
        words={
            "smoke": (*NARROW, *PAIRS),
            "small": (*PAIRS, "trainer.max_steps=150"),
            "paper": (),
        },
    ),
    "dit": Family(
        primary="loss",
        higher_is_better=False,
        trivial=1.721,
        lr=1e-2,
        measure=mean_of("loss"),
        length=0,
        words={
            "smoke": NARROW,
            "small": ("model.dim=64", "task.batch_size=64", "trainer.max_steps=120"),
            "paper": (),
        },
    ),
    "decision": Family(
        primary="success",
        higher_is_better=True,
        trivial=0.1133,
        lr=1e-2,
        measure=_success,
        length=18,
        words={
            "smoke": (*DATA["decision"], *NARROW, "task.context=4"),
            "small": (*DATA["decision"], "trainer.max_steps=60"),
            "paper": DATA["decision"],
        },
    ),
}


class Families:
    name = "families"
    title = "Mixers in every family's own task"
    paper = "Jaegle et al. 2021, arXiv:2103.03206"
    version = 1
    seeds = 3

    def tasks(self, size: Size) -> Sequence[Task]:
        return [
            Task(
                name=name,
                primary=family.primary,
                higher_is_better=family.higher_is_better,
                trivial=family.trivial,
                title=f"recipe={name}",
            )
            for name, family in FAMILIES.items()
        ]

    def arms(self, task: str, mixers: Sequence[Any]) -> Sequence[Arm]:
        """One for each mixer. `attention` is the recipe's own, with the recipe's choices."""
        return [Arm(name=named(mixer)[0], mixer=_chosen(mixer)) for mixer in mixers]

    def rates(self, task: str, size: Size) -> Sequence[float]:
        """Around the recipe's own rate."""
        return [float(f"{FAMILIES[task].lr * 10**power:.3g}") for power in (-0.5, 0.0, 0.5)]

    def settings(self, task: str, size: Size) -> Mapping[str, Any]:
        return {"words": list(FAMILIES[task].words[size]), "match": "params", "to": "attention", "tolerance": 0.01}

    def run(self, job: Job) -> Outcome:
        """Raises ConfigError where the mixer cannot serve, or cannot be matched."""
        family = FAMILIES[job.task]
        settings = compose([f"recipe={job.task}", *job.settings["words"]])
        settings["seed"] = job.seed
        if job.lr is not None:
            settings["optim"] = {**settings["optim"], "lr": job.lr}
        recipe, data, model, matched = _built(job, settings)
        task = _trained(settings, recipe, data, model)
        exported: Any = task.exported.eval()
        value = math.nan  # of a training that diverged
        if math.isfinite(task.losses[-1]):
            with torch.no_grad():
                torch.manual_seed(0)
                value = family.measure(recipe, exported, data)
        found = sizes(recipe, exported, data)
        state = state_bytes(exported, family.length) if family.length else 0
        return Outcome(
            metrics={family.primary: value, "train_loss": task.losses[-1]},
            params=found["params"],
            params_non_embedding=found["params_non_embedding"],
            flops_per_token=found["flops_per_token"],
            state_bytes=state,
            matched=matched,
            curves={"train/loss": task.losses},
        )


def _built(job: Job, settings: dict[str, Any]) -> tuple[Recipe, Any, nn.Module, Mapping[str, Any]]:
    """Recipe, data, the matched model, and what was matched."""
    recipe = find_recipe(job.task)(settings)
    seed_all(job.seed)
    data = recipe.load()
    config = recipe.model_config(data)
    reference, changed = params_of(config), {}
    if job.arm.mixer != "attention":
        recipe.settings["model"] = {**settings["model"], "mixer": one_set_of_weights(job.arm.mixer)}
        config, hidden = match_params(recipe.model_config(data), reference, job.settings["tolerance"])
        changed = {"model.ffn.hidden": hidden}
        recipe.settings["model"] = encode(config)  # what a recipe asks of its settings later, it asks of this model
    seed_all(job.seed)
    model = config.build()
    recipe.prepare(model, data)
    matched = {"to": job.settings["to"], "reference": reference, "arm": params_of(config), "changed": changed}
    return recipe, data, model, {"params": matched, "not matched": ["flops", "state bytes"]}


def _chosen(mixer: Any) -> Any:
    """A mixer with its defaults, or what a name that only the synthetic suites know stands for. Raises ConfigError."""
    if isinstance(mixer, str) and mixer not in names("mixer"):
        mixer = PRESETS.get(mixer, mixer)
    decode("mixer", mixer, "mixer")
    return mixer


def one_set_of_weights(mixer: Any) -> Any:
    """The mixer with one set of weights for both directions, where it reads in two: a second set would take the
    feed-forward's place."""

    def tied(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: True if key == "tied" else tied(item) for key, item in value.items()}
        return [tied(item) for item in value] if isinstance(value, list) else value

    return tied(encode(decode("mixer", mixer)))


class _Kept(Training):
    """A recipe's training that keeps the mean loss of every step."""

    losses: list[float]

    def on_train_start(self) -> None:
        super().on_train_start()
        self.losses = []

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.losses.append(float(outputs["loss"]))


def _trained(settings: Mapping[str, Any], recipe: Recipe, data: Any, model: nn.Module) -> _Kept:
    """Train as `zoo.run` does, without its folder, logs, checkpoints and validations."""
    complete = {**recipe.settings, "optim": settings["optim"], "task": encode(recipe.task)}
    _, arguments = decode_trainer(settings["trainer"])
    accumulate = arguments.get("accumulate_grad_batches", 1)
    task = _Kept(complete, recipe, model, lambda rank, ranks: recipe.train_batches(data, accumulate, rank, ranks))
    with journal():  # Lightning's remarks are for a run's log
        build_trainer(arguments, logger=False).fit(task)
    return task


SUITE = Families()
