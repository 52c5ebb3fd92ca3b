"""The comparison of mixers compares equal work: every peer computes our outputs, and every case runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.speed.__main__ import main
from benchmarks.speed.arms import BACKWARD, FORWARD, OURS, Growth
from benchmarks.speed.families import load
from benchmarks.speed.mixers import blocks, decoding, experts, generation, operators, strong
from benchmarks.speed.mixers.fla_naive import fla_naive
from benchmarks.speed.mixers.operators import ATTENTION, OPERATORS, TORCH
from benchmarks.speed.run import measure_case

SMALL = {case.operator: case for case in operators.PART.cases if case.smoke}
FORMS = {"mamba": {"transformers"}, "mamba2": {"transformers", "transformers-64"}} | {
    name: {"transformers"} for name in ("gated_delta", "kda")
}
"""Peers that need nothing but transformers."""


def smoke(part):
    return [case for case in part.cases if case.smoke]


@pytest.mark.parametrize("name", OPERATORS)
def test_every_peer_of_an_operator_computes_our_outputs(name: str) -> None:
    arms, absent = operators.PART.build(SMALL[name])
    assert {OURS, TORCH, ATTENTION} | FORMS.get(name, set()) <= set(arms)
    assert not any(why.startswith("failed") for why in absent.values())
    ours = arms[OURS].calls[FORWARD]()
    for peer, made in arms.items():
        if peer != ATTENTION:
            torch.testing.assert_close(
                made.calls[FORWARD](), ours, rtol=1e-4, atol=1e-4, msg=lambda m, p=peer: f"{p}: {m}"
            )
        made.calls[BACKWARD]()


def test_peers_that_take_seconds_are_kept_to_one_small_length() -> None:
    found = {case.name: case for case in operators.PART.cases}
    build = operators.PART.peers["transformers"]
    short, long = build(found["mamba-256"]), build(found["mamba-512"])
    assert short.once == {BACKWARD} and BACKWARD in short.calls and BACKWARD not in long.calls
    assert build(found["kda-256"]) is None and build(found["kda-512"]).once == {BACKWARD}
    assert build(found["mamba2-4096"]) is None


def test_the_plain_form_turns_kernels_off_and_on_again(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    monkeypatch.delenv("ZOO_KERNELS", raising=False)
    seen = operators.plain(lambda: os.environ.get("ZOO_KERNELS"))
    assert seen() == "torch" and "ZOO_KERNELS" not in os.environ


@pytest.mark.parametrize("case", smoke(strong.PART), ids=lambda case: case.operator)
def test_strong_decays_leave_all_numbers_finite(case) -> None:
    for compiled in (True, False):
        made = strong.zoo(strong.replace(case, compiled=compiled))
        assert made.facts == {strong.NOT_FINITE: 0}
    bounds = operators.inputs_of(strong.replace(case, decays="strong"))
    decay = -bounds["delta"] if case.operator == "mamba" else bounds["decay"]
    assert decay.min() >= -20 and decay.max() <= -5


def test_a_number_that_is_not_finite_is_counted() -> None:
    x = torch.tensor([1.0, 0.0], requires_grad=True)
    assert strong._not_finite({"x": x}, lambda x: x / x) == 2  # 0 / 0, and its gradient


@pytest.mark.parametrize("part", [blocks.PART, experts.PART, generation.PART], ids=["blocks", "experts", "generation"])
def test_layers_and_models_have_the_same_parameters_and_run(part) -> None:
    for case in smoke(part):
        rows, absent = measure_case(part, case, rounds=1, memory=None, control=False)
        assert not absent
        assert {row.arm for row in rows} >= {OURS, "transformers"}
        arms, _ = part.build(case)
        assert len({arm.parameters for arm in arms.values() if arm.parameters is not None}) == 1


@pytest.mark.parametrize("case", smoke(decoding.PART), ids=lambda case: case.mixer)
def test_a_state_has_one_size_and_steps_go_on_from_what_was_read(case) -> None:
    arms, _ = decoding.PART.build(case)
    facts = arms[OURS].facts
    assert facts[decoding.GROWTH] == 1.0 and facts[decoding.BYTES] > 0
    first, last = (arms[name].calls[decoding.STEPS]() for name in ("after 1024", OURS))
    assert first.shape == (1, case.dim) and first.isfinite().all()
    assert not torch.equal(first, last)


def test_both_writers_write_as_many_tokens() -> None:
    (case,) = smoke(generation.PART)
    arms, _ = generation.PART.build(case)
    assert arms["transformers"].calls[generation.WRITE]().shape == (case.batch, 2 + case.new)
    assert arms["transformers"].calls[generation.READ]().shape == (case.batch, case.prompt + 1)
    assert len(arms[OURS].calls[generation.WRITE]().new[0]) == case.new


def test_fla_is_read_from_its_files_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLA_FOLDER", raising=False)
    with pytest.raises(ImportError, match="pip install --no-deps --target FOLDER fla-core"):
        fla_naive("test/absent")
    monkeypatch.setenv("FLA_FOLDER", str(tmp_path))
    with pytest.raises(ImportError, match="is not there"):
        fla_naive("test/absent")
    file = tmp_path / "fla" / "ops" / "test" / "present" / "naive.py"
    file.parent.mkdir(parents=True)
    file.write_text("answer = 42\n")
    assert fla_naive("test/present").answer == 42
    assert "fla" not in sys.modules and str(tmp_path) not in sys.path


def test_targets_name_cases_and_peers_that_exist() -> None:
    for part in load("mixers").parts:
        cases = {case.name for case in part.cases if not case.smoke}
        assert {target.case for target in part.targets} <= cases | {None}
        assert {target.peer for target in part.targets} <= {*part.peers, OURS}
    assert operators.PART.growth == Growth(1.15, 2.5, (OURS, TORCH))


@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from Linux's /proc")
def test_the_command_measures_a_case_of_each_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "speed.json"
    words = ["mixers", "case=smoke-gla,smoke-decode-gla", "rounds=1", f"out={out}"]
    assert main(words) == 0
    found = json.loads(out.read_text())
    assert {row["case"] for row in found["rows"]} == {"smoke-gla", "smoke-decode-gla"}
    peaks = {(row["arm"], row["mode"]) for row in found["rows"] if row["peak"] is not None}
    assert {(OURS, FORWARD), (OURS, BACKWARD)} <= peaks
    assert "smoke-decode-gla: 1 rounds" in capsys.readouterr().out
