"""What every process is: a loss to train a denoiser with, and a way from noise to samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from zoo.registry import Config, ConfigError

__all__ = ["TIMES", "Denoiser", "Process", "ProcessConfig", "Watch", "checked", "column"]

TIMES = 1000.0
"""Denoisers are told times from 0, clean, to this, whatever the process's own are."""

Denoiser = Callable[[Tensor, Tensor], Tensor]
"""(x (B, C, H, W), t (B,)) -> the process's prediction, (B, C, H, W) or (B, 2 C, H, W) with a learned variance."""

Watch = Callable[[Tensor, Tensor], None]
"""Called after each step with x and the clean image that was expected then, (B, C, H, W) both."""


class Process(Protocol):
    """A way to noise data, and back."""

    def loss(self, denoise: Denoiser, x0: Tensor, *, t: Tensor | None = None, noise: Tensor | None = None) -> Tensor:
        """Loss of each row (B,) on clean data x0 (B, C, H, W), at times t (B,) and with noise like x0; both drawn from
        torch's global generator where not given."""
        ...

    def sample(
        self,
        denoise: Denoiser,
        shape: Sequence[int],
        *,
        seeds: Iterable[int],
        steps: int | None = None,
        sampler: Any = None,
        device: torch.device | str = "cpu",
        watch: Watch | None = None,
    ) -> Tensor:
        """One sample (B, *shape) in fp32 for each seed, without gradients. steps, sampler: other than the config's."""
        ...


class ProcessConfig(Config):
    """Base of processes' choices."""

    kind: ClassVar[str] = "process"

    def build(self) -> Process:
        raise NotImplementedError


def column(values: Tensor, x: Tensor) -> Tensor:
    """(B,) -> (B, 1, 1, 1) in x's dtype, to multiply x with."""
    return values.to(x.device, x.dtype).view(-1, *[1] * (x.dim() - 1))


def checked(out: Tensor, x: Tensor, times: int, advice: str) -> Tensor:
    """The denoiser's answer in x's dtype. Raises ConfigError where its shape is not x's with `times` the channels."""
    wanted = (x.shape[0], times * x.shape[1], *x.shape[2:])
    if tuple(out.shape) != wanted:
        raise ConfigError(
            f"the denoiser should return {wanted} for x {tuple(x.shape)}, got {tuple(out.shape)}; {advice}"
        )
    return out.to(x.dtype)
