"""The short cut of decoding: one new token through `step` is what `forward` makes of it, outputs and states alike."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.blocks.test_stack import DIM, fp64, rows, stack
from zoo.blocks import Context, Stack
from zoo.blocks.stack import LAYOUTS
from zoo.blocks.state import StackState

SHORT = 9
NORM = {"name": "rmsnorm"}
CHOICES: list[dict[str, Any]] = [
    {"position": "rope"},
    {"position": "rope", "mixer": {"kv_heads": 1}},
    {"position": "rope", "mixer": {"kv_heads": 1, "qk_norm": NORM}, "norm": NORM, "ffn": "swiglu"},
    {"position": {"name": "rope", "fraction": 0.5, "layout": "interleaved"}, "mixer": {"bias": False}},
    {"position": {"name": "rope", "scaling": {"name": "dynamic_ntk", "factor": 2.0, "original_max_len": 4}}},
    {"position": "learned", "mixer": {"window": 3, "sinks": 1}},
    {"position": "rope", "mixer": {"window": 3}},
    {"position": "sinusoidal", "mixer": {"value_dim": 4}, "input_norm": True},
    {"position": "none", "mixer": {"head_dim": 4, "value_dim": 12, "scale": 0.3, "qk_norm": NORM}},
    *({"position": "rope", "layout": layout} for layout in LAYOUTS),
    *({"residual": name} for name in ("post", "res_post", "sandwich", "deepnorm", "layerscale")),
    {"position": "rope", "dropout": 0.5},
]


def states(state: StackState) -> list[torch.Tensor]:
    held = [kept for layer in state.layers for kept in layer.values() if kept is not None]
    return [tensor for kept in held for tensor in (kept.keys, kept.values)]


def walked(model: Stack, x: torch.Tensor, memory: torch.Tensor | None = None) -> None:
    """Prefill, then a token at a time both ways."""
    ours, theirs = (model.init_state(x.shape[0], 4, dtype=torch.float64) for _ in range(2))
    with torch.inference_mode():
        for state in (ours, theirs):
            model(x[:, :4], Context(memory=memory), state)
        step = model.step(ours)
        assert step is not None
        for t in range(4, SHORT):
            got, want = step(x[:, t]), model(x[:, t : t + 1], Context(), theirs)[:, 0]
            torch.testing.assert_close(got, want, **fp64)
    assert ours.length.tolist() == theirs.length.tolist() == [SHORT] * x.shape[0]
    for got, want in zip(states(ours), states(theirs), strict=True):
        torch.testing.assert_close(got, want, **fp64)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("choices", CHOICES, ids=str)
def test_a_step_equals_the_forward_pass(choices: dict[str, Any], batch: int) -> None:
    walked(stack(**choices), rows(SHORT, batch))


@pytest.mark.parametrize("batch", [1, 3])
def test_a_step_reads_the_memory_that_the_first_call_stored(batch: int) -> None:
    memory = torch.randn(batch, 5, DIM, dtype=torch.float64)
    walked(stack(position="rope", memory=True), rows(SHORT, batch), memory)


@pytest.mark.parametrize(
    "choices",
    [
        {"position": "t5_bias"},
        {"position": "alibi"},
        {"mixer": {"gate": "head"}},
        {"mixer": {"softcap": 5.0}},
        {"mixer": {"sink_logit": True}},
        {"mixer": {"qk_norm": NORM, "qk_norm_over": "all"}},
    ],
    ids=str,
)
def test_what_has_no_short_cut_says_so(choices: dict[str, Any]) -> None:
    model = stack(**choices)
    assert model.step(model.init_state(1, 4)) is None


def test_hooks_are_never_passed_by() -> None:
    for name in ("blocks.1.mixer", "blocks.0.ffn.up", "norm"):
        model = stack(position="rope")
        model.get_submodule(name).register_forward_hook(lambda module, given, out: None)
        assert model.step(model.init_state(1, 4)) is None


def test_a_stack_in_training_has_no_short_cut() -> None:
    model = stack(position="rope").train()
    assert model.step(model.init_state(1, 4)) is None


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_last_column_alone_is_the_last_column_of_all(layout: str, padded: bool) -> None:
    model, x = stack(position="rope", layout=layout), rows(SHORT)
    mask = torch.ones(2, SHORT, dtype=torch.bool)
    mask[0, :3] = not padded
    full = model(x, Context(token_mask=mask if padded else None))
    last = model(x, Context(token_mask=mask if padded else None, last_only=True))
    assert last.shape == (2, 1, DIM)
    torch.testing.assert_close(last, full[:, -1:], **fp64)
