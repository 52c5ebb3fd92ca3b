"""What a GPU has to say, in one prepared run of at most four minutes.

    python -m benchmarks.gpu_check [device=cuda] [seconds=220] [out=benchmarks/results/gpu.json]

First the equality of paths: every operator of sequence mixers by the path that `zoo.ops` takes on this device, beside
its form in plain PyTorch in fp64, outputs and gradients. Then tokens a second and peak memory of forward and backward
for lengths of 1,024 to 65,536, shortest first, beside fused attention, until the time is over. The file is written
after every step, so an interrupted run leaves what it found. On a CPU (device=cpu) the lengths are tiny: a dry run.

Exit code 0: all paths agree. 1: some do not. 2: wrong words.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.files import header, results, write_json
from benchmarks.speed.families.mixers import OPERATORS, MixerCase, inputs_of, operator_of
from benchmarks.words import WordsError, asks_help, choice, integer, split
from zoo.ops.kernels import chosen

__all__ = ["equality", "main", "throughput"]

KEYS = ("device", "seconds", "out")
LENGTHS = (1024, 4096, 16384, 65536)
DRY_LENGTHS = (16, 32)
BOUNDS = {torch.float32: 1e-3, torch.bfloat16: 5e-2}
"""Largest error over the largest value: TF32 products and bfloat16's eight bits, over some hundred tokens."""


def equality(device: str, length: int) -> list[dict[str, Any]]:
    """A row for every operator and dtype: the path taken, and its largest relative error against PyTorch in fp64."""
    found = []
    for operator in OPERATORS:
        for dtype, bound in BOUNDS.items():
            torch.manual_seed(0)
            given = _inputs(MixerCase(name="", operator=operator, length=length), device)
            taken = _taken(operator, device, dtype)
            row: dict[str, Any] = {"operator": operator, "dtype": str(dtype).removeprefix("torch."), "path": taken}
            try:
                mine = _run(operator_of(operator), {k: _cast(v, dtype) for k, v in given.items()})
                exact = {name: _cast(_cast(value, dtype), torch.float64) for name, value in given.items()}
                with _plain():
                    right = _run(operator_of(operator), exact)
                row["error"] = max(_error(a, b) for a, b in zip(mine, right, strict=True))
                row["equal"] = row["error"] <= bound
            except Exception as error:  # a kernel that fails is a finding, and the others are still to be asked
                row["equal"], row["failure"] = False, f"{type(error).__name__}: {error}".splitlines()[0][:300]
            found.append(row)
    return found


def throughput(device: str, lengths: Sequence[int], until: float) -> Iterator[dict[str, Any]]:
    """A row for every length and operator while the clock is before `until`: tokens a second, and peak bytes."""
    dtype = torch.bfloat16 if device != "cpu" else torch.float32
    for length in lengths:
        for operator in ("attention", *OPERATORS):
            if time.monotonic() > until:
                return
            torch.manual_seed(0)
            row: dict[str, Any] = {"operator": operator, "length": length, "dtype": str(dtype).removeprefix("torch.")}
            try:
                call, given = _arm(operator, length, device, dtype)
                seconds, peak = _timed(lambda call=call, given=given: _run(call, given), device)
                batch = next(iter(given.values())).shape[0]
                row |= {"tokens_per_second": batch * length / seconds, "peak_bytes": peak}
            except torch.OutOfMemoryError:
                row["failure"] = "out of memory"
            except Exception as error:
                row["failure"] = f"{type(error).__name__}: {error}".splitlines()[0][:300]
            yield row


def _arm(
    operator: str, length: int, device: str, dtype: torch.dtype
) -> tuple[Callable[..., Tensor], dict[str, Tensor]]:
    case = MixerCase(name="", operator=operator, length=length)
    if operator != "attention":
        return operator_of(operator), {k: _cast(v, dtype) for k, v in _inputs(case, device).items()}
    shape = (case.batch, case.heads, length, case.width)
    rows = {name: torch.randn(shape, device=device, dtype=dtype) for name in ("query", "key", "value")}
    return lambda **given: F.scaled_dot_product_attention(**given, is_causal=True), rows


