"""Peak memory of a call: by how much it grows beyond what was resident before the call.

CPU: Linux keeps the high-water mark of the resident set (VmHWM) and resets it on request (/proc/self/clear_refs);
before a reading the C allocator hands its free pages back (malloc_trim). That alone scatters by 5 to 15 percent from
reading to reading, because glibc cuts large tensors out of whatever holes its heap has. So the readings are taken in a
child process whose glibc puts every block above 64 KiB into pages of its own (MALLOC_MMAP_THRESHOLD_): then the
resident set is what is alive, and readings repeat to about 0.1 MiB, also on a loaded machine. It is one child a family,
with the arms of a case alternating in it; the timing process keeps glibc's defaults.

CUDA: `torch.cuda.max_memory_allocated` beyond what was allocated before.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Self

import torch

from benchmarks.speed.arms import Arm
from benchmarks.speed.measure import Call, Spread, in_turn, settled_heap

__all__ = ["PeakReader", "Peaks", "alternate_peaks", "peak", "peaks_in_child"]

Peaks = dict[str, dict[str, Spread]]
"""Bytes by mode and arm."""

THRESHOLD = 65536
ANSWER = "peaks "
"""Begins the lines that answer: a library may print others."""


def peak(call: Call, device: str = "cpu") -> int:
    """Bytes by which memory grows at most while `call` runs. Raises OSError on a CPU without Linux's /proc."""
    gc.collect()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    _trim()
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    call()
    return max(0, _status("VmHWM") - before)


def alternate_peaks(arms: Mapping[str, Arm], rounds: int, device: str = "cpu") -> Peaks:
    """Peak bytes of every mode and arm over the rounds, without arms that fail.

    The first call of each is a warm-up; those that are to be called once are read in it.
    """
    found: Peaks = {}
    for mode in dict.fromkeys(mode for arm in arms.values() for mode in arm.calls):
        calls = {name: arm.ready(mode) for name, arm in arms.items() if mode in arm.calls}
        readings: dict[str, list[float]] = {}
        with settled_heap():
            for name, call in list(calls.items()):
                try:
                    first = float(peak(call, device))
                except OSError:
                    raise
                except Exception:  # the timing, which calls it too, tells why
                    del calls[name]
                    continue
                readings[name] = [first] if mode in arms[name].once else []
            again = [name for name in calls if not readings[name]]
            for turn in range(rounds):
                for name in in_turn(again, turn):
                    readings[name].append(float(peak(calls[name], device)))
        found[mode] = {name: Spread.of(values) for name, values in readings.items()}
    return found


class PeakReader:
    """`alternate_peaks` for cases of one family, all in one child process (see the module docstring).

    The child is started by the first call and again after one that it did not survive. It waits while no case is asked
    for, so that timings in between are not disturbed.
    """

    def __init__(self) -> None:
        self._child: subprocess.Popen[str] | None = None
        self._errors: IO[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def __call__(self, family: str, case: str, *, rounds: int, threads: int, device: str) -> Peaks:
        """Raises RuntimeError with the child's last line when it fails."""
        if self._child is None:
            self._start(family, threads, device)
        child = self._child
        assert child is not None and child.stdin is not None and child.stdout is not None
        with suppress(BrokenPipeError):
            print(case, rounds, file=child.stdin, flush=True)
        for line in child.stdout:
            if line.startswith(ANSWER):
                answer = json.loads(line.removeprefix(ANSWER))
                return {mode: {arm: Spread(**spread) for arm, spread in arms.items()} for mode, arms in answer.items()}
        code, last = self._end()
        raise RuntimeError(f"memory of {family} {case}: the child ended with code {code}: {last}")

    def _start(self, family: str, threads: int, device: str) -> None:
        home = str(Path(__file__).resolve().parents[2])
        environment = dict(os.environ, MALLOC_MMAP_THRESHOLD_=str(THRESHOLD), MALLOC_TRIM_THRESHOLD_=str(THRESHOLD))
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 closed in _end
        self._child = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.speed.memory", family, str(threads), device],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def _end(self) -> tuple[int, str]:
        """The child's exit code, and the last line of its errors."""
        child, errors = self._child, self._errors
        self._child = self._errors = None
        if child is None or errors is None:
            return 0, "no output"
        with suppress(BrokenPipeError):
            child.communicate()  # closes its input, which ends it
        errors.seek(0)
        lines = errors.read().strip().splitlines()
        errors.close()
        return child.returncode, lines[-1] if lines else "no output"


def peaks_in_child(family: str, case: str, *, rounds: int, threads: int, device: str) -> Peaks:
    """One case by a `PeakReader` of its own."""
    with PeakReader() as read:
        return read(family, case, rounds=rounds, threads=threads, device=device)


def main(family_name: str, threads: str, device: str) -> None:
    """The child: for every line with a case and a number of rounds, the peaks as one line of JSON."""
    from benchmarks.speed.families import load

    torch.set_num_threads(int(threads))
    cases = {case.name: (part, case) for part, case in load(family_name).everything()}
    for line in sys.stdin:
        name, rounds = line.split()
        part, case = cases[name]
        arms, _ = part.build(case, device)
        peaks = alternate_peaks(arms, int(rounds), device)
        plain = {mode: {arm: spread.plain() for arm, spread in found.items()} for mode, found in peaks.items()}
        print(ANSWER + json.dumps(plain), flush=True)


def _trim() -> None:
    """Give free heap pages back to the system; a C library without malloc_trim (musl) does so by itself."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field}: peak memory cannot be read on this system")


if __name__ == "__main__":
    main(*sys.argv[1:])
