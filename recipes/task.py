"""Task: the LightningModule that trains any recipe.

**Loss.** A recipe returns the loss summed over the real targets of a micro-batch. The gradient of an optimizer step
is that of the mean over all real targets of the step, whatever their number in each micro-batch, in the short last
window of an epoch and on several ranks: Lightning divides by `accumulate` and averages over ranks, both whatever the
window, so the sum is multiplied by both and divided by the window's targets, which the loader counts.

**Experts.** What mixtures of experts say in a forward pass (zoo/blocks/auxiliary.py) is heard here: auxiliary losses
are means over a micro-batch and join the gradient as such, so `accumulate` of them are averaged; loads are summed over
the micro-batches and ranks of a step, after which they move the routers' biases and are logged.

**Logs.** Nothing is logged in a step. Sums stay tensors and are read every N steps by the Log callback.

**Weights.** `exported` is what is evaluated and saved: the moving average where there is one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from recipes.ema import MovingAverage
from recipes.lightning_import import LightningModule
from recipes.optim import OptimConfig, parameter_groups
from recipes.recipe import Batch, Recipe, find_recipe, wide
from recipes.sharding import shard
from zoo.blocks.auxiliary import Auxiliary, collect
from zoo.blocks.ffn.balance import expert_report, update_biases
from zoo.registry import ConfigError, decode, encode


class Task(LightningModule):
    """A model in training. `settings` are plain values, and all it takes to build the task anew.

    settings: name, model (complete: it builds without data), data, optim, task, seed.
    recipe: the recipe made from the settings already; found by name where it is not given.
    model: the model to train; built from settings["model"] where it is not given.
    loader: called as loader(rank, world_size), gives the batches of training.
    """

    def __init__(
        self,
        settings: dict[str, Any],
        recipe: Recipe | None = None,
        model: nn.Module | None = None,
        loader: Callable[[int, int], Any] | None = None,
    ) -> None:
        super().__init__()
        plain = encode(settings)
        self.save_hyperparameters({"settings": plain})
        self.recipe = recipe if recipe is not None else find_recipe(plain.get("name"))(plain)
        self.model = model if model is not None else decode("model", plain.get("model"), "model").build()
        self.optim: OptimConfig = decode("optim", plain.get("optim"), "optim")
        self.ema: MovingAverage | None = None
        if self.optim.ema is not None:
            self.ema = MovingAverage(self.model, self.optim.ema, warmup=self.optim.ema_warmup)
        self.loader = loader
        self.sums: dict[str, Tensor] = {}
        """Loss, further logs and real targets since the last reading."""
        self.window_targets: Tensor | None = None
        self.measures: dict[tuple[str, str], Tensor] = {}
        """What experts told since the last optimizer step, by place and name."""
        self.scale: tuple[int, int] = (1, 1)
        """Micro-batches a step, and ranks."""
        self.total_steps = 0

    @property
    def exported(self) -> nn.Module:
        """The weights that count: the moving average where there is one."""
        return self.ema.module if self.ema is not None else self.model

    def configure_model(self) -> None:
        """Split the weights among the ranks where `trainer.strategy=fsdp` asks for it."""
        shard(self)

    def train_dataloader(self) -> Any:
        if self.loader is None:
            raise RuntimeError("this Task was made without a loader")
        return self.loader(self.trainer.global_rank, self.trainer.world_size)

    def on_train_start(self) -> None:
        self.scale = (self.trainer.accumulate_grad_batches, self.trainer.world_size)

    def training_step(self, batch: Batch, batch_index: int) -> Tensor:
        with collect() as said:
            loss_sum, logs = self.recipe.loss(self.model, batch)
        self.window_targets = batch["window_targets"]
        self._keep("loss", loss_sum)
        for name, value in logs.items():
            self._keep(name, value)
        accumulate, ranks = self.scale
        targets = self.window_targets.clamp(min=1)  # a window of padding only: 0 / 1, not 0 / 0
        share = (accumulate * ranks / targets).to(loss_sum.dtype)
        self._hear(said, 1 / share)
        return loss_sum * share + said.loss

    def _hear(self, said: Auxiliary, weight: Tensor) -> None:
        """Keep what was said in a micro-batch. `weight`: its part of the targets by which logs are divided."""
        for name, value in said.named_losses().items():
            self._keep(name, value * weight)
        for key, value in said.measures.items():
            self.measures[key] = self.measures[key] + value if key in self.measures else value

    def _after_step(self, targets: Tensor) -> None:
        """Move the routers' biases by the loads of the whole step, and log these."""
        ranks = self.scale[1]
        if ranks > 1:
            flat = torch.cat([value.flatten() for value in self.measures.values()])
            flat = self.trainer.strategy.reduce(flat, reduce_op="sum")
            sizes = [value.numel() for value in self.measures.values()]
            parts = zip(self.measures.items(), flat.split(sizes), strict=True)
            self.measures = {key: part.view_as(value) for (key, value), part in parts}
        update_biases(self.model, self.measures)
        for name, value in expert_report(self.measures).items():
            self._keep(name, value * targets / ranks)  # a mean over targets, like all logs
        self.measures = {}

    def _keep(self, name: str, value: Tensor) -> None:
        kept = self.sums.get(name)
        value = wide(value.detach())
        self.sums[name] = value if kept is None else kept + value

    def optimizer_step(
        self,
        epoch: int,
        batch_idx: int,
        optimizer: Any,
        optimizer_closure: Callable[[], Any] | None = None,
    ) -> None:
        optimizer.step(closure=optimizer_closure)
        if self.window_targets is not None:
            self._keep("targets", self.window_targets)  # once a step: it counts the whole window
            if self.measures:
                self._after_step(self.window_targets)
        if self.ema is not None:
            self.ema.update_parameters(self.model)

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """The Trainer's own clipping where it is set, that of `optim.clip` otherwise."""
        limit = self.optim.clip if gradient_clip_val is None else gradient_clip_val
        if limit is not None:
            self.clip_gradients(optimizer, limit, gradient_clip_algorithm or "norm")

    def configure_optimizers(self) -> Any:
        config = self.optim
        if "fused" in type(config).model_fields and str(self.trainer.precision).endswith("-mixed"):
            config = config.model_copy(update={"fused": False})  # Lightning refuses to clip before a fused step
        optimizer = config.build(parameter_groups(self.model, config, self.recipe.optional_lr_scale))
        self.total_steps = self._count_steps()
        scheduler = LambdaLR(optimizer, lambda step: config.schedule.factor(step, self.total_steps))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def _count_steps(self) -> int:
        """Optimizer steps of the whole run; 0 where it has no end. Raises ConfigError where the schedule needs one."""
        total = self.trainer.estimated_stepping_batches
        name = type(self.optim.schedule).registered_name
        if total != float("inf"):
            return int(total)
        if name not in ("constant", "inverse_sqrt"):
            raise ConfigError(f"'{name}' needs trainer.max_steps or trainer.max_epochs", "optim.schedule")
        return 0

    def rate(self, step: int) -> float:
        """The learning rate (of the parameters without a factor of their own) used in optimizer step `step`."""
        return self.optim.lr * self.optim.schedule.factor(step, self.total_steps)

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """As Lightning's, without its walk over the batch where nothing has to move."""
        if device.type == "cpu":
            return batch
        return super().transfer_batch_to_device(batch, device, dataloader_idx)
