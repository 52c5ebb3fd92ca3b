"""Counts of whole families: against torch's counter, real states and what a real pass keeps."""

from __future__ import annotations

import re
import weakref
from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import zoo
from tests.parts import mixer_cases
from zoo.blocks.api import Capability
from zoo.inspection.activations import activation_bytes
from zoo.inspection.count import shadow
from zoo.inspection.examples import example
from zoo.registry import ConfigError

SIZES = {"dim": 16, "depth": 2, "heads": 2}
TEXT = {**SIZES, "vocab_size": 24, "max_len": 64}
FAMILIES: dict[str, dict[str, Any]] = {
    "gpt": TEXT,
    "bert": TEXT,
    "electra": {**TEXT, "embedding_dim": 8},
    "t5": TEXT,
    "transformer": TEXT,
    "rnn": {"dim": 16, "depth": 1, "vocab_size": 24},
    "whisper": {**TEXT, "max_frames": 40},
    "vit": {**SIZES, "image_size": 8, "patch_size": 4, "num_classes": 5},
    "dit": {**SIZES, "image_size": 8, "num_classes": 3},
    "mmdit": {**SIZES, "image_size": 8, "text_dim": 12, "pooled_dim": 6},
    "decision": {**SIZES, "context": 5},
}
LENGTH = dict.fromkeys(("gpt", "bert", "electra", "t5", "transformer", "rnn", "whisper", "decision"), 12)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_of_attention_is_counted_as_by_torch(family: str) -> None:
    config = {"family": family, **FAMILIES[family]}
    found = zoo.count(config, batch=3, length=LENGTH.get(family))
    model = shadow(config).eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(*example(model.config, 3, LENGTH.get(family), None).args)
    assert found.flops_forward == counter.get_total_flops() > 0
    assert found.flops_training == 3 * found.flops_forward
    assert found.params == sum(parameter.numel() for parameter in model.parameters())
    assert found.activation_bytes is not None and found.activation_bytes > 0
    assert (found.flops_step is None) == (found.state_bytes is None) == (not hasattr(model, "init_state"))


