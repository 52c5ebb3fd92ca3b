"""Denoising diffusion in discrete time, with its ancestral and implicit samplers. Ho et al. 2020, arXiv:2006.11239.

    q(x_t | x_0) = N(sqrt(a_t) x_0, (1 - a_t) I),  a_t = alpha_bar_t, t = 0 ... T - 1

    the denoiser predicts  noise e;  velocity sqrt(a) e - sqrt(1 - a) x_0 (Salimans & Ho 2022, arXiv:2202.00512);
                           or image x_0
    loss                   mean squared error of that; with a learned variance + vlb_weight T L_t, where L_t is one term
                           of the variational bound in bits a dimension, whose mean has no gradient (Nichol & Dhariwal
                           2021, arXiv:2102.09672, section 3.1; T = 1000 and 0.001 are what DiT trains with)
    ancestral              x_{t-1} = posterior mean (x_0 expected, x_t) + sigma_t z
    ddim                   x_{t-1} = sqrt(a_{t-1}) x_0 + sqrt(1 - a_{t-1} - s^2) e + s z, s = eta times the posterior's
                           deviation (Song et al. 2020, arXiv:2010.02502); eta = 1 is ancestral with sigma="small"

Fewer sampling steps use every n-th time, evenly and with both ends, as a chain of its own (Nichol & Dhariwal,
section 4).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from zoo.diffusion.noise import SampleNoise
from zoo.diffusion.process import TIMES, Denoiser, ProcessConfig, Watch, checked, column
from zoo.diffusion.schedules import cosine_alpha_bar, linear_alpha_bar
from zoo.diffusion.vlb import normal_kl, pixel_log_likelihood
from zoo.registry import ConfigError, register

__all__ = ["DDPM", "Chain", "DDPMConfig"]

Sampler = Literal["ancestral", "ddim"]


@register("process", "ddpm", paper="Ho et al. 2020, arXiv:2006.11239")
class DDPMConfig(ProcessConfig):
    """Diffusion over T discrete times, by default as DiT trains and samples it."""

    times: Annotated[int, Field(ge=1)] = 1000
    """T, the times of training."""
    schedule: Literal["linear", "cosine"] = "linear"
    predict: Literal["noise", "velocity", "image"] = "noise"
    learned_sigma: bool = True
    """The denoiser returns twice the channels; the second half interpolates the log variance between the posterior's
    (at -1) and beta (at 1)."""
    vlb_weight: Annotated[float, Field(ge=0)] = 0.001
    """Weight of the whole bound, T L_t, in the loss of a learned variance."""
    levels: Annotated[int, Field(ge=2)] = 256
    """Values of a pixel, for the bound's last term."""
    sigma: Literal["small", "large"] = "large"
    """Variance of an ancestral step where it is not learned: the posterior's, or beta."""
    clip: Annotated[float, Field(gt=0)] | None = None
    """Expected images are cut to [-clip, clip] in each sampling step: 1 for pixels, None for latents."""
    sampler: Sampler = "ancestral"
    sample_steps: Annotated[int, Field(ge=1)] | None = 250
    """None: all T."""
    eta: Annotated[float, Field(ge=0)] = 0.0
    """Noise of the ddim sampler: 0 none, 1 as much as the ancestral one."""

    def build(self) -> DDPM:
        return DDPM(self)


