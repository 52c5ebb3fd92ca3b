"""From a case to rows, a table and a file, on a family of linear maps and on the smallest ViT. No time is asserted."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import nn

from benchmarks.files import header, write_json
from benchmarks.speed.arms import BACKWARD, FORWARD, OURS, Arm, Family, Target, supervised
from benchmarks.speed.families import load, names
from benchmarks.speed.memory import alternate_peaks, peak, peaks_in_child
from benchmarks.speed.report import document, table, verdict
from benchmarks.speed.run import CONTROL, measure_case
from tests.benchmarks.toy_family import FAMILY, ToyCase

linux = pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from Linux's /proc")
MIB = 2**20


@pytest.fixture(scope="module")
def measured():
    return measure_case(FAMILY, FAMILY.cases[0], rounds=2, memory=None)


def test_rows_hold_every_arm_in_every_mode(measured) -> None:
    rows, absent = measured
    assert [(row.mode, row.arm) for row in rows] == [
        (mode, arm) for mode in (FORWARD, BACKWARD) for arm in (OURS, "theirs", CONTROL)
    ]
    assert absent == {"missing": "pip install missing"}
    assert all(row.cpu.count == 2 for row in rows)
    assert all((row.cpu_ratio is None) == (row.arm == OURS) for row in rows)


def test_targets_are_judged_where_they_apply(measured) -> None:
    rows, _ = measured
    found = {(row.arm, target.figure, met) for row in rows for target, _, met in row.targets}
    assert found == {("theirs", "time", True), (OURS, "share", False)}  # no memory was taken, the control has none
    assert verdict(rows) == "2 of 4 targets met"
    target = Target("time", 0.95, peer="theirs", mode=FORWARD)
    assert target.applies("time", "theirs", FORWARD, "any")
    assert not target.applies("time", "theirs", BACKWARD, "any")
    assert not target.applies("memory", "theirs", FORWARD, "any")
    assert target.met(0.95) and not target.met(0.96)
    assert Target("share", 0.6).met(0.6) and not Target("share", 0.6).met(0.59)


def test_a_smoke_case_has_no_targets() -> None:
    rows, _ = measure_case(FAMILY, FAMILY.cases[2], rounds=1, memory=None, control=False)
    assert verdict(rows) == "no targets for these cases"
    assert CONTROL not in {row.arm for row in rows}


def test_the_report_is_a_table_and_plain_json(measured, tmp_path: Path) -> None:
    rows, absent = measured
    console = Console(width=200, record=True, file=(tmp_path / "screen").open("w"))
    console.print(table(rows, "toy"))
    text = console.export_text()
    assert "theirs" in text and "missed: share" in text
    ratio = rows[1].cpu_ratio
    assert ratio is not None and f"{ratio.median:.3f} [{ratio.q1:.3f} {ratio.q3:.3f}]" in text
    out = tmp_path / "new" / "speed.json"
    write_json(out, document(rows, absent, header("python -m benchmarks.speed model=toy", 1)))
    read = json.loads(out.read_text())
    assert read["command"] == "python -m benchmarks.speed model=toy"
    assert read["threads"] == 1
    assert torch.__version__.startswith(read["versions"]["torch"])
    assert [row["arm"] for row in read["rows"]] == [row.arm for row in rows]
    assert read["rows"][1]["cpu_ratio"]["median"] == ratio.median
    assert read["rows"][0]["targets"] == [
        {"figure": "share", "bound": 2.0, "value": rows[0].share.median, "met": False}
    ]


def test_a_failed_write_leaves_the_earlier_file(tmp_path: Path) -> None:
    out = tmp_path / "speed.json"
    write_json(out, {"run": 1})
    with pytest.raises(TypeError):
        write_json(out, {"run": object()})
    assert json.loads(out.read_text()) == {"run": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["speed.json"]


def test_arms_of_different_size_are_refused() -> None:
    family: Family[ToyCase] = Family("toy", cases=FAMILY.cases)
    family.peer(OURS)(lambda case: supervised(nn.Linear(2, 2), [torch.zeros(1, 2)], [torch.zeros(1).long()]))
    family.peer("larger")(lambda case: supervised(nn.Linear(2, 3), [torch.zeros(1, 2)], [torch.zeros(1).long()]))
    with pytest.raises(ValueError, match="different models, parameters are zoo 6, larger 9"):
        family.build(family.cases[0])
    family.unequal = 0.5
    assert set(family.build(family.cases[0])[0]) == {OURS, "larger"}


def test_forward_evaluates_and_backward_trains_without_leftovers() -> None:
    modes: list[tuple[bool, bool]] = []

    class Seen(nn.Linear):
        def forward(self, x):
            modes.append((self.training, torch.is_grad_enabled()))
            return super().forward(x)

    module = Seen(2, 2)
    arm = supervised(module, [torch.zeros(1, 2)], [torch.zeros(1).long()])
    arm.ready(FORWARD)()
    arm.ready(BACKWARD)()
    assert modes == [(False, False), (True, True)]
    assert module.weight.grad is None


def test_flops_see_fused_attention_and_backward() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(16, 48)

        def forward(self, x):
            q, k, v = self.qkv(x).view(1, 8, 3, 2, 8).permute(2, 0, 3, 1, 4)
            return nn.functional.scaled_dot_product_attention(q, k, v).flatten()[None]

    arm = supervised(Attention(), [torch.zeros(1, 8, 16)], [torch.zeros(1).long()])
    assert arm.flops is not None
    projection, attention = 2 * 8 * 16 * 48, 4 * 2 * 8 * 8 * 8
    assert arm.flops(FORWARD) == projection + attention
    # The input needs no gradient, so the projection's backward is one product; attention's is two for each of its two.
    assert arm.flops(BACKWARD) == 2 * projection + 3 * attention


@linux
def test_peak_is_what_a_call_holds_at_most() -> None:
    def call() -> None:
        a = torch.ones(8 * MIB)  # 32 MiB
        b = a + 1
        del a, b
        torch.ones(MIB)

    call()
    assert 63 * MIB <= peak(call) <= 66 * MIB  # the kernel counts pages in batches: a few hundred KiB either way
    assert peak(lambda: None) < MIB


@linux
def test_peaks_in_a_child_are_steady_and_equal_for_equal_arms() -> None:
    peaks = peaks_in_child(FAMILY.name, "wide", rounds=3, threads=1, device="cpu")
    assert {mode: set(arms) for mode, arms in peaks.items()} == {m: {OURS, "theirs"} for m in (FORWARD, BACKWARD)}
    for arms in peaks.values():
        for spread in arms.values():
            assert spread.high - spread.low <= 0.5 * MIB
        assert abs(arms[OURS].median - arms["theirs"].median) <= 0.5 * MIB
    assert 0.5 * MIB <= peaks[FORWARD][OURS].median <= 1.5 * MIB  # the output, 1024 x 256 floats
    assert peaks[BACKWARD][OURS].median > peaks[FORWARD][OURS].median


@linux
def test_a_child_that_fails_is_told_in_one_line() -> None:
    with pytest.raises(RuntimeError, match="the child ended with code 1") as error:
        peaks_in_child("tests.benchmarks.toy_family", "nothing", rounds=1, threads=1, device="cpu")
    assert "\n" not in str(error.value)


@linux
def test_memory_targets_and_ratios_join_the_rows() -> None:
    def memory(family: str, case: str, *, rounds: int, threads: int, device: str):
        return alternate_peaks(FAMILY.build(FAMILY.cases[1])[0], rounds, device)

    rows, _ = measure_case(FAMILY, FAMILY.cases[1], rounds=1, memory=memory)
    (theirs,) = (row for row in rows if row.arm == "theirs" and row.mode == BACKWARD)
    assert theirs.memory_ratio is not None and theirs.memory_ratio > 0
    assert {target.figure for target, _, _ in theirs.targets} == {"time", "memory"}


def test_every_family_has_ours_a_smoke_case_and_unique_names() -> None:
    for name in names():
        family = load(name)
        assert family.name == name
        assert OURS in family.peers
        found = [case.name for case in family.cases]
        assert len(set(found)) == len(found)
        assert any(case.smoke for case in family.cases) and not all(case.smoke for case in family.cases)


def test_an_arm_may_be_any_calls() -> None:
    family: Family[ToyCase] = Family("toy", cases=FAMILY.cases)
    done: list[str] = []
    family.peer(OURS)(lambda case: Arm({"decode": lambda: done.append("ours")}))
    family.peer("theirs")(lambda case: Arm({"decode": lambda: done.append("theirs")}))
    rows, _ = measure_case(family, family.cases[0], rounds=2, memory=None, control=False)
    assert [(row.mode, row.arm, row.share) for row in rows] == [("decode", OURS, None), ("decode", "theirs", None)]
    assert set(done) == {"ours", "theirs"}
