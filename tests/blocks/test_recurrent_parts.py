"""Short convolutions, output norms and decays as recurrent mixers use them."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from zoo.blocks.decay import init_log_uniform, init_step_bias, log_decay, step_size
from zoo.blocks.fixed_state import FixedState
from zoo.blocks.output_gate import OutputNorm
from zoo.blocks.recurrent_mixer import Tokens
from zoo.blocks.short_conv import ShortConv
from zoo.ops.conv import naive_causal_conv


@pytest.mark.parametrize("activation", [False, True])
def test_a_short_convolution_keeps_its_tail_in_the_state(activation: bool) -> None:
    conv = ShortConv(3, 4, bias=True, activation=activation, dilation=2).double()
    x = torch.randn(2, 9, 3, dtype=torch.float64)
    state = FixedState(tail=conv.empty(2, x.device, x.dtype))
    pieces = [conv(piece, Tokens(), state) for piece in x.split([2, 1, 6], 1)]
    expected, tail = naive_causal_conv(x, conv.weight, conv.bias, dilation=2)
    torch.testing.assert_close(torch.cat(pieces, 1), F.silu(expected) if activation else expected, rtol=0, atol=1e-12)
    assert torch.equal(state["tail"], tail)


def test_a_short_convolution_starts_like_torch_s() -> None:
    conv = ShortConv(4000, 4)
    assert conv.weight.abs().max() <= 0.5
    torch.testing.assert_close(conv.weight.std(), nn.Conv1d(4000, 4000, 4, groups=4000).weight.std(), rtol=0.02, atol=0)


@pytest.mark.parametrize(("gate", "formula"), [("silu", F.silu), ("sigmoid", torch.sigmoid)])
def test_the_norm_is_over_each_head_and_the_gate_over_all(gate, formula) -> None:
    y, logits = torch.randn(2, 5, 3, 4), torch.randn(2, 5, 12)
    out = OutputNorm(4, gate=gate, eps=1e-6)(y, logits)
    expected = y * (y.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    torch.testing.assert_close(out, expected.reshape(2, 5, 12) * formula(logits), rtol=0, atol=1e-5)
    assert torch.equal(OutputNorm(4, gate="none", norm=False)(y, None), y.reshape(2, 5, 12))


def test_steps_start_uniform_in_their_logarithm() -> None:
    bias = nn.Parameter(torch.empty(4000))
    init_step_bias(bias)
    steps = F.softplus(bias.double())
    assert steps.min() >= 0.999e-3 and steps.max() <= 0.1001
    # ln 10 of width on both sides of 0.01: the mean of 4000 uniform draws is within 0.1 at 5 sigma
    torch.testing.assert_close(steps.log10().mean().item(), -2.0, rtol=0, atol=0.05)


def test_rates_start_uniform() -> None:
    rates = nn.Parameter(torch.empty(4000))
    init_log_uniform(rates, 1.0, 16.0)
    assert rates.exp().min() >= 1 and rates.exp().max() <= 16.001
    torch.testing.assert_close(rates.exp().mean().item(), 8.5, rtol=0, atol=0.4)  # 15 / sqrt(12 4000) = 0.07 a sigma


def test_decays_are_made_in_fp32_and_never_grow_a_state() -> None:
    x, bias = torch.randn(2, 5, 3).bfloat16(), torch.randn(3).bfloat16()
    step = step_size(x, bias)
    decay = log_decay(torch.randn(3).bfloat16(), step)
    assert step.dtype == decay.dtype == torch.float32 and decay.max() <= 0
    assert log_decay(torch.zeros(3), step_size(x.double(), bias)).dtype == torch.float64
