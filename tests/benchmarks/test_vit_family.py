"""The ViT comparison compares equal models: sizes, tokens and FLOPs of the arms agree."""

from __future__ import annotations

import pytest

from benchmarks.speed.arms import BACKWARD, FORWARD, OURS
from benchmarks.speed.families.vit import FAMILY
from benchmarks.speed.run import measure_case

SMOKE = next(case for case in FAMILY.cases if case.smoke)


@pytest.fixture(scope="module")
def arms():
    return FAMILY.build(SMOKE)[0]


def test_all_arms_have_the_same_parameters_and_flops(arms) -> None:
    assert set(arms) == {OURS, "timm", "transformers"}
    assert len({arm.parameters for arm in arms.values()}) == 1
    for mode in (FORWARD, BACKWARD):
        counts = {name: arm.flops(mode) for name, arm in arms.items()}
        assert len(set(counts.values())) == 1, counts


def test_the_smoke_case_measures_every_arm() -> None:
    rows, absent = measure_case(FAMILY, SMOKE, rounds=2, memory=None)
    assert not absent
    assert {row.arm for row in rows} == {OURS, "timm", "transformers", "zoo again"}
    assert all(row.share is not None and row.share.median > 0 for row in rows)
