"""Measure the cases of a family: alternating times, the GEMM rate in the same rounds, and peak memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.speed.arms import OURS, Arm, Case, Family, Target
from benchmarks.speed.measure import Call, ClockName, Spread, Timings, alternate
from benchmarks.speed.memory import Peaks, peaks_in_child

__all__ = ["CONTROL", "GEMM", "GEMM_FLOPS", "Row", "measure_case"]

GEMM = "gemm"
GEMM_SIDE = 1024
GEMM_FLOPS = 2 * GEMM_SIDE**3
CONTROL = "zoo again"
"""A second reading of our own arm in every round: its ratio is 1 but for noise, which the others' spread is read by."""


@dataclass(frozen=True)
class Row:
    """One arm in one mode of one case. Ratios are ours / this arm, None on our own row."""

    case: str
    mode: str
    arm: str
    cpu: Spread
    wall: Spread
    share: Spread | None
    peak: Spread | None
    cpu_ratio: Spread | None
    wall_ratio: Spread | None
    memory_ratio: float | None
    clock: ClockName
    facts: dict[str, float] = field(default_factory=dict)
    targets: list[tuple[Target, float, bool]] = field(default_factory=list)
    """Target, the figure found, and whether it is met."""

    def plain(self) -> dict[str, Any]:
        """Plain values, for JSON. Seconds and bytes."""
        spreads = ("cpu", "wall", "share", "peak", "cpu_ratio", "wall_ratio")
        values = {name: spread.plain() if (spread := getattr(self, name)) is not None else None for name in spreads}
        targets = [{"figure": t.figure, "bound": t.bound, "value": value, "met": met} for t, value, met in self.targets]
        head = {"case": self.case, "mode": self.mode, "arm": self.arm, "clock": self.clock}
        return head | values | {"memory_ratio": self.memory_ratio, "facts": self.facts, "targets": targets}


def measure_case(
    family: Family[Any],
    case: Case,
    *,
    rounds: int,
    threads: int = 1,
    device: str = "cpu",
    control: bool = True,
    memory: Callable[..., Peaks] | None = peaks_in_child,
    memory_rounds: int | None = None,
) -> tuple[list[Row], dict[str, str]]:
    """Rows of one case, and the peers that are absent with the reason. One that fails is absent from its rows alone.

    memory: what takes the peaks, `peaks_in_child` by default; None leaves memory out. memory_rounds: None: a third of
    `rounds`, and at most 3. Raises RuntimeError where our own arm fails.
    """
    torch.set_num_threads(threads)
    on_gpu = device.startswith("cuda")
    clock: ClockName = "cpu" if threads == 1 and not on_gpu else "wall"
    peaks: Peaks = {}
    fewer = memory_rounds or max(1, min(3, rounds // 3))
    trouble: dict[str, str] = {}
    if memory is not None and family.peaks:
        try:
            peaks = memory(family.name, case.name, rounds=fewer, threads=threads, device=device)
        except RuntimeError as error:
            trouble[f"peak memory ({case.name})"] = f"failed: {error}"
    arms, absent = family.build(case, device)
    absent |= trouble
    rows: list[Row] = []
    for mode in dict.fromkeys(mode for arm in arms.values() for mode in arm.calls):
        calls = {name: arm.ready(mode) for name, arm in arms.items() if mode in arm.calls}
        if control and OURS in calls:
            calls[CONTROL] = calls[OURS]
        wait = torch.cuda.synchronize if on_gpu else lambda: None
        flops = _flops(arms, mode)
        timings = alternate(
            calls | ({GEMM: _gemm(device)} if flops else {}),
            rounds,
            patience=family.patience,
            once=[name for name, arm in arms.items() if mode in arm.once],
            wait=wait,
        )
        if OURS in timings.failed:
            raise RuntimeError(f"{family.name} {case.name} {mode}: {timings.failed[OURS]}")
        absent |= {f"{name} ({case.name}, {mode})": f"failed: {why}" for name, why in timings.failed.items()}
        for name in (name for name in calls if name in timings.clocks):
            facts = arms[name].facts if name in arms else {}
            rows.append(_row(family, case, mode, name, timings, flops, clock, peaks.get(mode, {}), facts))
    return rows, absent


def _row(
    family: Family[Any],
    case: Case,
    mode: str,
    arm: str,
    timings: Timings,
    flops: int | None,
    clock: ClockName,
    peaks: dict[str, Spread],
    facts: dict[str, float],
) -> Row:
    share = timings.share(arm, flops, GEMM, GEMM_FLOPS, clock) if flops else None
    peak, ours = peaks.get(arm), peaks.get(OURS)
    compared = arm != OURS and OURS in timings.clocks
    cpu_ratio = timings.ratio(OURS, arm, "cpu") if compared else None
    wall_ratio = timings.ratio(OURS, arm, "wall") if compared else None
    memory_ratio = ours.median / peak.median if compared and ours and peak and peak.median else None
    time_ratio = cpu_ratio if clock == "cpu" else wall_ratio
    figures = {
        "time": time_ratio.median if time_ratio is not None and arm != CONTROL else None,
        "memory": memory_ratio,
        "share": share.median if share is not None and arm == OURS else None,
        **facts,
    }
    targets = [
        (target, value, target.met(value))
        for figure, value in figures.items()
        for target in family.targets
        if value is not None and not case.smoke and target.applies(figure, arm, mode, case.name)
    ]
    return Row(
        case.name,
        mode,
        arm,
        timings.seconds(arm, "cpu"),
        timings.seconds(arm, "wall"),
        share,
        peak,
        cpu_ratio,
        wall_ratio,
        memory_ratio,
        clock,
        facts,
        targets,
    )


def _flops(arms: dict[str, Arm], mode: str) -> int | None:
    """FLOPs of the task, counted once, on our arm where it counts: all arms do the same work."""
    for name in sorted(arms, key=lambda name: name != OURS):
        count = arms[name].flops
        if count is not None and mode in arms[name].calls:
            return count(mode)
    return None


def _gemm(device: str) -> Call:
    """A 1024 x 1024 x 1024 product into memory that is there already: the rate that the shares are taken of."""
    a, b = (torch.randn(GEMM_SIDE, GEMM_SIDE, device=device) for _ in range(2))
    out = torch.empty(GEMM_SIDE, GEMM_SIDE, device=device)
    return lambda: torch.mm(a, b, out=out)