def _inputs(case: MixerCase, device: str) -> dict[str, Tensor]:
    return {name: value.to(device) for name, value in inputs_of(case).items()}


def _cast(value: Tensor, dtype: torch.dtype) -> Tensor:
    return value.detach().to(dtype)


def _taken(operator: str, device: str, dtype: torch.dtype) -> str:
    return chosen("selective_scan" if operator == "mamba" else "recurrence", torch.device(device), dtype)


def _run(call: Callable[..., Tensor], given: dict[str, Tensor]) -> list[Tensor]:
    """The output and the gradients of all inputs."""
    leaves = {name: value.detach().requires_grad_() for name, value in given.items()}
    out = call(**leaves)
    weights = torch.linspace(-1.0, 1.0, out.shape[-1], device=out.device, dtype=out.dtype)
    (out * weights).sum().backward()
    return [out.detach(), *(leaf.grad for leaf in leaves.values() if leaf.grad is not None)]


def _error(mine: Tensor, right: Tensor) -> float:
    return ((mine.double() - right.double()).abs().max() / right.double().abs().max().clamp(min=1e-12)).item()


@contextmanager
def _plain() -> Iterator[None]:
    """Every operator in plain PyTorch."""
    before = os.environ.get("ZOO_KERNELS")
    os.environ["ZOO_KERNELS"] = "torch"
    try:
        yield
    finally:
        del os.environ["ZOO_KERNELS"]
        if before is not None:
            os.environ["ZOO_KERNELS"] = before


def _timed(call: Callable[[], object], device: str, repeats: int = 3) -> tuple[float, int | None]:
    """The best of a few readings in seconds, after one that may compile, and peak bytes on a GPU."""
    wait = torch.cuda.synchronize if device != "cpu" else lambda: None
    call()
    wait()
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
    readings = []
    for _ in range(repeats):
        begun = time.perf_counter()
        call()
        wait()
        readings.append(time.perf_counter() - begun)
    return min(readings), torch.cuda.max_memory_allocated() if device != "cpu" else None


def main(words: Sequence[str] | None = None) -> int:
    """See the module's docstring."""
    begun = time.monotonic()
    words = list(sys.argv[1:] if words is None else words)
    if asks_help(words):
        print(__doc__)
        return 0
    try:
        values = split(words, KEYS)
        device = choice(values, "device", "cuda", ("cuda", "cpu"))
        seconds = integer(values, "seconds", 220, 1, 3600)
        if device == "cuda" and not torch.cuda.is_available():
            raise WordsError("device: there is no CUDA device here; device=cpu is a dry run")
    except WordsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    dry = device == "cpu"
    path = Path(values["out"]) if "out" in values else results() / ("gpu_dry_run.json" if dry else "gpu.json")
    found = header(" ".join(["python -m benchmarks.gpu_check", *words]), torch.get_num_threads(), device)
    found |= {"equality": equality(device, 20 if dry else 200), "throughput": []}
    for row in found["equality"]:
        told = row.get("failure") or f"error {row['error']:.1e}"
        print(
            f"{row['operator']:12} {row['dtype']:9} {row['path']:10} {'equal' if row['equal'] else 'NOT EQUAL'}  {told}"
        )
    write_json(path, found)
    for row in throughput(device, DRY_LENGTHS if dry else LENGTHS, begun + seconds):
        found["throughput"].append(row)
        write_json(path, found)
        told = row.get("failure") or f"{row['tokens_per_second']:,.0f} tokens/s, peak {row['peak_bytes'] or 0:,} bytes"
        print(f"{row['operator']:12} {row['length']:6} {told}")
    print(f"written: {path}")
    return 0 if all(row["equal"] for row in found["equality"]) else 1


if __name__ == "__main__":
    raise SystemExit(main())
