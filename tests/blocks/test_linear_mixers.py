"""Linear attention, retention, lightning and GLA against the formulas of their papers, and the choices of each."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from zoo.blocks.api import Context, Slot
from zoo.blocks.init import materialise
from zoo.blocks.mixers.lightning import lightning_slopes
from zoo.blocks.mixers.retention import retention_decay
from zoo.blocks.positions import naive_rope
from zoo.registry import ConfigError, decode

B, T, D, H = 2, 11, 16, 4
fp64 = {"rtol": 0.0, "atol": 1e-10}
MASK = torch.tensor([[0, 0, 1, 1, 1, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0]], dtype=torch.bool)
DOCUMENTS = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2], [5, 5, 5, 5, 5, 5, 5, 3, 3, 3, 3]])


def build(name: str, dtype: torch.dtype = torch.float64, facts: dict[str, Any] | None = None, **choices: Any) -> Any:
    torch.manual_seed(0)
    slot = Slot(**{"dim": D, "heads": H, "causal": True, "init_std": 0.3, "where": "test", **(facts or {})})
    return decode("mixer", {"name": name, **choices}).build(slot).to(dtype).eval()


def rows(length: int = T, seed: int = 1) -> Tensor:
    return torch.randn(B, length, D, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def heads(x: Tensor, count: int = H) -> Tensor:
    """(B, T, H K) -> (B, H, T, K)."""
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


def joined(y: Tensor) -> Tensor:
    """(B, H, T, V) -> (B, T, H V)."""
    return y.transpose(1, 2).flatten(2)


def rms(y: Tensor, eps: float) -> Tensor:
    return y / (y.square().mean(-1, keepdim=True) + eps).sqrt()


# Linear attention


def kernel(feature_map: str, q: Tensor, k: Tensor) -> Tensor:
    """Weights (B, H, T, S) by the map's own formula."""
    if feature_map == "elu":
        return (F.elu(q) + 1) @ (F.elu(k) + 1).mT
    if feature_map == "relu":
        return q.relu() @ k.relu().mT
    s = q @ k.mT / q.shape[-1] ** 0.5
    return 1 + s + s**2 / 2 if feature_map == "taylor" else s


def seen(causal: bool, mask: Tensor | None, documents: Tensor | None) -> Tensor:
    """(B, 1, T, T) bool: which keys each query sees."""
    visible = torch.ones(B, T, T, dtype=torch.bool)
    if causal:
        visible = visible.tril()
    if mask is not None:
        visible = visible & mask[:, None]
    if documents is not None:
        visible = visible & (documents[:, :, None] == documents[:, None])
    return visible[:, None]


