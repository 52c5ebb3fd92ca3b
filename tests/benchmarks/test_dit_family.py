"""The DiT comparison compares equal models: parameters and FLOPs of the arms agree, or differ as is explained."""

from __future__ import annotations

import pytest

from benchmarks.speed.arms import BACKWARD, FORWARD, OURS
from benchmarks.speed.families.dit import FAMILY
from benchmarks.speed.run import measure_case

SMOKE = next(case for case in FAMILY.cases if case.smoke)


@pytest.fixture(scope="module")
def arms():
    return FAMILY.build(SMOKE)[0]


def test_arms_of_one_block_have_the_same_parameters_and_flops(arms) -> None:
    assert set(arms) == {OURS, "facebook", "diffusers"}
    assert len({arm.parameters for arm in arms.values()}) == 1
    for mode in (FORWARD, BACKWARD):
        counts = {name: arm.flops(mode) for name, arm in arms.items()}
        assert counts[OURS] == counts["facebook"] <= counts["diffusers"], counts
        # diffusers embeds time and label once more for the last norm
        assert counts["diffusers"] < 1.1 * counts[OURS], counts


def test_the_smoke_case_measures_every_arm() -> None:
    rows, absent = measure_case(FAMILY, SMOKE, rounds=2, memory=None)
    assert not absent
    assert {row.arm for row in rows} == {OURS, "facebook", "diffusers", "zoo again"}
