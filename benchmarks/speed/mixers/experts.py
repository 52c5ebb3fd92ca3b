"""A mixture of 8 SwiGLU experts of width 1,024, two for each token, at width 384.

dense                 one SwiGLU of width 2,048, which does the same products for every token: the ideal
transformers          Mixtral's layer as a loop over experts
transformers-grouped  the same with one grouped product
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.speed.arms import BACKWARD, OURS, Arm, Family, Target
from benchmarks.speed.mixers.blocks import layer_arm

__all__ = ["PART", "ExpertsCase"]


@dataclass(frozen=True, kw_only=True)
class ExpertsCase:
    name: str
    tokens: int
    dim: int = 384
    hidden: int = 1024
    experts: int = 8
    chosen: int = 2
    smoke: bool = False

    def rows(self) -> Tensor:
        return torch.randn(1, self.tokens, self.dim)  # (B, T, D)


def _time(bound: float, peer: str, tokens: int) -> Target:
    return Target("time", bound, peer=peer, mode=BACKWARD, case=f"experts-{tokens}")


PART: Family[ExpertsCase] = Family(
    "mixers",
    cases=(
        *(ExpertsCase(name=f"experts-{n}", tokens=n) for n in (512, 2048)),
        ExpertsCase(name="smoke-experts", tokens=8, dim=16, hidden=8, smoke=True),
    ),
    targets=(
        _time(1.4, "dense", 512),
        _time(1.25, "dense", 2048),
        *(_time(1.1, "transformers-grouped", n) for n in (512, 2048)),
        *(_time(0.8, "transformers", n) for n in (512, 2048)),
    ),
    patience=3.0,
)


@PART.peer(OURS)
def zoo(case: ExpertsCase) -> Arm:
    from zoo import create_ffn
    from zoo.blocks.api import Context

    expert = {"name": "swiglu", "hidden": case.hidden}
    moe = create_ffn("moe", dim=case.dim, experts=case.experts, top_k=case.chosen, expert=expert)
    return layer_arm(moe, case.rows(), lambda: {"context": Context()})


@PART.peer("dense")
def dense(case: ExpertsCase) -> Arm:
    from zoo import create_ffn
    from zoo.blocks.api import Context

    layer = create_ffn("swiglu", dim=case.dim, hidden=case.chosen * case.hidden)
    made = layer_arm(layer, case.rows(), lambda: {"context": Context()})
    return Arm(made.calls)  # without its module: it has fewer parameters by design


def _mixtral(case: ExpertsCase, form: str) -> Arm:
    from transformers.models.mixtral.modeling_mixtral import MixtralConfig, MixtralSparseMoeBlock

    config = MixtralConfig(
        hidden_size=case.dim,
        intermediate_size=case.hidden,
        num_local_experts=case.experts,
        num_experts_per_tok=case.chosen,
    )
    config._experts_implementation = form
    layer: Any = MixtralSparseMoeBlock(config)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(std=0.02)  # the layer alone leaves them unset
    return layer_arm(layer, case.rows())


@PART.peer("transformers")
def transformers(case: ExpertsCase) -> Arm:
    return _mixtral(case, "eager")


@PART.peer("transformers-grouped")
def transformers_grouped(case: ExpertsCase) -> Arm:
    return _mixtral(case, "grouped_mm")
