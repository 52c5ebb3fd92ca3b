"""From a case to rows, a table and a file, on a family of linear maps and on the smallest ViT. No time is asserted."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import nn

from benchmarks.files import header, write_json
from benchmarks.speed import families
from benchmarks.speed.__main__ import main
from benchmarks.speed.arms import BACKWARD, FORWARD, OURS, Arm, Family, Growth, Target, supervised
from benchmarks.speed.families import load, names
from benchmarks.speed.measure import Spread, alternate
from benchmarks.speed.memory import PeakReader, alternate_peaks, peak, peaks_in_child
from benchmarks.speed.report import document, growth, line, promise_table, promises, table, verdict
from benchmarks.speed.run import CONTROL, Row, measure_case
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
    assert verdict(promises(rows)) == "2 of 4 targets met"
    target = Target("time", 0.95, peer="theirs", mode=FORWARD)
    assert target.applies("time", "theirs", FORWARD, "any")
    assert not target.applies("time", "theirs", BACKWARD, "any")
    assert not target.applies("memory", "theirs", FORWARD, "any")
    assert target.met(0.95) and not target.met(0.96)
    assert Target("share", 0.6).met(0.6) and not Target("share", 0.6).met(0.59)


def test_a_smoke_case_has_no_targets() -> None:
    rows, _ = measure_case(FAMILY, FAMILY.cases[2], rounds=1, memory=None, control=False)
    assert verdict(promises(rows)) == "no targets for these cases"
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
    write_json(out, document(rows, absent, header("python -m benchmarks.speed model=toy", 1), promises(rows)))
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
        cases = [case for _, case in family.everything()]
        assert all(OURS in part.peers for part, _ in family.everything())
        assert len({case.name for case in cases}) == len(cases)
        assert any(case.smoke for case in cases) and not all(case.smoke for case in cases)


def test_an_arm_may_be_any_calls() -> None:
    family: Family[ToyCase] = Family("toy", cases=FAMILY.cases)
    done: list[str] = []
    family.peer(OURS)(lambda case: Arm({"decode": lambda: done.append("ours")}))
    family.peer("theirs")(lambda case: Arm({"decode": lambda: done.append("theirs")}))
    rows, _ = measure_case(family, family.cases[0], rounds=2, memory=None, control=False)
    assert [(row.mode, row.arm, row.share) for row in rows] == [("decode", OURS, None), ("decode", "theirs", None)]
    assert set(done) == {"ours", "theirs"}


def one_of(family: Family[ToyCase], **peers) -> Family[ToyCase]:
    for name, calls in peers.items():
        family.peer(name)(lambda case, calls=calls: calls() if callable(calls) else Arm(calls))
    return family


def failing() -> None:
    raise ArithmeticError("no kernel for this\nand a second line")


def test_a_peer_that_fails_loses_its_rows_alone() -> None:
    family = one_of(
        Family("toy", cases=FAMILY.cases),
        zoo={FORWARD: lambda: None, BACKWARD: lambda: None},
        unbuilt=failing,
        halfway={FORWARD: lambda: None, BACKWARD: failing},
    )
    rows, absent = measure_case(family, family.cases[0], rounds=1, memory=None, control=False)
    assert [(row.arm, row.mode) for row in rows] == [(OURS, FORWARD), ("halfway", FORWARD), (OURS, BACKWARD)]
    told = "failed: ArithmeticError: no kernel for this"
    assert absent == {"unbuilt (narrow)": told, "halfway (narrow, forward+backward)": told}


def test_our_own_failure_ends_the_measurement() -> None:
    family = one_of(Family("toy", cases=FAMILY.cases), zoo={FORWARD: failing})
    with pytest.raises(RuntimeError, match="toy narrow forward: ArithmeticError: no kernel for this"):
        measure_case(family, family.cases[0], rounds=1, memory=None)


def test_slow_calls_take_part_in_fewer_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {"fast": 0.1, "slow": 0.6, "slowest": 5.0, "once": 9.0}
    called: list[str] = []
    monkeypatch.setattr("benchmarks.speed.measure._time", lambda call, repeats, wait: (call(), call()))
    calls = {name: lambda name=name: (called.append(name), seconds[name])[1] for name in seconds}
    timings = alternate(calls, 3, patience=1.5, once=["once"])
    assert {name: len(clock.wall) for name, clock in timings.clocks.items()} == {
        "fast": 3,
        "slow": 2,
        "slowest": 1,
        "once": 1,
    }
    assert called.count("once") == 2  # the stub calls twice a reading
    assert timings.ratio("fast", "slow").count == 2


def test_facts_are_judged_by_targets() -> None:
    family = one_of(
        Family("toy", cases=FAMILY.cases, targets=(Target("bytes", 4, peer=OURS), Target("holes", 0, peer=OURS))),
        zoo=lambda: Arm({FORWARD: lambda: None}, facts={"bytes": 4, "holes": 1}),
    )
    rows, _ = measure_case(family, family.cases[0], rounds=1, memory=None, control=False)
    assert [(p.target, p.measured, p.met) for p in promises(rows)] == [
        ("narrow forward: bytes <= 4", 4, True),
        ("narrow forward: holes <= 0", 1, False),
    ]
    assert "bytes 4  holes 1" in line(rows[0])


def rows_of(lengths: dict[int, float], mode: str = BACKWARD, peak: float | None = None) -> list[Row]:
    """Rows of a series: seconds by length, and bytes a token."""
    return [
        Row(
            f"n{length}",
            mode,
            OURS,
            cpu=Spread.of([seconds]),
            wall=Spread.of([seconds]),
            share=None,
            peak=None if peak is None else Spread.of([peak * length]),
            cpu_ratio=None,
            wall_ratio=None,
            memory_ratio=None,
            clock="cpu",
        )
        for length, seconds in lengths.items()
    ]


def test_growth_is_an_exponent_from_1024_on_and_the_largest_doubling() -> None:
    seconds = {256: 9.0, 512: 1.0, 1024: 2.5, 2048: 5.0, 4096: 10.0, 8192: 20.0}
    cases = [ToyCase(f"n{length}", length) for length in seconds]
    family: Family[ToyCase] = Family(
        "toy", cases=cases, series=lambda case: ("square", case.width), growth=Growth(1.15, 2.4)
    )
    rows = rows_of(seconds, peak=3.0)
    (entry,) = growth(rows, family.everything())
    assert entry["lengths"] == [1024, 2048, 4096, 8192]
    assert entry["time"] == pytest.approx(1.0) and entry["memory"] == pytest.approx(1.0)
    assert entry["doubling"] == pytest.approx(2.5)
    told = promises(rows, family.everything(), [entry])
    assert [(p.measured, p.met) for p in told] == [
        (pytest.approx(1.0), True),
        (pytest.approx(1.0), True),
        (pytest.approx(2.5), False),
    ]
    assert verdict(told) == "2 of 3 targets met"
    assert growth(rows[:4], family.everything()) == []  # two lengths tell nothing


def test_a_target_without_its_peer_is_told_as_not_measured() -> None:
    target = Target("time", 0.5, peer="missing", mode=FORWARD, case="narrow")
    family = one_of(Family("toy", cases=FAMILY.cases, targets=(target,)), zoo={FORWARD: lambda: None})
    rows, _ = measure_case(family, family.cases[0], rounds=1, memory=None, control=False)
    (told,) = promises(rows, [(family, family.cases[0])])
    assert told.plain() == {"target": "narrow forward: time <= 0.5 of missing", "measured": None, "met": None}
    assert verdict([told]) == "no targets for these cases, 1 not measured"
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(promise_table([told]))
    assert "not measured" in console.export_text()


def test_parts_are_measured_as_one_family() -> None:
    part: Family[ToyCase] = Family("toy", cases=FAMILY.cases[:1])
    whole: Family[ToyCase] = Family("toy", cases=FAMILY.cases[1:], parts=(part,))
    assert whole.everything() == [(whole, FAMILY.cases[1]), (whole, FAMILY.cases[2]), (part, FAMILY.cases[0])]


@linux
def test_one_child_reads_many_cases_and_is_replaced_when_it_dies() -> None:
    settings = {"rounds": 1, "threads": 1, "device": "cpu"}
    with PeakReader() as read:
        wide = read(FAMILY.name, "wide", **settings)
        first = read._child
        narrow = read(FAMILY.name, "narrow", **settings)
        assert read._child is first
        assert wide[BACKWARD][OURS].median > narrow[BACKWARD][OURS].median
        with pytest.raises(RuntimeError, match="the child ended with code 1"):
            read(FAMILY.name, "nothing", **settings)
        assert set(read(FAMILY.name, "narrow", **settings)) == {FORWARD, BACKWARD}
        last = read._child
        assert last is not first and last is not None
    assert last.poll() == 0


def test_a_case_of_ours_that_fails_is_told_and_the_others_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def build(case: ToyCase) -> Arm:
        return Arm({FORWARD: failing if case.name == "narrow" else lambda: None})

    family: Family[ToyCase] = Family("toy", cases=FAMILY.cases[:2])
    family.peer(OURS)(build)
    monkeypatch.setattr(families, "load", lambda name: family)
    out = tmp_path / "speed.json"
    assert main(["gpt", "rounds=1", "memory=false", f"out={out}"]) == 1
    assert "gpt: our own arm failed in narrow" in capsys.readouterr().err
    found = json.loads(out.read_text())
    assert {row["case"] for row in found["rows"]} == {"wide"}
    assert found["absent"] == {
        "zoo (narrow)": "failed: RuntimeError: toy narrow forward: ArithmeticError: no kernel for this"
    }
