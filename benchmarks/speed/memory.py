"""Peak memory of a call: by how much it grows beyond what was resident before the call.

CPU: Linux keeps the high-water mark of the resident set (VmHWM) and resets it on request (/proc/self/clear_refs);
before a reading the C allocator hands its free pages back (malloc_trim). That alone scatters by 5 to 15 percent from
reading to reading, because glibc cuts large tensors out of whatever holes its heap has. So the readings are taken in a
child process whose glibc puts every block above 64 KiB into pages of its own (MALLOC_MMAP_THRESHOLD_): then the
resident set is what is alive, and readings repeat to about 0.1 MiB, also on a loaded machine. It is one child a case,
with the arms alternating in it; the timing process keeps glibc's defaults.

CUDA: `torch.cuda.max_memory_allocated` beyond what was allocated before.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import torch

from benchmarks.speed.arms import Arm
from benchmarks.speed.measure import Call, Spread, in_turn, settled_heap

__all__ = ["Peaks", "alternate_peaks", "peak", "peaks_in_child"]

Peaks = dict[str, dict[str, Spread]]
"""Bytes by mode and arm."""

THRESHOLD = 65536


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
    """Peak bytes of every mode and arm over the rounds. The first call of each is a warm-up."""
    found: Peaks = {}
    for mode in dict.fromkeys(mode for arm in arms.values() for mode in arm.calls):
        calls = {name: arm.ready(mode) for name, arm in arms.items() if mode in arm.calls}
        readings: dict[str, list[float]] = {name: [] for name in calls}
        with settled_heap():
            for call in calls.values():
                call()
            for turn in range(rounds):
                for name in in_turn(calls, turn):
                    readings[name].append(float(peak(calls[name], device)))
        found[mode] = {name: Spread.of(values) for name, values in readings.items()}
    return found


def peaks_in_child(family: str, case: str, *, rounds: int, threads: int, device: str) -> Peaks:
    """`alternate_peaks` for a case of a family, in a child process (see the module docstring).

    Raises RuntimeError with the child's last line when it fails.
    """
    home = str(Path(__file__).resolve().parents[2])
    environment = dict(os.environ, MALLOC_MMAP_THRESHOLD_=str(THRESHOLD), MALLOC_TRIM_THRESHOLD_=str(THRESHOLD))
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", "benchmarks.speed.memory", family, case, str(rounds), str(threads), device]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    if done.returncode or not lines:
        last = lines[-1] if lines else "no output"
        raise RuntimeError(f"memory of {family} {case}: the child ended with code {done.returncode}: {last}")
    return {
        mode: {name: Spread(**spread) for name, spread in arms.items()} for mode, arms in json.loads(lines[-1]).items()
    }


def main(family_name: str, case_name: str, rounds: str, threads: str, device: str) -> None:
    """The child: prints the peaks as one line of JSON."""
    from benchmarks.speed.families import load

    torch.set_num_threads(int(threads))
    family = load(family_name)
    (case,) = (case for case in family.cases if case.name == case_name)
    arms, _ = family.build(case, device)
    peaks = alternate_peaks(arms, int(rounds), device)
    print(json.dumps({mode: {name: spread.plain() for name, spread in found.items()} for mode, found in peaks.items()}))


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
