"""Diffusion and flow processes, their samplers, and classifier-free guidance. They know no model and no labels.

    process = FlowConfig().build()                                      # or DDPMConfig(...)
    losses = process.loss(lambda x, t: model(x, t, labels), images)     # (B,), images around [-1, 1]
    images = process.sample(guided(model, labels, 1.5), (C, H, W), seeds=range(B))

A `Denoiser` is any function (x (B, C, H, W), t (B,) in 0 ... 1000) -> what the process asks for.
"""

from __future__ import annotations

from zoo.diffusion.ddpm import DDPM, Chain, DDPMConfig
from zoo.diffusion.flow import Flow, FlowConfig
from zoo.diffusion.guidance import guided
from zoo.diffusion.noise import SampleNoise
from zoo.diffusion.process import Denoiser, Process, ProcessConfig, Watch
from zoo.diffusion.schedules import cosine_alpha_bar, linear_alpha_bar

__all__ = [
    "DDPM",
    "Chain",
    "DDPMConfig",
    "Denoiser",
    "Flow",
    "FlowConfig",
    "Process",
    "ProcessConfig",
    "SampleNoise",
    "Watch",
    "cosine_alpha_bar",
    "guided",
    "linear_alpha_bar",
]
