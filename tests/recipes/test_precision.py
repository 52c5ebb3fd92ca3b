"""Every precision of Lightning's Trainer trains, validates, exports and is evaluated."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from recipes.launch import launch
from recipes.metrics_file import read_rows
from recipes.recipe import fed, wide
from recipes.vit import Vit
from tests.recipes.tiny import run_settings

TRAINER = {"max_steps": 2, "log_every_n_steps": 1, "val_check_interval": 2, "accelerator": "cpu"}


@pytest.mark.parametrize(
    ("precision", "optim", "dtype"),
    [
        ("bf16-mixed", {"name": "adamw", "fused": None}, torch.float32),
        ("bf16-mixed", {"name": "sgd", "fused": True}, torch.float32),
        ("64-true", {"name": "adamw"}, torch.float64),
        ("bf16-true", {"name": "adamw"}, torch.bfloat16),
    ],
)
def test_a_run_of_any_precision_trains_and_is_evaluated_once_more(
    precision: str, optim: Any, dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Vit, "baselines", lambda self, data: {})
    out = tmp_path / "run"
    result = launch(run_settings(trainer={**TRAINER, "precision": precision}, optim=optim), out)
    assert (result["status"], result["steps"]) == ("ok", 2)
    assert result["flops_per_token"] > 0
    assert {value.dtype for value in load_file(out / "model" / "model.safetensors").values()} == {dtype}
    losses = [row.get("train/loss", row.get("val/loss")) for row in read_rows(out / "metrics.csv")]
    assert len(losses) == 3
    assert all(loss is not None and math.isfinite(loss) for loss in losses)
    again = launch({"mode": "eval", "checkpoint": str(out)}, tmp_path / "again")
    assert again["metrics"]["test/loss"] == pytest.approx(result["metrics"]["test/loss"], rel=0.02)
    assert json.loads((tmp_path / "again" / "eval.json").read_text())["status"] == "ok"


def test_a_model_is_fed_in_its_own_dtype_and_whole_numbers_stay() -> None:
    model = torch.nn.Linear(1, 1, dtype=torch.float64)
    assert fed(model, torch.ones(1)).dtype == torch.float64
    assert fed(model, torch.ones(1, dtype=torch.int64)).dtype == torch.int64
    assert fed(torch.square, torch.ones(1)).dtype == torch.float32
    assert wide(torch.ones(1, dtype=torch.bfloat16)).dtype == torch.float32
    assert wide(torch.ones(1, dtype=torch.float64)).dtype == torch.float64
