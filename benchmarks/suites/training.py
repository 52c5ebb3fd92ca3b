"""What the suites' own trainings share: the rate of a job, AdamW, and the seed of the rows to test."""

from __future__ import annotations

import torch
from torch import nn

from benchmarks.suites.api import Job
from recipes.optim import undecayed_names
from zoo.registry import ConfigError

__all__ = ["TEST_SEED", "adamw", "rate_of"]

TEST_SEED = 1_000_003
"""Of the rows to test, the same for every arm and seed."""


def rate_of(job: Job) -> float:
    """Raises ConfigError for a job without one."""
    if job.lr is None:
        raise ConfigError(f"the task '{job.task}' needs a learning rate", "lr")
    return job.lr


def adamw(model: nn.Module, lr: float) -> torch.optim.Optimizer:
    """AdamW with betas (0.9, 0.95) and a decay of 0.1, but on what the recipes leave undecayed: norms, biases,
    positions, and what a block names itself."""
    kept = undecayed_names(model)
    decayed = [parameter for name, parameter in model.named_parameters() if name not in kept]
    plain = [parameter for name, parameter in model.named_parameters() if name in kept]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), fused=True)
