"""A family small enough for a test: two linear maps of the same size, and a peer that is not installed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from benchmarks.speed.arms import OURS, Arm, Family, Target, supervised


@dataclass(frozen=True)
class ToyCase:
    name: str
    width: int
    smoke: bool = False


FAMILY: Family[ToyCase] = Family(
    "tests.benchmarks.toy_family",
    cases=(ToyCase("narrow", 4), ToyCase("wide", 256), ToyCase("tiny", 2, smoke=True)),
    targets=(Target("time", 1e9), Target("memory", 1e9), Target("share", 2.0)),
)


def _arm(case: ToyCase) -> Arm:
    return supervised(nn.Linear(case.width, case.width), [torch.randn(1024, case.width)], [torch.zeros(1024).long()])


@FAMILY.peer(OURS)
def ours(case: ToyCase) -> Arm:
    return _arm(case)


@FAMILY.peer("theirs")
def theirs(case: ToyCase) -> Arm:
    return _arm(case)


@FAMILY.peer("missing")
def missing(case: ToyCase) -> Arm:
    raise ImportError("pip install missing")
