"""Rectified flow: straight lines from data to noise. Liu et al. 2022, arXiv:2209.03003; Lipman et al. 2022,
arXiv:2210.02747.

    x_t = (1 - t) x_0 + t e, t in [0, 1];  the denoiser predicts the velocity dx/dt = e - x_0
    loss      its mean squared error; t uniform or logit-normal (Esser et al. 2024, arXiv:2403.03206, section 3.1)
    euler     x <- x + (t' - t) v(x, t), from t = 1 to 0
    heun      the mean of the velocities at both ends (Karras et al. 2022, arXiv:2206.00364, algorithm 1); the last step
              is Euler's, as there, because t = 0 is never trained under a logit-normal

Larger images want more of the steps near the noise: `shift` s moves each time to s t / (1 + (s - 1) t) (Esser et al.,
equation 23).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from zoo.diffusion.noise import SampleNoise
from zoo.diffusion.process import TIMES, Denoiser, ProcessConfig, Watch, checked, column
from zoo.registry import register

__all__ = ["Flow", "FlowConfig"]

Sampler = Literal["euler", "heun"]


@register("process", "flow", paper="Liu et al. 2022, arXiv:2209.03003")
class FlowConfig(ProcessConfig):
    """Rectified flow with a velocity loss."""

    density: Literal["logit_normal", "uniform"] = "logit_normal"
    """Of the training times."""
    mean: float = 0.0
    """Of the logit of t; above 0 stresses noisy times."""
    std: Annotated[float, Field(gt=0)] = 1.0
    shift: Annotated[float, Field(gt=0)] = 1.0
    """Moves the times of training and sampling towards the noise, where it is above 1."""
    sampler: Sampler = "euler"
    sample_steps: Annotated[int, Field(ge=1)] = 20

    def build(self) -> Flow:
        return Flow(self)


class Flow:
    """See the module docstring; `loss` and `sample` as in `Process`. Times given to `loss` are 0 ... 1."""

    def __init__(self, config: FlowConfig) -> None:
        self.config = config

    def loss(self, denoise: Denoiser, x0: Tensor, *, t: Tensor | None = None, noise: Tensor | None = None) -> Tensor:
        t = self.times(x0.shape[0], x0.device) if t is None else t.to(x0.device)  # (B,)
        noise = torch.randn_like(x0) if noise is None else noise
        velocity = self._ask(denoise, torch.lerp(x0, noise, column(t, x0)), t)  # (B, C, H, W)
        return (velocity - (noise - x0)).square().flatten(1).mean(1)  # (B,)

    def times(self, batch: int, device: torch.device | str = "cpu") -> Tensor:
        """Training times (B,) in 0 ... 1."""
        config = self.config
        if config.density == "uniform":
            return self._shifted(torch.rand(batch, device=device))
        return self._shifted(torch.sigmoid(config.mean + config.std * torch.randn(batch, device=device)))

    @torch.no_grad()
    def sample(
        self,
        denoise: Denoiser,
        shape: Sequence[int],
        *,
        seeds: Iterable[int],
        steps: int | None = None,
        sampler: Sampler | None = None,
        device: torch.device | str = "cpu",
        watch: Watch | None = None,
    ) -> Tensor:
        count = steps or self.config.sample_steps
        heun = (sampler or self.config.sampler) == "heun"
        times = self._shifted(torch.linspace(1.0, 0.0, count + 1, dtype=torch.float64)).tolist()
        noise = SampleNoise(seeds, device)
        x = noise(shape)  # (B, C, H, W)
        for now, then in pairwise(times):
            velocity = self._ask(denoise, x, x.new_full((len(noise),), now))
            expected = x - now * velocity
            if heun and then > 0:
                ahead = self._ask(denoise, x + (then - now) * velocity, x.new_full((len(noise),), then))
                velocity = (velocity + ahead) / 2
            x = x + (then - now) * velocity  # (B, C, H, W)
            if watch is not None:
                watch(x, expected)
        return x

    def _shifted(self, t: Tensor) -> Tensor:
        shift = self.config.shift
        return t if shift == 1.0 else shift * t / (1.0 + (shift - 1.0) * t)

    @staticmethod
    def _ask(denoise: Denoiser, x: Tensor, t: Tensor) -> Tensor:
        advice = "a flow has no variance: build the model with learned_sigma=False"
        return checked(denoise(x, t * TIMES), x, 1, advice)