@dataclass(frozen=True)
class Chain:
    """S noising steps in fp64: alpha_bar (S,) and the time (S,) that each has in training."""

    alpha_bar: Tensor
    times: Tensor

    def __len__(self) -> int:
        return len(self.times)

    @cached_property
    def previous(self) -> Tensor:
        """alpha_bar one step earlier, 1 before the first."""
        return torch.cat((self.alpha_bar.new_ones(1), self.alpha_bar[:-1]))

    @cached_property
    def beta(self) -> Tensor:
        return 1.0 - self.alpha_bar / self.previous

    @cached_property
    def variance(self) -> Tensor:
        """Of q(x_{t-1} | x_t, x_0); 0 at the first step."""
        return self.beta * (1.0 - self.previous) / (1.0 - self.alpha_bar)

    @cached_property
    def log_variance(self) -> Tensor:
        """The same, with the second step's value at the first, where it is 0."""
        first = self.variance[1:2] if len(self) > 1 else self.beta[:1]
        return torch.cat((first, self.variance[1:])).log()

    @cached_property
    def large_log_variance(self) -> Tensor:
        """log beta, with the posterior's value at the first step."""
        return torch.cat((self.log_variance[:1], self.beta[1:].log()))

    def posterior_mean(self, x0: Tensor, x: Tensor, step: Tensor) -> Tensor:
        """Mean of q(x_{t-1} | x_t = x, x_0), both (B, C, H, W), at steps (B,)."""
        rest = 1.0 - self.alpha_bar
        clean = self.beta * self.previous.sqrt() / rest  # (S,)
        noisy = (1.0 - self.previous) * (1.0 - self.beta).sqrt() / rest  # (S,)
        return column(clean[step], x) * x0 + column(noisy[step], x) * x  # (B, C, H, W)

    def spaced(self, steps: int) -> Chain:
        """Every n-th step with both ends. Raises ConfigError for more steps than there are."""
        if not 1 <= steps <= len(self):
            raise ConfigError(f"should be 1 to {len(self)}, the times of training, got {steps}", "steps")
        kept = torch.linspace(len(self) - 1, 0, steps, dtype=torch.float64).round().long().flip(0)  # (S',)
        return Chain(self.alpha_bar[kept], self.times[kept])


