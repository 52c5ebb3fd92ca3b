"""Mamba and Mamba-2: equal to the papers' recurrences token by token, initial values, states, refusals, decoding."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import zoo
from tests.parts import DIM, MixerCase, rows
from zoo.blocks import Context, Slot
from zoo.blocks.mixers.mamba2 import GroupRMSNorm
from zoo.registry import ConfigError, decode

fp64 = {"rtol": 0.0, "atol": 1e-10}


def naive_conv(conv: Any, x: Tensor) -> Tensor:
    """SiLU of the causal convolution of one row x (T, C), tap by tap."""
    outputs = []
    for t in range(len(x)):
        y = torch.zeros_like(x[t]) if conv is None or conv.bias is None else conv.bias
        if conv is None:
            y = x[t]
        else:
            for back in range(min(conv.weight.shape[1], t + 1)):
                y = y + conv.weight[:, -1 - back] * x[t - back]
        outputs.append(y)
    return F.silu(torch.stack(outputs))


def naive_mamba(m: Any, x: Tensor) -> Tensor:
    """One row x (T, D) -> (T, D), in the notation of Gu & Dao 2023, algorithms 1 and 2 and figure 3."""
    (rank, N, _), outputs = m.widths, []
    x, z = m.in_proj(x).split(m.channels, -1)
    x = naive_conv(m.conv, x)
    h = x.new_zeros(m.channels, N)
    for t in range(len(x)):
        if m.config.selective:
            low, B, C = m.x_proj.weight[:rank] @ x[t], m.x_proj.weight[rank:-N] @ x[t], m.x_proj.weight[-N:] @ x[t]
            if m.config.inner_norm is not None:
                eps = m.config.inner_norm.eps
                low, B, C = (
                    v / (v.square().mean() + eps).sqrt() * norm.weight
                    for norm, v in zip(m.inner_norms, (low, B, C), strict=True)
                )
            delta = F.softplus(m.dt_proj.weight @ low + m.dt_bias)
        else:
            delta, B, C = F.softplus(m.dt_bias), m.B, m.C
        for c in range(m.channels):
            A_bar, B_bar = torch.exp(-delta[c] * m.A_log[c].exp()), delta[c] * B
            h = torch.cat([h[:c], (A_bar * h[c] + B_bar * x[t, c])[None], h[c + 1 :]])
        outputs.append((h @ C + m.D * x[t]) * F.silu(z[t]))
    return m.out(torch.stack(outputs))


def naive_mamba2(m: Any, x: Tensor) -> Tensor:
    """One row x (T, D) -> (T, D), in the notation of Dao & Gu 2024, section 7 and listing 1."""
    (width, shared, _), N, G, P = m.widths, m.config.state_size, m.config.groups, m.head_dim
    z, xBC, dt = m.in_proj(x).split((width, width + 2 * shared, m.heads), -1)
    xBC, dt, outputs = naive_conv(m.conv, xBC), F.softplus(dt + m.dt_bias), []
    state = [x.new_zeros(P, N) for _ in range(m.heads)]
    for t in range(len(x)):
        y = []
        for h in range(m.heads):
            g = h // (m.heads // G)
            X = xBC[t, h * P : (h + 1) * P]
            B = xBC[t, width + g * N : width + (g + 1) * N]
            C = xBC[t, width + shared + g * N : width + shared + (g + 1) * N]
            state[h] = torch.exp(-m.A_log[h].exp() * dt[t, h]) * state[h] + dt[t, h] * torch.outer(X, B)
            y.append(state[h] @ C + m.D[h] * X)
        outputs.append(torch.cat(y))
    y, gate = torch.stack(outputs), F.silu(z)
    if m.norm is None:
        return m.out(y * gate)

    def norm(v: Tensor) -> Tensor:
        groups = [part / (part.square().mean(-1, keepdim=True) + m.norm.eps).sqrt() for part in v.chunk(G, -1)]
        return torch.cat(groups, -1) * m.norm.weight

    return m.out(norm(y) * gate if m.config.norm_before_gate else norm(y * gate))


CASES = [
    MixerCase("mamba", {"expand": 1.0, "state_size": 3, **more})
    for more in (
        {},
        {"bias": True, "dt_rank": 3, "expand": 1.5},
        {"conv": 0},
        {"conv": 2, "conv_bias": False, "inner_norm": {"name": "rmsnorm"}},
        {"selective": False},
    )
]
CASES += [
    MixerCase("mamba2", {"state_size": 4, **more})
    for more in (
        {},
        {"head_dim": 4, "groups": 2, "bias": True},
        {"head_dim": 8, "groups": 4, "norm_before_gate": True, "chunk": 3},
        {"conv": 0, "norm": False},
    )
]
NAIVE = {"mamba": naive_mamba, "mamba2": naive_mamba2}
both = pytest.mark.parametrize("name", NAIVE)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_outputs_and_gradients_equal_the_papers_recurrence(case: MixerCase) -> None:
    mixer, x = case.build(causal=True), rows(length=7).requires_grad_()
    weight = rows(length=7, seed=2)
    found = mixer(x, Context())
    expected = torch.stack([NAIVE[case.name](mixer, row) for row in x])
    torch.testing.assert_close(found, expected, **fp64)
    inputs = [x, *mixer.parameters()]
    names = ["x", *(name for name, _ in mixer.named_parameters())]
    ours = torch.autograd.grad((found * weight).sum(), inputs)
    theirs = torch.autograd.grad((expected * weight).sum(), inputs)
    for name, a, b in zip(names, ours, theirs, strict=True):
        assert b.abs().max() > 1e-6, name
        torch.testing.assert_close(a, b, **fp64, msg=lambda text, name=name: f"{name}: {text}")


def test_mamba2_is_attention_with_a_mask_of_decays() -> None:
    """State space duality (Dao & Gu 2024, equation 7): (L * C B') X, L the decays between two tokens."""
    mixer: Any = MixerCase("mamba2", {"head_dim": 8, "state_size": 4, "norm": False}).build(causal=True)
    x = rows(batch=1, length=9)
    z, xbc, dt = mixer.in_proj(x[0]).split((32, 40, mixer.heads), -1)
    values, B, C = naive_conv(mixer.conv, xbc).split((32, 4, 4), -1)
    dt = F.softplus(dt + mixer.dt_bias)  # (T, H)
    heads = []
    for h, X in enumerate(values.chunk(mixer.heads, -1)):
        sums = (-mixer.A_log[h].exp() * dt[:, h]).cumsum(0)
        L = (sums[:, None] - sums).exp().tril()
        heads.append((L * (C @ B.T)) @ (dt[:, h, None] * X) + mixer.D[h] * X)
    expected = mixer.out(torch.cat(heads, -1) * F.silu(z))
    torch.testing.assert_close(mixer(x, Context())[0], expected, **fp64)


def wide(name: str, **choices: Any) -> Any:
    torch.manual_seed(0)
    return decode("mixer", {"name": name, **choices}).build(Slot(dim=256, heads=4, causal=True, branches=4))


@both
def test_steps_skips_and_decays_start_where_the_authors_code_has_them(name: str) -> None:
    """Known fault 14. Means of 512 channels, or 32 heads, to within five deviations."""
    mixer = wide(name, head_dim=16) if name == "mamba2" else wide(name)
    step = F.softplus(mixer.dt_bias.double())
    assert step.min() > 0.99e-3 and step.max() < 1.01e-1
    middle, spread = step.log().mean(), math.log(100) / 12**0.5  # uniform in the logarithm around 0.01
    assert abs(middle - math.log(1e-2)) < 5 * spread / step.numel() ** 0.5
    assert torch.equal(mixer.D, torch.ones_like(mixer.D))
    decays = mixer.A_log.double().exp()
    if name == "mamba":
        expected = torch.arange(1.0, 17.0, dtype=torch.float64).expand_as(decays)
        torch.testing.assert_close(decays, expected, rtol=1e-6, atol=0)
        bound = 16**-0.5  # rank ceil(256 / 16)
        assert mixer.dt_proj.weight.shape == (512, 16)
        assert mixer.dt_proj.weight.abs().max() <= bound
        torch.testing.assert_close(mixer.dt_proj.weight.std().item(), bound / 3**0.5, rtol=0.05, atol=0)
    else:
        assert decays.shape == (32,) and decays.min() >= 1 and decays.max() <= 16
        assert abs(decays.mean() - 8.5) < 5 * (15 / 12**0.5) / 32**0.5
        assert torch.equal(mixer.norm.weight, torch.ones(512))
    # a normal cut at two deviations has 0.88 of its deviation; four residual branches halve the output's
    torch.testing.assert_close(mixer.in_proj.weight.std().item(), 0.88 * 0.02, rtol=0.05, atol=0)
    torch.testing.assert_close(mixer.out.weight.std().item(), 0.88 * 0.01, rtol=0.05, atol=0)


@both
def test_a_layer_is_one_residual_branch(name: str) -> None:
    model: Any = zoo.create_model(
        "gpt", dim=64, depth=9, mixer=name, layout="mixer_only", position="none", vocab_size=5, max_len=8
    )
    for block in model.stack.blocks:
        torch.testing.assert_close(block.mixer.out.weight.std().item(), 0.88 * 0.02 / 3, rtol=0.06, atol=0)


@both
def test_a_narrow_slot_and_an_odd_one_work_by_default(name: str) -> None:
    for dim in (1, 3, 16, 96):
        mixer = decode("mixer", name).build(Slot(dim=dim, causal=True))
        assert mixer(torch.randn(2, 5, dim), Context()).shape == (2, 5, dim)
    if name == "mamba2":
        shapes = [decode("mixer", name).build(Slot(dim=dim, causal=True)) for dim in (16, 32, 96)]
        assert [(m.heads, m.head_dim) for m in shapes] == [(1, 32), (1, 64), (3, 64)]


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        (
            {"name": "mamba2", "head_dim": 24},
            "expand \\* dim is 32, no multiple of head_dim 24; choices .*: 1, 2, 4, 8",
        ),
        ({"name": "mamba2", "head_dim": 8, "groups": 3}, "heads 4 .* not a multiple of groups 3; choices: 1, 2, 4"),
        ({"name": "mamba", "selective": False, "inner_norm": "rmsnorm"}, "inner_norm: .* set selective"),
        ({"name": "mamba", "state_size": 0}, "state_size: .* greater than or equal to 1"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(choices: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        decode("mixer", choices).build(Slot(dim=DIM, causal=True, where="gpt.0.mixer"))
    assert "\n" not in str(caught.value)


def test_a_norm_of_groups_is_one_norm_for_each() -> None:
    norm, y = GroupRMSNorm(12, 3, 1e-5).double(), rows(length=3)[..., :12]
    parts = [F.rms_norm(part, (4,), eps=1e-5) for part in y.chunk(3, -1)]
    torch.testing.assert_close(norm(y), torch.cat(parts, -1), **fp64)


def final(mixer: Any, x: Tensor, splits: list[int], mask: Tensor | None = None) -> tuple[Tensor, Any]:
    state, start, pieces = mixer.init_state(len(x), 64, dtype=x.dtype), 0, []
    for stop in [*splits, x.shape[1]]:
        piece = Context(token_mask=None if mask is None else mask[:, start:stop])
        pieces.append(mixer(x[:, start:stop], piece, state))
        start = stop
    return torch.cat(pieces, 1), state


@both
@pytest.mark.parametrize("alone", [False, True], ids=["two rows", "one row"])
def test_padding_leaves_no_trace_in_either_state(name: str, alone: bool) -> None:
    """Known fault 6: rows of 4 and 9 real tokens, padded on the left."""
    mixer, x = MixerCase(name).build(causal=True), rows(length=9)
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[0, :5] = False
    if alone:
        x, mask = x[:1], mask[:1]
    y, state = final(mixer, x, [], mask)
    swapped, other = final(mixer, torch.where(mask[..., None], x, torch.full_like(x, 7.0)), [], mask)
    assert torch.equal(y[mask], swapped[mask])
    for kept, tensor in state.tensors.items():
        assert torch.equal(tensor, other.tensors[kept])
        for row in range(len(x)):
            single, bare = final(mixer, x[row : row + 1, mask[row]], [])
            torch.testing.assert_close(y[row, mask[row]], single[0], **fp64)
            torch.testing.assert_close(tensor[row], bare.tensors[kept][0], **fp64)


@both
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("splits", [[1], [3], [4], [16], [36], list(range(1, 37))], ids=lambda s: f"{s[0]}x{len(s)}")
def test_any_split_leaves_the_outputs_and_both_states(name: str, dtype: torch.dtype, splits: list[int]) -> None:
    """Known fault 7."""
    mixer, x = MixerCase(name, {"state_size": 8}).build(causal=True, dtype=dtype), rows(length=37, dtype=dtype)
    tolerance = {"rtol": 0.0, "atol": 1e-10 if dtype == torch.float64 else 1e-5}
    whole, expected = final(mixer, x, [])
    pieces, state = final(mixer, x, splits)
    torch.testing.assert_close(pieces, whole, **tolerance)
    for kept, tensor in state.tensors.items():
        torch.testing.assert_close(tensor, expected.tensors[kept], **tolerance)


@both
def test_a_state_has_the_bytes_of_the_paper_and_is_fp32_in_half_precision(name: str) -> None:
    mixer = MixerCase(name).build(causal=True, dtype=torch.bfloat16)
    state: Any = mixer.init_state(3, 1000)
    if name == "mamba":  # 32 channels of 16 states, and 3 inputs of the convolution
        assert state.nbytes() == 3 * (32 * 16 * 4 + 3 * 32 * 2)
    else:  # one head of 128 x 32, and 3 inputs of x, B and C
        assert state.nbytes() == 3 * (128 * 32 * 4 + 3 * (32 + 2 * 128) * 2)
    assert {tensor.dtype for tensor in state.tensors.values()} == {torch.float32, torch.bfloat16}


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(
    "case", [*CASES, MixerCase("mamba", {"conv": 3}), MixerCase("mamba2", {"head_dim": 16, "groups": 2})], ids=str
)
def test_a_step_of_decoding_is_the_forward_pass(case: MixerCase, batch: int) -> None:
    """Outputs and states; the short cut of the usual form and the longer way of all others."""
    mixer, x = case.build(causal=True), rows(batch=batch, length=9)
    with torch.inference_mode():
        _, ours = final(mixer, x[:, :4], [])
        _, theirs = final(mixer, x[:, :4], [])
        step = mixer.step(ours)
        assert step is not None
        for t in range(4, 9):
            torch.testing.assert_close(
                step(x[:, t], Context()), mixer(x[:, t : t + 1], Context(), theirs)[:, 0], **fp64
            )
    assert ours.seen == theirs.seen == 9
    for kept, tensor in ours.tensors.items():
        torch.testing.assert_close(tensor, theirs.tensors[kept], **fp64)


@both
@pytest.mark.parametrize("half", ["weights", "autocast"])
def test_a_step_in_half_precision_keeps_the_state_wide(name: str, half: str) -> None:
    dtype = torch.bfloat16 if half == "weights" else torch.float32
    mixer, x = MixerCase(name).build(causal=True, dtype=dtype), rows(length=9, dtype=dtype)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=half == "autocast"):
        _, ours = final(mixer, x[:, :8], [])
        _, theirs = final(mixer, x[:, :8], [])
        step = mixer.step(ours)
        assert step is not None
        assert torch.equal(step(x[:, 8], Context()), mixer(x[:, 8:], Context(), theirs)[:, 0])
    assert {t.dtype for n, t in ours.tensors.items() if n != "tail"} == {torch.float32}


def test_a_state_of_packed_documents_is_never_stepped_past_them() -> None:
    for name in NAIVE:
        mixer: Any = MixerCase(name).build(causal=True)
        state = mixer.init_state(2, 9, dtype=torch.float64)
        mixer(rows(length=4), Context(documents=torch.zeros(2, 4, dtype=torch.long)), state)
        assert mixer.step(state) is None
