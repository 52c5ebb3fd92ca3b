"""Exponential moving average of the weights (Polyak and Juditsky 1992; decay warm-up as in Tarvainen and Valpola 2017).

torch's AveragedModel does the keeping: a deep copy of the model, so ties between parameters stay ties, saved with the
checkpoint like any submodule. The weights that are evaluated and exported are the average where there is one.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from recipes.sharding import whole


class MovingAverage(AveragedModel):
    """A moving average of a model, in eval mode and without gradients.

    The first update copies the model. With `warmup` the decay at update n is min(decay, (1 + n) / (10 + n)), so that
    the first, poor weights are soon forgotten. Float buffers (a batch norm's running statistics) are averaged like
    weights; whole-number buffers are copied (torch's own rule would round them down).

    An update touches all parameters in a few calls: torch's walks both models first, five times the cost of the
    averaging itself for a small one. The parameters' lists are made once, so neither model may exchange them later.
    """

    def __init__(self, model: nn.Module, decay: float, *, warmup: bool = True) -> None:
        super().__init__(model, multi_avg_fn=get_ema_multi_avg_fn(decay), use_buffers=True)
        self.decay, self.warmup = decay, warmup
        self.requires_grad_(False).eval()
        self._parameters_of: dict[Any, tuple[list[Tensor], list[Tensor]]] = {}
        self._has_buffers = next(model.buffers(), None) is not None

    @torch.no_grad()
    def update_parameters(self, model: nn.Module) -> None:
        """Follow the weights of `model` by one step."""
        if not self._parameters_of:
            self._parameters_of = _by_kind(self.module.parameters(), model.parameters())
        groups = list(self._parameters_of.items())
        if self._has_buffers:  # fetched each time: moving a module to a device exchanges its buffers
            groups += _by_kind(self.module.buffers(), model.buffers()).items()
        seen = int(self.n_averaged)
        decay = min(self.decay, (1 + seen) / (10 + seen)) if self.warmup else self.decay
        for (_, dtype), (average, parts) in groups:
            current = [whole(part) for part in parts]
            if seen and dtype.is_floating_point:
                torch._foreach_lerp_(average, current, 1 - decay)
            else:
                torch._foreach_copy_(average, current)
        self.n_averaged += 1

    def train(self, mode: bool = True) -> MovingAverage:
        """Stays in eval mode: it is only ever evaluated."""
        return super().train(False)


def _by_kind(average: Any, current: Any) -> dict[Any, tuple[list[Tensor], list[Tensor]]]:
    """Pairs of tensors in lists by device and dtype."""
    groups: dict[Any, tuple[list[Tensor], list[Tensor]]] = defaultdict(lambda: ([], []))
    for mean, value in zip(average, current, strict=True):
        groups[(mean.device, mean.dtype)][0].append(mean)
        groups[(mean.device, mean.dtype)][1].append(value)
    return dict(groups)