def test_inputs_by_hand_and_by_length_agree() -> None:
    model = zoo.create_model("gpt", **TEXT)
    by_hand, by_length = zoo.count(model, torch.zeros(2, 9, dtype=torch.long)), zoo.count(model, batch=2, length=9)
    for name in ("params", "params_active", "flops_forward", "flops_visible"):
        assert getattr(by_hand, name) == getattr(by_length, name)
    assert by_hand.flops_step is None and by_length.flops_step is not None
    assert by_length.flops_forward - by_length.flops_visible == 2 * 2 * 2 * 2 * 16 * (9 * 9 - 9 * 10 // 2)
    assert model.training and next(model.parameters()).device.type == "cpu"


@pytest.mark.parametrize("name", zoo.list_mixers())
def test_the_steps_of_a_row_add_up_to_its_visible_work(name: str) -> None:
    """A token at a time, or all in one pass. Latent attention decodes by other products than it trains by."""
    config = {"family": "gpt", **TEXT, "mixer": name}
    steps = [zoo.count(config, length=end).flops_step or 0 for end in (1, 2, 3)]
    whole = zoo.count(config, length=3).flops_visible
    if name == "mla":
        assert sum(steps) > whole and steps[2] - steps[1] == steps[1] - steps[0] > 0
    else:
        assert sum(steps) == whole


KEPT = [
    case
    for case in mixer_cases(Capability.CAUSAL | Capability.STEP)
    if not case.values[0].choices or {"window", "chunk", "kv_heads"} & set(case.values[0].choices)
]


@pytest.mark.parametrize("case", KEPT)
def test_state_bytes_are_those_of_a_real_state(case: Any) -> None:
    config = {"family": "gpt", **TEXT, "depth": 4, "heads": 4, "mixer": {"name": case.name, **case.choices}}
    length = 40  # longer than every window
    found = zoo.count(config, batch=2, length=length)
    model: Any = zoo.create_model(config).eval()
    assert found.state_bytes == model.init_state(2, length).nbytes()


def test_a_window_keeps_no_more_than_there_are_tokens() -> None:
    config = {"family": "gpt", **TEXT, "mixer": {"window": 8, "sinks": 2}}
    held = {length: zoo.count(config, length=length).state_bytes for length in (5, 10, 30)}
    assert held == {5: 2 * 2 * 5 * 16 * 4, 10: 2 * 2 * 10 * 16 * 4, 30: 2 * 2 * 10 * 16 * 4}


class Live(TorchDispatchMode):
    """Every storage that an operator makes, by weak reference."""

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for value in out if isinstance(out, tuple | list) else [out]:
            if isinstance(value, torch.Tensor):
                storage = value.untyped_storage()
                self.made[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        return out

    def nbytes(self, without: set[int]) -> int:
        return sum(n for key, (ref, n) in self.made.items() if key not in without and not ref.expired())


@pytest.mark.parametrize("family", ["gpt", "vit", "t5", "dit"])
def test_activations_are_what_lives_on_after_a_real_pass(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are long enough for the fused kernel, which training takes on a CPU from 33 tokens on."""
    monkeypatch.setenv("ZOO_KERNELS", "torch")
    larger = {"vit": {"image_size": 28}, "dit": {"image_size": 14}}.get(family, {})
    config = {"family": family, **FAMILIES[family], **larger}
    length = 48 if family in LENGTH else None
    torch.manual_seed(0)
    model = zoo.create_model(config).train()
    shapes = example(model.config, 2, length, None)
    inputs = [torch.zeros(value.shape, dtype=value.dtype) for value in shapes.args]
    known = {value.untyped_storage()._cdata for value in [*model.parameters(), *model.buffers(), *inputs]}
    with Live() as live:
        loss = model(*inputs).sum()
        held = live.nbytes(known)
    counted = activation_bytes(shadow(model), *shapes.args)
    assert loss.requires_grad and counted == pytest.approx(held, rel=0.03)


def test_activations_grow_with_rows_and_vanish_under_checkpointing() -> None:
    config = {"family": "gpt", **TEXT}
    one, two = (zoo.count(config, batch=batch, length=20).activation_bytes for batch in (1, 2))
    assert one is not None and two is not None and 1.9 * one < two <= 2 * one
    assert zoo.count({**config, "checkpointing": True}, length=20).activation_bytes is None


@pytest.mark.parametrize("name", zoo.list_ffns())
def test_every_feed_forward_is_counted(name: str) -> None:
    """2 FLOPs for each weight that a token passes through, in the stack and the head."""
    config = {"family": "gpt", **TEXT, "layout": "sequential", "ffn": name, "position": "none", "norm": "none"}
    config |= {"mixer": {"bias": False, "out_bias": False}, "vocab_size": 40}
    found, model = zoo.count(config, length=10), shadow(config)
    biases = sum(p.numel() for n, p in model.named_parameters() if n.endswith("bias"))
    scores = 2 * 4 * 10 * 10 * 16
    assert found.flops_forward - scores == 2 * 10 * (found.params_active - biases)


def test_what_cannot_be_counted_is_refused_in_one_line() -> None:
    wrong: list[tuple[Any, dict[str, Any], str]] = [
        ("gpt", {"length": 0}, "length: should be a whole number of at least 1, got 0"),
        (
            "vit",
            {"length": 5},
            "length: a row is an image of 224 x 224, 197 tokens: choose image_size, patch_size; leave",
        ),
        ("gpt", {"memory_length": 5}, "memory_length: this family reads no second sequence; leave it out"),
        ("gpt2", {"length": 2000}, "1024"),
        (
            torch.nn.Linear(2, 2),
            {"length": 5},
            "no inputs are known for a model without a registered config; give them",
        ),
    ]
    for model, options, told in wrong:
        with pytest.raises(ConfigError, match=re.escape(told)):
            zoo.count(model, **options)


def test_counting_keeps_nothing_alive() -> None:
    model = zoo.create_model("gpt", **TEXT)
    gone = weakref.ref(model)
    zoo.count(model, length=4)
    del model
    assert gone() is None
