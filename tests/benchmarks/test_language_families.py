"""The language comparisons compare equal work: sizes, losses and answers of the arms agree, and every arm runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from benchmarks.speed.arms import BACKWARD, FORWARD, OURS
from benchmarks.speed.families import decode, load
from benchmarks.speed.run import measure_case

TRAINED = {
    "gpt": {OURS, "transformers", "transformers-dropout", "transformers-fused"},
    "llama": {OURS, "transformers"},
    "bert": {OURS, "transformers"},
    "t5": {OURS, "transformers"},
}


def smoke(family: Any) -> Any:
    return next(case for case in family.cases if case.smoke)


@pytest.mark.parametrize("name", TRAINED)
def test_arms_have_the_same_parameters_and_run_in_both_modes(name: str) -> None:
    family = load(name)
    rows, absent = measure_case(family, smoke(family), rounds=1, memory=None, control=False)
    assert not absent
    assert {(row.mode, row.arm) for row in rows} == {(m, arm) for m in (FORWARD, BACKWARD) for arm in TRAINED[name]}
    assert all(row.share is not None and row.share.median > 0 for row in rows)
    assert len({arm.parameters for arm in family.build(smoke(family))[0].values()}) == 1


@pytest.mark.parametrize("name", TRAINED)
def test_every_parameter_gets_a_gradient_and_none_is_left(name: str) -> None:
    family = load(name)
    for arm in family.build(smoke(family))[0].values():
        assert arm.module is not None
        reached: set[str] = set()
        for parameter_name, parameter in arm.module.named_parameters():
            parameter.register_hook(lambda grad, n=parameter_name, into=reached: into.add(n))
        arm.ready(BACKWARD)()
        assert reached == {n for n, _ in arm.module.named_parameters()}
        assert all(parameter.grad is None for parameter in arm.module.parameters())


def test_masked_rows_have_the_stated_share_of_labels() -> None:
    family = load("bert")
    torch.manual_seed(0)
    case = family.cases[0]
    tokens, labels = case.rows()
    assert ((labels != -100).sum(1) == round(0.15 * case.length)).all()
    assert ((tokens == 2) | (labels == -100)).all()


@pytest.mark.parametrize("name", ["smoke", "smoke-llama"])
def test_decoding_arms_write_the_same_number_of_tokens(name: str) -> None:
    case = next(case for case in decode.FAMILY.cases if case.name == name)
    arms, absent = decode.FAMILY.build(case)
    assert not absent
    assert set(arms) == {OURS, "transformers", "floor"}
    arms["floor"].ready(decode.DECODE)()
    assert arms["transformers"].ready(decode.DECODE)().shape == (case.batch, case.length)
    ours = arms[OURS].ready(decode.DECODE)()
    assert torch.stack(ours.new).shape == (case.batch, case.new)
    assert not arms[OURS].module.training
