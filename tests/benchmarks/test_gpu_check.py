"""The prepared GPU run, as a dry run on the CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import gpu_check
from benchmarks.speed.families.mixers import OPERATORS


def test_a_dry_run_compares_every_operator_and_writes_what_it_found(tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    assert gpu_check.main(["device=cpu", "seconds=60", f"out={out}"]) == 0
    found = json.loads(out.read_text())
    assert {row["operator"] for row in found["equality"]} == set(OPERATORS)
    assert all(row["equal"] and row["error"] <= 5e-2 for row in found["equality"])
    asked = {(row["operator"], row["length"]) for row in found["throughput"]}
    assert asked == {(name, n) for name in ("attention", *OPERATORS) for n in gpu_check.DRY_LENGTHS}
    assert all(row["tokens_per_second"] > 0 for row in found["throughput"])


def test_a_wrong_path_is_told_by_the_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(name: str):
        import os

        off = 0.0 if os.environ.get("ZOO_KERNELS") == "torch" else 1.0
        return lambda **given: sum(value.sum() for value in given.values()).reshape(1, 1) + off

    monkeypatch.setattr(gpu_check, "operator_of", wrong)
    monkeypatch.setattr(gpu_check, "throughput", lambda *rest: iter(()))
    assert gpu_check.main(["device=cpu", f"out={tmp_path / 'gpu.json'}"]) == 1


def test_wrong_words_end_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_check.main(["device=tpu"]) == 2
    assert "cuda or cpu" in capsys.readouterr().err
    if not torch.cuda.is_available():
        assert gpu_check.main([]) == 2
        assert "device=cpu" in capsys.readouterr().err
