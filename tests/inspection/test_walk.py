"""The walk: the textbook's 17 steps, and for every family and mixer the parameters and FLOPs of the whole model."""

from __future__ import annotations

from typing import Any

import pytest

import zoo
from zoo.inspection.walk import walk
from zoo.registry import ConfigError

GPT = {"family": "gpt", "dim": 16, "depth": 2, "heads": 2, "vocab_size": 24, "max_len": 16}
TINY: dict[str, dict[str, Any]] = {
    "gpt": GPT,
    "gpt parallel": {**GPT, "layout": "parallel", "position": "rope", "norm": "rmsnorm", "ffn": "swiglu"},
    "gpt macaron": {**GPT, "layout": "macaron", "tie_embeddings": False},
    "gpt sandwich": {**GPT, "residual": "sandwich", "mixer": {"qk_norm": "rmsnorm", "gate": "head"}},
    "gpt layerscale": {**GPT, "residual": "layerscale", "mixer": {"window": 4, "sinks": 1, "sink_logit": True}},
    "gpt experts": {**GPT, "ffn": {"name": "moe", "experts": 4, "top_k": 2}},
    "bert": {"family": "bert", "dim": 16, "depth": 2, "heads": 2, "vocab_size": 24, "max_len": 16},
    "bert classes": {"family": "bert", "dim": 16, "depth": 1, "heads": 2, "vocab_size": 24, "num_classes": 3},
    "vit": {"family": "vit", "dim": 16, "depth": 2, "heads": 2, "image_size": 8, "patch_size": 4, "num_classes": 5},
    "t5": {"family": "t5", "dim": 16, "depth": 2, "heads": 2, "vocab_size": 24, "max_len": 16},
    "transformer": {"family": "transformer", "dim": 16, "depth": 2, "heads": 2, "vocab_size": 24, "max_len": 16},
    "whisper": {"family": "whisper", "dim": 16, "depth": 2, "heads": 2, "vocab_size": 24, "max_frames": 40},
    "dit": {"family": "dit", "dim": 16, "depth": 2, "heads": 2, "image_size": 8, "num_classes": 3},
    "decision": {"family": "decision", "dim": 16, "depth": 2, "context": 4},
}  # fmt: skip
TINY |= {f"gpt {mixer}": {**GPT, "mixer": mixer} for mixer in ("mla", "mamba2", "gated_delta", "rwkv7", "lstm", "conv")}
TINY["gpt hybrid"] = {**GPT, "depth": 5, "mixer": "hybrid_3to1"}


@pytest.mark.parametrize("name", TINY)
def test_the_steps_add_up_to_the_model(name: str) -> None:
    length = None if name.split()[0] in ("vit", "dit", "decision", "whisper") else 9
    found, counted = walk(TINY[name], length), zoo.count(TINY[name], length=length)
    assert found.flops == counted.flops_forward
    assert found.params == counted.params
    left = [step.params for step in found.steps if "leaves aside" in step.operation]
    assert len(left) == (name.startswith("bert")), "the pooler, or the head over the vocabulary"


def test_llama_3_8b_takes_the_17_steps_of_the_textbook() -> None:
    """Kinds as in the article: 5, 7, 9, 10, 12, 15 are products, 2 a gather, 9 and 16 softmax, the rest elementwise."""
    steps = walk({"family": "llama3_8b", "vocab_size": 128_000}, 1000).steps
    assert len(steps) == 17
    kinds = {number: step.kind for number, step in enumerate(steps, 1)}
    assert [number for number, kind in kinds.items() if "matmul" in kind] == [5, 7, 9, 10, 12, 15]
    assert [number for number, kind in kinds.items() if "gather" in kind] == [2]
    assert [number for number, kind in kinds.items() if "softmax" in kind] == [9, 16]
    assert {6, 8, 11, 13} <= {number for number, kind in kinds.items() if "elementwise" in kind}
    assert kinds[1] == kinds[17] == "none" and "none here" in steps[2].operation  # rotation takes the place of step 3
    made = {number: step.made for number, step in enumerate(steps, 1)}
    assert made[1] == "1000 ids" and made[17] == "1 id"
    assert made[5] == "32x1000x128, 8x1000x128, 8x1000x128"
    assert made[7] == made[8] == "32x1000x1000" and made[9] == "32x1000x128" and made[15] == "1000x128000"
    assert {made[number] for number in (2, 3, 4, 10, 11, 12, 13, 14)} == {"1000x4096"}
    gigaflops = {5: 50.3, 7: 8.19, 9: 8.19, 10: 33.6, 12: 352.3, 15: 1048.6}
    for number, expected in gigaflops.items():
        assert steps[number - 1].flops / 1e9 == pytest.approx(expected, abs=0.06)
    assert sum(step.flops for step in steps if step.layers) / 1e9 == pytest.approx(452.6, abs=0.05)
    assert "14,336" in steps[11].operation and steps[6].times == 32 and steps[14].times == 1


def test_gpt_2_adds_positions_where_llama_rotates() -> None:
    steps = walk("gpt2", 1000).steps
    assert len(steps) == 17 and steps[2].kind == "elementwise" and steps[2].params == 1024 * 768
    assert steps[5].kind == "none" and steps[14].params == 0  # the head is the table of step 2


def test_layers_that_differ_stand_each_once() -> None:
    steps = walk(TINY["gpt hybrid"], 9).steps
    assert {step.layers for step in steps} == {(), (0, 4), (1, 2, 3)}
    scans = [step for step in steps if step.kind == "scan"]
    assert [step.operation for step in scans] == ["recurrence of gated_delta"] and scans[0].times == 3


def test_a_family_without_stacks_is_refused() -> None:
    for name in ("rnn", "mmdit"):
        with pytest.raises(ConfigError, match=f"'{name}' is not made of a stack of blocks"):
            walk(name)
    with pytest.raises(ConfigError, match="'electra' is made of whole models"):
        walk("electra")
