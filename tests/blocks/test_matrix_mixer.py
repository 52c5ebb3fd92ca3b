"""One token of decoding through mixers whose state is a matrix: the forward pass in fewer calls."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.parts import MixerCase, rows
from zoo.blocks import Context
from zoo.blocks.matrix_mixer import MatrixMixer, for_one_token
from zoo.ops.few_rows import WARM

CASES = [
    MixerCase("linear_attention", {"conv": 3, "gate": "silu"}),
    MixerCase("linear_attention", {"feature_map": "performer"}),
    MixerCase("retention"),
    MixerCase("gla", {"conv": 3}),
    MixerCase("mamba2", {"head_dim": 8, "groups": 2}),
    MixerCase("delta", {"value_heads": 8, "head_dim": 3}),
    MixerCase("gated_delta"),
    MixerCase("kda"),
    MixerCase("rwkv7"),
]
every = pytest.mark.parametrize("case", CASES, ids=str)


@every
@pytest.mark.parametrize("batch", [1, 3])
def test_a_step_equals_the_forward_pass_before_and_after_it_is_warm(case: MixerCase, batch: int) -> None:
    mixer, x = case.build(causal=True), rows(batch, WARM + 8)
    with torch.inference_mode():
        ours, theirs = (mixer.init_state(batch, 32) for _ in range(2))
        step: Any = mixer.step(ours)
        for t in range(x.shape[1]):
            got = step(x[:, t], Context(positions=torch.tensor([t])))
            torch.testing.assert_close(got, mixer(x[:, t : t + 1], Context(), theirs)[:, 0], rtol=0, atol=1e-10)
    assert ours.seen == theirs.seen
    for name, tensor in ours.tensors.items():
        torch.testing.assert_close(tensor, theirs.tensors[name], rtol=0, atol=1e-10)


@every
@pytest.mark.parametrize("half", ["weights", "autocast"])
def test_in_half_precision_the_state_stays_wide(case: MixerCase, half: str) -> None:
    dtype = torch.bfloat16 if half == "weights" else torch.float32
    mixer, x = case.build(causal=True, dtype=dtype), rows(2, 9, dtype)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=half == "autocast"):
        ours, theirs = (mixer.init_state(2, 9) for _ in range(2))
        for state in (ours, theirs):
            mixer(x[:, :8], Context(), state)
        step: Any = mixer.step(ours)
        got, want = step(x[:, 8], Context()), mixer(x[:, 8:], Context(), theirs)[:, 0]
    assert got.dtype == want.dtype
    torch.testing.assert_close(got.float(), want.float(), rtol=2**-6, atol=2**-8)
    assert ours["matrix"].dtype == torch.float32
    torch.testing.assert_close(ours["matrix"], theirs["matrix"], rtol=0, atol=1e-5)


def test_the_copy_shares_weights_and_calls_hooked_layers_as_they_are() -> None:
    mixer: Any = MixerCase("kda").build(causal=True)
    assert isinstance(mixer, MatrixMixer)
    calls: list[nn.Module] = []
    mixer.decay.alpha.up.register_forward_hook(lambda module, given, out: calls.append(module))
    twin = for_one_token(mixer, mixer.init_state(1, 8))
    assert twin is not mixer and twin.norm.norm.weight is mixer.norm.norm.weight
    assert isinstance(mixer.qkv, nn.Linear) and not isinstance(twin.qkv, nn.Linear)
    twin.decay(rows(1, 1)[:, 0])
    assert calls == [mixer.decay.alpha.up]