@pytest.mark.parametrize("feature_map", ["elu", "relu", "taylor", "identity"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("mask", [None, MASK], ids=["all", "masked"])
@pytest.mark.parametrize("documents", [None, DOCUMENTS], ids=["one", "packed"])
def test_linear_attention_is_attention_with_a_kernel(
    feature_map: str, causal: bool, mask: Tensor | None, documents: Tensor | None
) -> None:
    normalise = feature_map != "identity"
    mixer = build("linear_attention", facts={"causal": causal}, feature_map=feature_map, normalise=normalise, chunk=4)
    x = rows()
    q, (k, v) = heads(mixer.q(x)), (heads(z) for z in mixer.kv(x).chunk(2, -1))
    weights = kernel(feature_map, q, k).masked_fill(~seen(causal, mask, documents), 0.0)
    total = weights.sum(-1, keepdim=True) + 1e-6 if normalise else 1.0
    expected = mixer.out(joined(weights / total @ v))
    y = mixer(x, Context(token_mask=mask, documents=documents))
    real = torch.ones(B, T, dtype=torch.bool) if mask is None else mask
    torch.testing.assert_close(y[real], expected[real], **fp64)


def test_performer_comes_near_to_softmax_attention_as_its_features_grow() -> None:
    x, errors = rows(), []
    for features in (4, 32, 256, 2048):
        mixer = build("linear_attention", facts={"init_std": 0.1}, feature_map="performer", features=features)
        q, (k, v) = heads(mixer.q(x)), (heads(z) for z in mixer.kv(x).chunk(2, -1))
        exact = mixer.out(joined(F.scaled_dot_product_attention(q, k, v, is_causal=True)))
        errors.append((mixer(x, Context()) - exact).square().mean().sqrt() / exact.square().mean().sqrt())
    assert errors[0] > errors[1] > errors[2] > errors[3]
    assert errors[3] < 0.05


def test_random_features_are_saved_differ_by_layer_and_survive_a_meta_build() -> None:
    first, again = (
        build("linear_attention", feature_map="performer"),
        build("linear_attention", feature_map="performer"),
    )
    assert torch.equal(first.state_dict()["phi.random"], again.phi.random)
    assert first.phi.random.shape == (6, 4)  # 4 ln 4 = 5.5
    other = build("linear_attention", facts={"layer": 1}, feature_map="performer")
    assert not torch.equal(first.phi.random, other.phi.random)
    with torch.device("meta"):
        empty = build("linear_attention", torch.float32, feature_map="performer")
    assert torch.equal(materialise(empty).phi.random, first.phi.random.float())


@pytest.mark.parametrize("form", ["causal", "two_sided", "cross"])
@pytest.mark.parametrize("feature_map", ["elu", "relu", "taylor", "performer"])
def test_a_query_that_sees_no_key_gives_zeros(form: str, feature_map: str) -> None:
    facts = {"causal": form == "causal", "memory_dim": D if form == "cross" else None}
    mixer = build("linear_attention", facts=facts, feature_map=feature_map, bias=False)
    mask = torch.zeros(B, T, dtype=torch.bool)
    x = rows().requires_grad_()
    y = mixer(x, Context(token_mask=mask, memory=rows(), memory_mask=mask))
    assert torch.equal(y, torch.zeros_like(y))
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert grad.isfinite().all()


@pytest.mark.parametrize("causal", [True, False])
def test_weights_sum_to_one_over_long_rows_in_half_precision(causal: bool) -> None:
    """Values that are all 1 stay 1 however many they are: bf16 alone could not count them beyond 256."""
    mixer = build("linear_attention", torch.bfloat16, facts={"causal": causal}, bias=True)
    with torch.no_grad():
        mixer.kv.weight[D:] = 0.0
        mixer.kv.bias[D:] = 1.0
        mixer.out.weight.copy_(torch.eye(D))
    y = mixer(rows(700).bfloat16(), Context())
    torch.testing.assert_close(y, torch.ones_like(y), rtol=0, atol=2**-8)


@pytest.mark.parametrize("feature_map", ["elu", "taylor", "performer"])
def test_reading_a_memory_takes_a_state_of_one_size(feature_map: str) -> None:
    mixer = build("linear_attention", facts={"causal": False, "memory_dim": D}, feature_map=feature_map)
    sizes = []
    for length in (3, 30):
        state = mixer.init_state(B, T, dtype=torch.float64)
        before = state.nbytes()
        first = mixer(rows()[:, :4], Context(memory=rows(length, seed=2)), state)
        later = mixer(rows()[:, 4:], Context(), state)
        whole = mixer(rows(), Context(memory=rows(length, seed=2)))
        torch.testing.assert_close(torch.cat([first, later], 1), whole, **fp64)
        state.reorder(torch.tensor([1, 0]))
        torch.testing.assert_close(mixer(rows().flip(0), Context(), state.clone()), whole.flip(0), **fp64)
        assert state.length.tolist() == [T, T]
        sizes += [before, state.nbytes()]
    assert len(set(sizes)) == 1 and sizes[0] == 8 * B * H * mixer.phi.width * 5  # V + 1 = 5 doubles


def test_a_step_reads_the_memory_and_a_two_sided_mixer_has_none() -> None:
    mixer = build("linear_attention", facts={"causal": False, "memory_dim": D})
    state = mixer.init_state(B, T, dtype=torch.float64)
    assert mixer.step(state) is None  # the memory is not known yet
    x, memory = rows(), rows(5, seed=2)
    y = mixer(x, Context(memory=memory))
    mixer(x[:, :4], Context(memory=memory), state)
    step = mixer.step(state)
    for t in range(4, T):
        torch.testing.assert_close(step(x[:, t], Context()), y[:, t], **fp64)
    assert state.length.tolist() == [T, T]
    two_sided = build("linear_attention", facts={"causal": False})
    assert two_sided.init_state(B, T) is None and two_sided.step(None) is None


def test_linear_attention_refuses_what_has_no_meaning() -> None:
    with pytest.raises(ConfigError, match=r"test: weights of 'identity' have no sum .* normalise"):
        build("linear_attention", feature_map="identity")
    with pytest.raises(ConfigError, match=r"test: a short convolution .* leave conv at 0"):
        build("linear_attention", facts={"memory_dim": D}, conv=4)
    assert decode("mixer", {"name": "linear_attention", "conv": 4}).for_memory().conv == 0
    with pytest.raises(ValueError, match=r"test: cross attention needs context\.memory"):
        build("linear_attention", facts={"memory_dim": D})(rows(), Context())


# Retention


def test_retention_is_attention_with_a_decaying_mask_and_rotation() -> None:
    mixer, x = build("retention", chunk=4), rows()
    q, k, v = (heads(z) for z in mixer.qkv(x).split(mixer.widths, -1))
    positions = torch.arange(T)
    q, k = (torch.stack([torch.stack([naive_rope(z, positions) for z in row]) for row in y]) for y in (q, k))
    gamma = 1 - 2.0 ** (-5 - torch.arange(H, dtype=torch.float64))
    distance = positions[:, None] - positions
    decay = (gamma[:, None, None] ** distance).tril()  # (H, T, T)
    y = rms(q @ k.mT * mixer.key_dim**-0.5 * decay @ v, 1e-5)
    expected = mixer.out(joined(y) * F.silu(mixer.gate(x)))
    torch.testing.assert_close(mixer(x, Context()), expected, **fp64)
    assert v.shape[-1] == 2 * q.shape[-1]


def test_heads_of_retention_remember_from_22_tokens_on_each_twice_as_long() -> None:
    lives = math.log(0.5) / retention_decay(H, dtype=torch.float64)
    torch.testing.assert_close(lives, torch.tensor([21.83, 44.01, 88.38, 177.10]).double(), rtol=0, atol=0.01)


@pytest.mark.parametrize("steps", [1, T])
def test_only_distances_matter_to_retention(steps: int) -> None:
    mixer, x = build("retention"), rows()
    state = mixer.init_state(B, T, dtype=torch.float64)
    places = torch.arange(100, 100 + T)
    pieces = [
        mixer(x[:, t : t + T // steps], Context(positions=places[t : t + T // steps]), state)
        for t in range(0, T, T // steps)
    ]
    torch.testing.assert_close(torch.cat(pieces, 1), mixer(x, Context()), **fp64)
    stretched = mixer(x, Context(positions=3 * places))
    assert (stretched - mixer(x, Context())).abs().max() > 1e-3


def test_retention_follows_the_familys_rotation_and_has_its_own_elsewhere() -> None:
    def layout(family: str | None, **choices: Any) -> str | None:
        position = None if family is None else decode("position", family)
        rotary = build("retention", facts={"position": position}, **choices).rotary
        return None if rotary is None else rotary.config.layout

    assert layout("rope") == "half"
    for family in (None, "none", "learned", "alibi", "rope2d"):
        assert layout(family) == "interleaved"
    assert layout("rope", position="none") is None
    for name in ("alibi", "learned", "rope2d"):
        with pytest.raises(ConfigError, match=rf"test.position: retention cannot use '{name}'.*choices: rope, none"):
            build("retention", position=name)


# Lightning attention


def test_lightning_is_its_recurrence_with_silu_a_norm_over_all_heads_and_a_sigmoid_gate() -> None:
    mixer, x = build("lightning", facts={"layer": 1, "depth": 3}, chunk=4), rows()
    q, k, v = (heads(F.silu(z)) for z in mixer.qkv(x).chunk(3, -1))
    decay = torch.tensor([-(2.0 ** (-2 * h)) * (0.5 + 1e-5) for h in (1, 2, 3, 4)]).double().exp()
    S, outputs = torch.zeros(B, H, 4, 4).double(), []
    for t in range(T):
        S = decay[:, None, None] * S + k[:, :, t, :, None] * v[:, :, t, None]
        outputs.append((q[:, :, t, None] @ S).squeeze(2))
    y = rms(torch.stack(outputs, 1).flatten(2), 1e-6)
    expected = mixer.out(y * torch.sigmoid(mixer.gate(x)))
    torch.testing.assert_close(mixer(x, Context()), expected, rtol=0, atol=1e-6)  # decay was written in fp32


def test_slopes_are_those_of_the_code_they_are_named_after() -> None:
    def alibi(n: int) -> list[float]:
        return [2 ** (-8 * h / n) for h in range(1, n + 1)]

    twelve = alibi(8) + alibi(16)[0::2][:4]
    for layer in range(5):
        expected = {
            "alibi": twelve,
            "minimax": [m * (1 - layer / 4 + 1e-5) for m in twelve],
            "transformers": [m * (1 - layer / (4 + 1e-5) + 1e-5) for m in alibi(12)],
            "bailing": [m * (1 - (layer - 1) / 4 + 1e-5) for m in twelve],
            "fla": [8 / 12 * (1 - layer / 5) * h for h in range(12)],
        }
        for name, slopes in expected.items():
            found = lightning_slopes(name, 12, layer, 5, dtype=torch.float64)  # type: ignore[arg-type]
            torch.testing.assert_close(found, torch.tensor(slopes, dtype=torch.float64), **fp64)
            assert found.min() >= 0
    assert lightning_slopes("minimax", 4, 0, 1)[0] == pytest.approx(0.25 * (1 + 1e-5))  # a stack of one layer


def test_lightning_norms_all_heads_each_or_none() -> None:
    assert build("lightning").norm.norm.weight.shape == (D,)
    assert build("lightning", norm="head").norm.norm.weight.shape == (D // H,)
    assert build("lightning", norm="none").norm.norm is None


# GLA


def test_gla_is_its_recurrence() -> None:
    mixer, x = build("gla", gate_rank=3, chunk=4), rows()
    with torch.no_grad():
        mixer.decay.up.bias.normal_()
    q, k, v = (heads(z) for z in mixer.qkv(x).split(mixer.widths, -1))
    alpha = heads(torch.sigmoid(mixer.decay.up(mixer.decay.down(x))) ** (1 / 16))
    S, outputs = torch.zeros(B, H, 2, 4).double(), []
    for t in range(T):
        S = alpha[:, :, t, :, None] * S + k[:, :, t, :, None] * v[:, :, t, None]
        outputs.append((q[:, :, t, None] @ S).squeeze(2) * 2**-0.5)
    y = rms(torch.stack(outputs, 2), 1e-5)
    expected = mixer.out(joined(y) * F.silu(mixer.gate(x)))
    torch.testing.assert_close(mixer(x, Context()), expected, **fp64)


def test_gla_forgets_slowly_at_first_and_stays_finite_when_it_forgets_all() -> None:
    mixer, x = build("gla", torch.float32, facts={"init_std": 0.02}), rows().float().requires_grad_()
    assert (torch.sigmoid(mixer.decay(x)) ** (1 / 16)).min() > 0.95  # 2^(-1/16) = 0.958
    with torch.no_grad():
        mixer.decay.up.bias.fill_(-1e6)
    y = mixer(x, Context())
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert y.isfinite().all() and grad.isfinite().all()
    alone = mixer(x[:, 5:6], Context())
    torch.testing.assert_close(y[:, 5:6], alone, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("name", "choices"), [("gla", {"conv": 4}), ("linear_attention", {"conv": 4})])
def test_a_short_convolution_can_be_switched_on(name: str, choices: dict[str, Any]) -> None:
    mixer, x = build(name, **choices), rows()
    assert mixer.conv.weight.shape[1] == 4 and build(name).conv is None
    state = mixer.init_state(B, T, dtype=torch.float64)
    pieces = [mixer(x[:, a:b], Context(), state) for a, b in ((0, 2), (2, 3), (3, T))]
    torch.testing.assert_close(torch.cat(pieces, 1), mixer(x, Context()), **fp64)
