"""decision: act towards a return that is asked for.   python -m zoo.run recipe=decision

A Decision Transformer (Chen et al. 2021, arXiv:2106.01345) learns the actions of recorded episodes, given what was
still to come of their return. Loss: cross-entropy of discrete actions, squared error of continuous ones.
Figures: the return of rollouts at each target with its spread (test/return@500, test/spread@500), drawn and greedy, and
between chance and the best of the data (test/score@500); beside behaviour cloning of all episodes and of the best ten
percent, from the same network with the same steps, and beside chance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from recipes.control.arms import clone_of, trained, windowed
from recipes.control.evaluation import Mode, achieved, chance_returns, figures_of
from recipes.data.control.episodes import ControlData
from recipes.recipe import Batch, Metrics, Recipe, TaskConfig, fed, wide
from zoo.blocks.api import Capability
from zoo.models.decision import DecisionConfig
from zoo.registry import ConfigError, decode, describe

__all__ = ["DecisionTask"]

Count = Annotated[int, Field(ge=1)]


class DecisionTask(TaskConfig):
    """Keys of `task`."""

    batch_size: Count = 64
    """Windows a step."""
    context: Count = 10
    """Steps in a window."""
    episodes: Count = 32
    """Rollouts of each target."""
    rollout: Mode = "cached"
    """With a State, in which attention sees a window of the context; or the last `context` steps anew at each step, as
    the paper's code does."""
    clones: bool = True
    """Train the arms of behaviour cloning too, for the table."""
    best_share: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Share of the steps, of the best episodes, that the second clone learns from."""


class Decision(Recipe):
    task_type = DecisionTask
    task: DecisionTask
    _rolled: tuple[int, dict[float, Tensor], dict[float, Tensor]] | None = None
    _chance: float | None = None

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__(settings)
        self.arms: dict[str, float] = {}
        """Mean return of each arm that knows no target, once it was found."""

    def load(self) -> ControlData:
        data = self.data_config.load(self.settings.get("seed") or 0)
        if not isinstance(data, ControlData):
            name = self.data_config.registered_name
            raise ConfigError(f"'{name}' holds no episodes; choices: cartpole, key_to_door, minari ...", "data")
        data = data.windows(self.task.context)
        names = [f"test/return@{target:g}" for target in data.targets]
        self.headline = (*names, f"test/spread@{data.targets[0]:g}", f"test/greedy_return@{data.targets[0]:g}")
        return data

    def model_config(self, data: ControlData) -> DecisionConfig:
        value = self.settings.get("model") or "decision"
        value = {"family": value} if isinstance(value, str) else dict(value)
        value.setdefault("family", "decision")
        made = describe("model", value["family"]).make
        if not issubclass(made if isinstance(made, type) else type(made()), DecisionConfig):
            raise ConfigError(f"'{value['family']}' does not act; choose decision or a preset of it", "model")
        world = data.environment
        facts = {
            "state_dim": world.state_dim,
            "action_dim": world.action_dim,
            "discrete": world.discrete,
            "context": self.task.context,
            "max_timestep": world.max_steps,
        }
        value |= {key: fact for key, fact in facts.items() if value.get(key) is None}
        config: Any = decode("model", value, "model")
        for key in ("state_dim", "action_dim", "discrete", "context"):
            if getattr(config, key) != facts[key]:
                raise ConfigError(f"should be the data's {facts[key]}, got {getattr(config, key)}", f"model.{key}")
        if config.max_timestep < world.max_steps:
            raise ConfigError(f"should be the {world.max_steps} steps of an episode or more", "model.max_timestep")
        if self.task.rollout != "cached":
            return config
        if Capability.STEP not in config.mixer.capabilities:
            raise ConfigError(
                f"'{config.mixer.registered_name}' cannot go on token by token, as cached rollouts do; set "
                "task.rollout=recomputed, or choose a mixer that keeps a state",
                "model.mixer",
            )
        return windowed(config)

    def example_inputs(self, data: ControlData) -> tuple[Any, ...]:
        batch = data.train.batch([0], None)
        config = self.model_config(data)
        wanted = batch["returns"] if config.return_to_go else None
        return batch["states"], batch["actions"], wanted, batch["timesteps"]

    @property
    def example_tokens(self) -> int:
        return 3 * self.task.context

    def tokens(self, batch: Batch) -> int:
        return 3 * batch["step_mask"].numel()

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Mapping[str, Tensor]]:
        made, actions = self._predicted(model, batch)  # (M, A), (M,) or (M, A) of the real steps
        if actions.dtype == torch.long:
            hits = (made.detach().argmax(-1) == actions).sum()
            return F.cross_entropy(made, actions, reduction="sum"), {"accuracy": hits}
        return F.mse_loss(made, actions, reduction="sum") / actions.shape[-1], {}

    @staticmethod
    def _predicted(model: Any, batch: Batch) -> tuple[Tensor, Tensor]:
        real = batch["step_mask"]  # (B, K); padding ends the rows, so that no real token sees it
        wanted = fed(model, batch["returns"]) if model.config.return_to_go else None
        made = model(fed(model, batch["states"]), fed(model, batch["actions"]), wanted, fed(model, batch["timesteps"]))
        real = fed(model, real)
        return wide(made[real]), fed(model, batch["actions"])[real]

    def evaluate(self, model: nn.Module, data: ControlData, split: str) -> Metrics:
        sums: dict[str, float] = {}
        targets = 0
        for batch in self.eval_batches(getattr(data, split)):
            loss, logs = self.loss(model, batch)
            for name, value in (("loss", loss), *logs.items()):
                sums[name] = sums.get(name, 0.0) + float(value)
            targets += int(batch["step_mask"].sum())
        metrics = {f"{split}/{name}": value / max(targets, 1) for name, value in sums.items()}
        if split == "test" and data.environment.id:
            drawn, greedy = self._rolled_out(model, data)
            metrics |= figures_of(drawn, greedy, self._floor(data), self._best(data))
        return metrics

    def _rolled_out(self, model: nn.Module, data: ControlData) -> tuple[dict[float, Tensor], dict[float, Tensor]]:
        """Rollouts at all targets, once a model for table and picture."""
        if self._rolled is None or self._rolled[0] != id(model):
            wanted = list(dict.fromkeys((*data.targets, *data.curve)))
            world, options = (data.environment, data.scaling), {"episodes": self.task.episodes}
            found = achieved(model, *world, wanted, greedy=data.targets, mode=self.task.rollout, **options)
            self._rolled = id(model), *found
        return self._rolled[1:]

    def _floor(self, data: ControlData) -> float:
        """Mean return of chance."""
        if self._chance is None:
            self._chance = float(chance_returns(data, self.task.episodes).mean())
        return self._chance

    @staticmethod
    def _best(data: ControlData) -> float:
        return float(data.episodes["train"].returns.max())

    def baselines(self, data: ControlData) -> dict[str, Metrics]:
        if not data.environment.id:
            return {}
        recorded = data.episodes["train"].returns
        floor, best = self._floor(data), self._best(data)
        found = {"chance": floor, "mean of the data": float(recorded.mean()), "best of the data": best}
        table: dict[str, Metrics] = {
            name: {f"test/return@{target:g}": value for target in data.targets} for name, value in found.items()
        }
        self.arms = {"chance": floor, "mean of the data": found["mean of the data"]}
        if self.task.clones:
            for name, model in self._clones(data):
                drawn, greedy = achieved(
                    model,
                    data.environment,
                    data.scaling,
                    data.targets[:1],
                    episodes=self.task.episodes,
                    greedy=data.targets[:1],
                    mode=self.task.rollout,
                )
                (returns,), (likeliest,) = drawn.values(), greedy.values()
                everywhere = (
                    dict.fromkeys(data.targets, returns),
                    dict.fromkeys(data.targets, likeliest),
                )
                table[name] = figures_of(*everywhere, floor, best)
                self.arms[name] = float(returns.mean())
        return table

    def _clones(self, data: ControlData) -> list[tuple[str, nn.Module]]:
        """The trained arms. The windows of the best are drawn from the best episodes alone."""
        config = self.model_config(data)
        share = self.task.best_share
        sets = {
            "behaviour cloning": data.train,
            f"behaviour cloning, best {share:.0%}": data.examples(data.episodes["train"].best(share)),
        }
        trainer = self.settings.get("trainer") or {}
        batch_size, seed = self.task.batch_size, self.settings.get("seed") or 0
        steps = trainer.get("max_steps") or -1
        if steps < 0:
            steps = (trainer.get("max_epochs") or 1) * -(-len(data.train) // batch_size)
        optim: Any = decode("optim", self.settings.get("optim") or "adamw", "optim")
        device = "cuda" if torch.cuda.is_available() else "cpu"
        options: dict[str, Any] = {"steps": steps, "batch_size": batch_size, "seed": seed, "device": device}
        clone = clone_of(config)
        return [(name, trained(clone, examples, optim, self.loss, **options)) for name, examples in sets.items()]

    def figures(self, model: nn.Module, data: ControlData, folder: Path) -> list[Path]:
        from recipes.control.evaluation import TEST_SEED
        from recipes.control.figures import episode_gif, target_curve
        from recipes.figures import learning_curves

        drawn = [learning_curves(folder.parent / "metrics.csv", folder / "learning_curves.png")]
        if data.environment.id:
            returns, _ = self._rolled_out(model, data)
            drawn.append(target_curve(returns, self.arms, self._best(data), folder / "target_curve.png"))
            world, options = (data.environment, data.scaling), {"mode": self.task.rollout, "seed": TEST_SEED}
            drawn.append(episode_gif(model, *world, data.targets[0], folder / "rollout.gif", **options))
        return [path for path in drawn if path is not None]

    def export(self, model: nn.Module, data: ControlData, folder: Path) -> None:
        from recipes.control.answer import write_world
        from zoo.library import save_pretrained

        save_pretrained(model, folder)
        write_world(folder, data.environment, data.scaling, data.targets, self.task.rollout)

    def load_exported(self, folder: Path) -> nn.Module:
        from zoo.library import load_pretrained

        return load_pretrained(folder)

    def check_fits(self, model: nn.Module, data: ControlData) -> None:
        ours: Any = getattr(model, "config", None)
        world = data.environment
        mine = (ours.state_dim, ours.action_dim, ours.discrete)
        theirs = (world.state_dim, world.action_dim, world.discrete)
        if mine != theirs or ours.max_timestep < world.max_steps:
            told = "states, actions, discrete"
            raise ConfigError(
                f"the model has {mine} ({told}) and {ours.max_timestep} steps, the data {theirs} and {world.max_steps}",
                "data",
            )

    @classmethod
    def predict(cls, run: Path, argv: Sequence[str]) -> int:
        from recipes.control.answer import answer
        from zoo.library import load_pretrained

        return answer(load_pretrained(run / "model"), run / "model", argv)


RECIPE = Decision
