"""The arms beside a Decision Transformer: behaviour cloning of all episodes and of the best ones, and chance.

A clone is the same network without return-to-go, trained with the same optimizer for the same number of steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from recipes.data.control.episodes import WindowExamples
from recipes.data.loader import EpochLoader
from recipes.ema import MovingAverage
from recipes.optim import OptimConfig, parameter_groups
from recipes.recipe import Batch
from zoo.blocks.auxiliary import collect
from zoo.blocks.ffn.balance import update_biases
from zoo.blocks.mixers.attention import AttentionConfig
from zoo.models.decision import DecisionConfig

__all__ = ["clone_of", "trained", "windowed"]


def windowed(config: DecisionConfig) -> DecisionConfig:
    """Attention without a window gets that of the context, so that a State sees no more steps than training does."""
    mixer = config.mixer
    if isinstance(mixer, AttentionConfig) and mixer.window is None:
        mixer = mixer.model_copy(update={"window": config.tokens * config.context})
    return config.model_copy(update={"mixer": mixer})


def clone_of(config: DecisionConfig) -> DecisionConfig:
    """The same network without return-to-go; a window holds the same steps."""
    changes: dict[str, Any] = {"return_to_go": False, "predict_next": False}
    if isinstance(config.mixer, AttentionConfig) and config.mixer.window == config.tokens * config.context:
        changes["mixer"] = config.mixer.model_copy(update={"window": 2 * config.context})
    return config.model_copy(update=changes)


def trained(
    config: DecisionConfig,
    examples: WindowExamples,
    optim: OptimConfig,
    loss: Callable[[nn.Module, Batch], tuple[Tensor, Mapping[str, Tensor]]],
    *,
    steps: int,
    batch_size: int,
    seed: int,
    device: torch.device | str = "cpu",
) -> nn.Module:
    """A model trained as the run's own, in eval mode: the moving average where the optimizer keeps one."""
    devices = [torch.device(device)] if torch.device(device).type == "cuda" else []
    with torch.random.fork_rng(devices), torch.enable_grad():
        torch.manual_seed(seed)
        model = config.build().to(device).train()
        average = MovingAverage(model, optim.ema, warmup=optim.ema_warmup) if optim.ema is not None else None
        optimizer = optim.build(parameter_groups(model, optim))
        rates = [group["lr"] for group in optimizer.param_groups]
        loader = EpochLoader(examples, min(batch_size, len(examples)), shuffle=True, seed=seed)
        step = 0
        while step < steps:
            for given in loader:
                if step == steps:
                    break
                for group, rate in zip(optimizer.param_groups, rates, strict=True):
                    group["lr"] = rate * optim.schedule.factor(step, steps)
                batch = {name: value.to(device) for name, value in given.items() if name != "window_targets"}
                with collect() as said:
                    total, _ = loss(model, batch)
                optimizer.zero_grad()
                (total / float(given["window_targets"]) + said.loss).backward()
                if optim.clip is not None:
                    nn.utils.clip_grad_norm_(model.parameters(), optim.clip)
                optimizer.step()
                update_biases(model, said.measures)
                if average is not None:
                    average.update_parameters(model)
                step += 1
    return (model if average is None else average.module).eval()
