"""Learning rate schedules: a factor of the peak rate at each optimizer step, in closed form.

A factor depends on the step and the length of the run only, so a resumed run goes on exactly. `step` counts from 0,
the rate of step 0 is never 0, and the warm-up rises linearly and reaches the peak at its last step.
"""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from zoo.registry import Config, ConfigError, register

Steps = Annotated[int, Field(ge=0)] | Annotated[float, Field(ge=0.0, le=1.0)]
Ratio = Annotated[float, Field(ge=0.0, le=1.0)]


class ScheduleConfig(Config):
    """Base of schedules. `factor(step, total)` is the rate's share of its peak."""

    kind: ClassVar[str] = "schedule"

    warmup: Steps = 0
    """Steps of linear warm-up: a whole number, or a share of the run written with a point (0.05)."""

    def factor(self, step: int, total: int) -> float:
        """Share of the peak rate at `step` of `total`. Raises ConfigError when the warm-up fills the run."""
        warmup = self.warmup_steps(total)
        if step < warmup:
            return (step + 1) / warmup
        return self.after(step - warmup, max(total - warmup, 1), warmup)

    def after(self, step: int, total: int, warmup: int) -> float:
        """Share of the peak, `step` steps after a warm-up of `warmup`, `total` steps being left after it."""
        raise NotImplementedError

    def warmup_steps(self, total: int) -> int:
        """The warm-up in steps."""
        steps = round(self.warmup * total) if isinstance(self.warmup, float) else self.warmup
        if total and steps > total:
            raise ConfigError(f"should be at most the {total} steps of the run, got {steps}", "optim.schedule.warmup")
        return steps


@register("schedule", "constant")
class Constant(ScheduleConfig):
    """The peak rate throughout."""

    def after(self, step: int, total: int, warmup: int) -> float:
        return 1.0


@register("schedule", "cosine", paper="Loshchilov and Hutter 2016, arXiv:1608.03983")
class Cosine(ScheduleConfig):
    """Half a cosine from the peak down to `min_ratio` of it; no restarts."""

    min_ratio: Ratio = 0.0

    def after(self, step: int, total: int, warmup: int) -> float:
        return self.min_ratio + (1 - self.min_ratio) * _half_cosine(step / total)


@register("schedule", "linear", paper="Devlin et al. 2018, arXiv:1810.04805")
class Linear(ScheduleConfig):
    """A straight line from the peak down to `min_ratio` of it."""

    min_ratio: Ratio = 0.0

    def after(self, step: int, total: int, warmup: int) -> float:
        return self.min_ratio + (1 - self.min_ratio) * max(0.0, 1 - step / total)


@register("schedule", "inverse_sqrt", paper="Vaswani et al. 2017, arXiv:1706.03762")
class InverseSqrt(ScheduleConfig):
    """sqrt(warmup / step) after the warm-up. Needs no length of the run. Without warm-up: 1 / sqrt(step)."""

    def after(self, step: int, total: int, warmup: int) -> float:
        return math.sqrt(max(warmup, 1) / (step + max(warmup, 1)))


@register("schedule", "wsd", paper="Hu et al. 2024, arXiv:2404.06395")
class WarmupStableDecay(ScheduleConfig):
    """The peak rate until the last part of the run, then down to `min_ratio` of it."""

    decay: Steps = 0.2
    """Length of the last part: steps, or a share of the run written with a point."""
    shape: Literal["linear", "sqrt", "cosine"] = "linear"
    """`sqrt` is 1 - sqrt(x) (Haegele et al. 2024, arXiv:2405.18392)."""
    min_ratio: Ratio = 0.0

    def after(self, step: int, total: int, warmup: int) -> float:
        run = total + warmup
        decay = round(self.decay * run) if isinstance(self.decay, float) else self.decay
        decay = min(max(decay, 1), total)
        done = min(max((step - (total - decay)) / decay, 0.0), 1.0)
        fall = {"linear": 1 - done, "sqrt": 1 - math.sqrt(done), "cosine": _half_cosine(done)}[self.shape]
        return self.min_ratio + (1 - self.min_ratio) * fall


@register("schedule", "onecycle", paper="Smith and Topin 2017, arXiv:1708.07120")
class OneCycle(ScheduleConfig):
    """Cosine up from `start_ratio` to the peak, cosine down to `min_ratio`; equals torch's OneCycleLR (rate only)."""

    warmup: Steps = 0.3
    start_ratio: Ratio = 0.04
    min_ratio: Ratio = 4e-6

    def factor(self, step: int, total: int) -> float:
        self.warmup_steps(total)  # refuses one longer than the run; the curve itself is not rounded to whole steps
        share = self.warmup if isinstance(self.warmup, float) else self.warmup / max(total, 1)
        top, end = share * total - 1, total - 1
        if step <= top and top > 0:
            return 1 - (1 - self.start_ratio) * _half_cosine(step / top)
        start = max(top, 0.0)
        return self.min_ratio + (1 - self.min_ratio) * _half_cosine((step - start) / max(end - start, 1e-9))


def _half_cosine(share: float) -> float:
    """1 at 0, 0 at 1, flat at both ends."""
    return 0.5 * (1 + math.cos(math.pi * min(max(share, 0.0), 1.0)))
