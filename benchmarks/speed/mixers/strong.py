"""Strong decays, log decays between -20 and -5: no slower than mild ones, and no infinite or undefined number.

"zoo" has the strong decays and "mild" the usual ones, both in the same form: what `zoo.ops` takes, or plain PyTorch in
the cases named strong-torch. The fact "not finite" counts the numbers of the output and of all gradients that are not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from benchmarks.speed.arms import OURS, Arm, Family, Target
from benchmarks.speed.mixers.operators import MixerCase, arm, inputs_of, operator_of, plain

__all__ = ["DECAYING", "PART", "StrongCase"]

DECAYING = ("lightning", "gla", "gated_delta", "kda", "rwkv7", "mamba2", "mamba")
"""Operators whose decays are their input."""
LENGTH = 1024
NOT_FINITE = "not finite"


@dataclass(frozen=True, kw_only=True)
class StrongCase(MixerCase):
    compiled: bool = True
    """Whether kernels may be taken."""


PART: Family[StrongCase] = Family(
    "mixers",
    cases=(
        *(StrongCase(name=f"strong-{name}", operator=name, length=LENGTH) for name in DECAYING),
        *(StrongCase(name=f"strong-torch-{name}", operator=name, length=LENGTH, compiled=False) for name in DECAYING),
        *(
            StrongCase(
                name=f"smoke-strong-{name}", operator=name, length=64, width=8, channels=16, states=4, smoke=True
            )
            for name in DECAYING
        ),
    ),
    targets=(
        Target("time", 1.1, peer="mild"),  # a difference below a tenth is noise
        Target(NOT_FINITE, 0, peer=OURS),
    ),
    peaks=False,
    patience=1.0,
)


def _call(case: StrongCase) -> Any:
    return operator_of(case.operator) if case.compiled else plain(operator_of(case.operator))


@PART.peer(OURS)
def zoo(case: StrongCase) -> Arm:
    inputs, call = inputs_of(replace(case, decays="strong")), _call(case)
    made = arm(inputs, call)
    made.facts[NOT_FINITE] = _not_finite(inputs, call)
    return made


@PART.peer("mild")
def mild(case: StrongCase) -> Arm:
    return arm(inputs_of(case), _call(case))


def _not_finite(inputs: dict[str, Tensor], call: Any) -> int:
    out = call(**inputs)
    gradients = torch.autograd.grad(out.sum(), list(inputs.values()))
    return sum(int((~x.isfinite()).sum()) for x in (out.detach(), *gradients))
