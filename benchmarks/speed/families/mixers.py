"""Sequence mixers and experts: operators by length, strong decays, whole layers, decoding (benchmarks/speed/mixers).

python -m benchmarks.speed mixers                   all of it
python -m benchmarks.speed mixers case=gla          one operator at all lengths
python -m benchmarks.speed mixers case=decode       single steps alone
python -m benchmarks.speed mixers case=smoke        that everything runs
"""

from __future__ import annotations

from typing import Any

from benchmarks.speed.arms import Family
from benchmarks.speed.mixers import blocks, decoding, experts, generation, operators, strong
from benchmarks.speed.mixers.operators import OPERATORS, MixerCase, inputs_of, operator_of

__all__ = ["FAMILY", "OPERATORS", "MixerCase", "inputs_of", "operator_of"]

FAMILY: Family[Any] = Family(
    "mixers",
    cases=(),
    rounds=3,
    control=False,
    parts=tuple(module.PART for module in (operators, strong, blocks, decoding, generation, experts)),
)