class DDPM:
    """See the module docstring; `loss` and `sample` as in `Process`. Times given to `loss` are whole, 0 ... T - 1."""

    def __init__(self, config: DDPMConfig) -> None:
        self.config = config
        alpha_bar = (linear_alpha_bar if config.schedule == "linear" else cosine_alpha_bar)(config.times)
        self.chain = Chain(alpha_bar, torch.arange(config.times))

    def loss(self, denoise: Denoiser, x0: Tensor, *, t: Tensor | None = None, noise: Tensor | None = None) -> Tensor:
        t = torch.randint(self.config.times, x0.shape[:1]) if t is None else t.cpu()  # (B,)
        noise = torch.randn_like(x0) if noise is None else noise
        x = self.noised(x0, t, noise)  # (B, C, H, W)
        out = self._ask(denoise, x, self.chain, t)
        prediction, spread = self._parts(out, x)
        losses = (prediction - self.target(x0, t, noise)).square().flatten(1).mean(1)  # (B,)
        if spread is None or not self.config.vlb_weight:
            return losses
        bound = self._bound(x0, x, t, prediction.detach(), spread)  # (B,)
        return losses + self.config.vlb_weight * self.config.times * bound

    def noised(self, x0: Tensor, t: Tensor, noise: Tensor) -> Tensor:
        """x_t (B, C, H, W)."""
        signal, rest = self._signal(self.chain, t, x0)
        return signal * x0 + rest * noise

    def target(self, x0: Tensor, t: Tensor, noise: Tensor) -> Tensor:
        """What the denoiser should answer, without the variance's half."""
        if self.config.predict == "noise":
            return noise
        if self.config.predict == "image":
            return x0
        signal, rest = self._signal(self.chain, t, x0)
        return signal * noise - rest * x0

    def expected(self, prediction: Tensor, x: Tensor, step: Tensor, chain: Chain) -> Tensor:
        """The clean image x_0 (B, C, H, W) that a prediction stands for, not clipped."""
        if self.config.predict == "image":
            return prediction
        signal, rest = self._signal(chain, step, x)
        if self.config.predict == "noise":
            return (x - rest * prediction) / signal
        return signal * x - rest * prediction

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
        chain = self.chain.spaced(steps or self.config.sample_steps or self.config.times)
        advance = self._ddim if (sampler or self.config.sampler) == "ddim" else self._ancestral
        noise = SampleNoise(seeds, device)
        x = noise(shape)  # (B, C, H, W)
        for number in reversed(range(len(chain))):
            step = torch.full((len(noise),), number)  # (B,)
            prediction, spread = self._parts(self._ask(denoise, x, chain, step), x)
            x0 = self.expected(prediction, x, step, chain)
            if self.config.clip is not None:
                x0 = x0.clamp(-self.config.clip, self.config.clip)
            fresh = noise(shape) if number else None
            x = advance(x, x0, spread, step, chain, fresh)  # (B, C, H, W)
            if watch is not None:
                watch(x, x0)
        return x

    def _ancestral(
        self, x: Tensor, x0: Tensor, spread: Tensor | None, step: Tensor, chain: Chain, fresh: Tensor | None
    ) -> Tensor:
        mean = chain.posterior_mean(x0, x, step)
        if fresh is None:
            return mean
        return mean + (0.5 * self._log_variance(spread, x, step, chain)).exp() * fresh

    def _ddim(
        self, x: Tensor, x0: Tensor, spread: Tensor | None, step: Tensor, chain: Chain, fresh: Tensor | None
    ) -> Tensor:
        if fresh is None:
            return x0
        signal, rest = self._signal(chain, step, x)
        noise = (x - signal * x0) / rest
        deviation = self.config.eta * chain.variance.sqrt()[step]  # (B,)
        previous = chain.previous[step]  # (B,)
        direction = (1.0 - previous - deviation.square()).clamp(min=0).sqrt()
        return column(previous.sqrt(), x) * x0 + column(direction, x) * noise + column(deviation, x) * fresh

    def _bound(self, x0: Tensor, x: Tensor, t: Tensor, prediction: Tensor, spread: Tensor) -> Tensor:
        """L_t of each row (B,), in bits a dimension: a KL of posteriors, or at t = 0 the pixels' likelihood."""
        chain = self.chain
        mean = chain.posterior_mean(self.expected(prediction, x, t, chain), x, t)
        log_variance = self._log_variance(spread, x, t, chain)
        true_mean, true_log_variance = chain.posterior_mean(x0, x, t), column(chain.log_variance[t], x)
        kl = normal_kl(true_mean, true_log_variance, mean, log_variance).flatten(1).mean(1)  # (B,)
        pixels = -pixel_log_likelihood(x0, mean, log_variance, self.config.levels).flatten(1).mean(1)  # (B,)
        return torch.where(t.to(x.device) == 0, pixels, kl) / math.log(2.0)

    def _log_variance(self, spread: Tensor | None, x: Tensor, step: Tensor, chain: Chain) -> Tensor:
        small = column(chain.log_variance[step], x)
        if spread is None:
            return small if self.config.sigma == "small" else column(chain.large_log_variance[step], x)
        share = (spread + 1.0) / 2.0  # (B, C, H, W)
        return share * column(chain.beta[step].log(), x) + (1.0 - share) * small

    def _ask(self, denoise: Denoiser, x: Tensor, chain: Chain, step: Tensor) -> Tensor:
        """The denoiser's answer, told times of 0 ... 1000 whatever T is."""
        t = chain.times[step].to(x.device, x.dtype) * (TIMES / self.config.times)  # (B,)
        learned = self.config.learned_sigma
        advice = f"build the model with learned_sigma={learned}, or set the process's to {not learned}"
        return checked(denoise(x, t), x, 2 if learned else 1, advice)

    def _parts(self, out: Tensor, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Prediction and variance, (B, C, H, W) each."""
        if not self.config.learned_sigma:
            return out, None
        prediction, spread = out.split(x.shape[1], dim=1)
        return prediction, spread

    @staticmethod
    def _signal(chain: Chain, step: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """sqrt(alpha_bar) and sqrt(1 - alpha_bar), (B, 1, 1, 1) each."""
        alpha_bar = chain.alpha_bar[step]
        return column(alpha_bar.sqrt(), x), column((1.0 - alpha_bar).sqrt(), x)
