"""The delta family: layers against their papers, parity with hand-set weights, RWKV-7's values in a stack."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import zoo
from tests.parts import DIM, HEADS, MixerCase, rows
from zoo.blocks import Context, Slot, Stack
from zoo.blocks.api import Sublayer
from zoo.blocks.mixers.delta import DeltaRule
from zoo.blocks.mixers.rwkv7 import RWKV7
from zoo.blocks.stack import TransformerConfig

T = 12
fp64 = {"rtol": 0.0, "atol": 1e-10}


def randomised(mixer: Sublayer) -> Any:
    """All parameters random, so that none stands at a value that hides it."""
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return mixer


def naive_conv(x: Tensor, weight: Tensor) -> Tensor:
    """(T, C), (C, W) -> (T, C): each channel's last W inputs, then SiLU."""
    width = weight.shape[1]
    padded = F.pad(x, (0, 0, width - 1, 0))
    return F.silu(torch.stack([(padded[t : t + width] * weight.T).sum(0) for t in range(x.shape[0])]))


def naive_delta(mixer: DeltaRule, x: Tensor) -> Tensor:
    """The delta rules as a loop over rows, heads and tokens."""
    config, shared = mixer.config, mixer.heads // mixer.key_heads
    outputs = []
    for row in x:  # (T, D)
        qkv = mixer.qkv(row)
        qkv = F.silu(qkv) if mixer.conv is None else naive_conv(qkv, mixer.conv.weight)
        q, k, v = qkv.split(mixer.widths, dim=-1)
        decays = torch.zeros(len(row), mixer.heads, mixer.key_dim, dtype=x.dtype)
        if mixer.decay is not None:
            rate = F.softplus(mixer.decay.alpha(row) + mixer.decay.dt_bias).view(len(row), mixer.heads, -1)
            decays = decays - mixer.decay.A_log.exp()[:, None] * rate
        heads = []
        for h in range(mixer.heads):
            keys = slice(h // shared * mixer.key_dim, (h // shared + 1) * mixer.key_dim)
            values = slice(h * mixer.value_dim, (h + 1) * mixer.value_dim)
            S = x.new_zeros(mixer.key_dim, mixer.value_dim)
            for t in range(len(row)):
                q_t, k_t = (part[t, keys] / (part[t, keys].square().sum() + 1e-6).sqrt() for part in (q, k))
                beta = torch.sigmoid(mixer.beta(row[t])[h]) * (2 if config.negative_eigenvalues else 1)
                S = decays[t, h].exp()[:, None] * S
                S = S - beta * torch.outer(k_t, k_t @ S) + beta * torch.outer(k_t, v[t, values])
                o = S.T @ q_t / math.sqrt(mixer.key_dim)
                if config.norm:
                    o = o / (o.square().mean() + config.norm_eps).sqrt() * mixer.norm.norm.weight
                if mixer.gate is not None:
                    o = o * {"silu": F.silu, "sigmoid": torch.sigmoid}[config.gate](mixer.gate(row[t])[values])
                heads.append(o)
        outputs.append(mixer.out(torch.stack(heads).view(mixer.heads, len(row), -1).transpose(0, 1).flatten(1)))
    return torch.stack(outputs)


def naive_rwkv7(mixer: RWKV7, x: Tensor) -> Tensor:
    """The paper's equations for a first layer; wkv is (V, K) and vectors are rows, as there."""
    sigmoid = torch.sigmoid
    outputs = []
    for row in x:
        wkv = [x.new_zeros(mixer.head_dim, mixer.head_dim) for _ in range(mixer.heads)]
        before = torch.zeros_like(row[0])
        for x_t in row:
            x_r, x_w, x_k, x_v, x_a, x_g = (torch.lerp(x_t, before, mu) for mu in mixer.mix_weights)
            before = x_t
            r, k, v = mixer.receptance(x_r), mixer.key(x_k), mixer.value(x_v)
            w = torch.exp(-math.exp(-0.5) * sigmoid(mixer.decay.up(torch.tanh(mixer.decay.down(x_w)))))
            a = sigmoid(mixer.rate.up(mixer.rate.down(x_a)))
            g = mixer.gate.up(sigmoid(mixer.gate.down(x_g)))
            kappa, k = k * mixer.removal_scale, k * torch.lerp(torch.ones_like(a), a, mixer.rate_scale)
            heads = []
            for h in range(mixer.heads):
                part = slice(h * mixer.head_dim, (h + 1) * mixer.head_dim)
                kappa_h = (kappa[part] / kappa[part].norm())[None]
                r_h, w_h, k_h, v_h, a_h = (whole[part][None] for whole in (r, w, k, v, a))  # (1, K)
                wkv[h] = wkv[h] @ (torch.diag(w_h[0]) - kappa_h.T @ (a_h * kappa_h)) + v_h.T @ k_h
                norm = (mixer.norm.weight[part], mixer.norm.bias[part], mixer.norm.eps)
                p = F.layer_norm(r_h @ wkv[h].T, (mixer.head_dim,), *norm)
                heads.append((p + (r_h @ (mixer.bonus[h] * k_h).T) * v_h)[0])
            outputs.append(mixer.out(torch.cat(heads) * g))
    return torch.stack(outputs).view(*x.shape)


EQUATIONS: list[tuple[str, dict[str, Any], Callable[[Any, Tensor], Tensor]]] = [
    ("delta", {}, naive_delta),
    ("delta", {"conv": 0, "norm": False, "gate": "sigmoid"}, naive_delta),
    ("gated_delta", {"value_heads": 8, "head_dim": 3}, naive_delta),
    ("gated_delta", {"negative_eigenvalues": True, "chunk": 4}, naive_delta),
    ("kda", {}, naive_delta),
    ("kda", {"value_heads": 8, "head_dim": 3, "gate": "silu", "negative_eigenvalues": True, "chunk": 4}, naive_delta),
    ("rwkv7", {}, naive_rwkv7),
    ("rwkv7", {"heads": 2, "head_dim": 5, "norm_eps": 1e-3, "chunk": 4}, naive_rwkv7),
]


@pytest.mark.parametrize(
    ("case", "naive"),
    [pytest.param(MixerCase(name, c), naive, id=str(MixerCase(name, c))) for name, c, naive in EQUATIONS],
)
def test_a_layer_is_its_papers_equations(case: MixerCase, naive: Callable[[Any, Tensor], Tensor]) -> None:
    """Outputs, and gradients of the input and of every parameter."""
    mixer, x = randomised(case.build(causal=True)), rows(length=T).requires_grad_()
    wanted = [x, *mixer.parameters()]
    y, expected = mixer(x, Context()), naive(mixer, x)
    torch.testing.assert_close(y, expected, **fp64)
    weight = rows(length=T, seed=8)
    found = torch.autograd.grad((y * weight).sum(), wanted)
    for mine, theirs in zip(found, torch.autograd.grad((expected * weight).sum(), wanted), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)


LENGTH = 4096


def parity_layer(*, negative: bool) -> Sublayer:
    """A token is (1, bit). A bit of 1 writes with strength 2 (of 1 where that is the most), a bit of 0 does not write:

    S <- S - 2 S + 2 (32) = 64 - S, so that S is 0 or 64, and out / 64 is the parity of the bits so far.
    """
    choices = {"heads": 1, "head_dim": 1, "conv": 0, "norm": False, "negative_eigenvalues": negative}
    mixer: Any = zoo.create_mixer("delta", dim=2, causal=True, **choices)
    with torch.no_grad():
        mixer.qkv.weight.copy_(torch.tensor([[1024.0, 0.0], [1024.0, 0.0], [32.0, 0.0]]))  # q = k = 1, v = 32
        mixer.beta.weight.copy_(torch.tensor([[-200.0, 400.0]]))  # the sigmoid is 0 or 1 in fp32
        mixer.out.weight.copy_(torch.tensor([[1 / 64], [0.0]]))
    return mixer


def tokens_of(bits: Tensor) -> Tensor:
    """(B, T) -> (B, T, 2)."""
    return torch.stack([torch.ones_like(bits), bits], dim=-1).float()


def best_accuracy(scores: Tensor, labels: Tensor) -> float:
    """The share of labels (T,) that the best threshold on the scores (T,) gets right, in either direction."""
    order = scores.argsort(stable=True)
    scores, ones = scores[order], labels[order].float()
    below = F.pad((1.0 - ones).cumsum(0), (1, 0))  # zeros among the n lowest
    above = ones.sum() - F.pad(ones.cumsum(0), (1, 0))  # ones among the others
    cut = F.pad(scores[1:] > scores[:-1], (1, 1), value=True)  # no threshold lies between equal scores
    right = (below + above)[cut]
    return float(torch.maximum(right.max(), len(labels) - right.min()) / len(labels))


def test_a_hand_set_delta_layer_with_negative_eigenvalues_computes_parity_exactly() -> None:
    bits = torch.randint(2, (4, LENGTH), generator=torch.Generator().manual_seed(0))
    bits[0] = 1
    parity = bits.cumsum(1) % 2
    mixer = parity_layer(negative=True)
    with torch.no_grad():
        assert torch.equal(mixer(tokens_of(bits), Context())[..., 0], parity.float())


def test_the_same_layer_with_strengths_below_one_cannot_tell_odd_from_even() -> None:
    ones = torch.ones(1, LENGTH, dtype=torch.long)
    parity = ones.cumsum(1) % 2
    with torch.no_grad():
        scores = parity_layer(negative=False)(tokens_of(ones), Context())[0, :, 0]
        assert best_accuracy(scores, parity[0]) <= 0.5 + 1 / LENGTH
        assert best_accuracy(parity_layer(negative=True)(tokens_of(ones), Context())[0, :, 0], parity[0]) == 1.0


@pytest.mark.parametrize("seed", range(8))
def test_without_negative_eigenvalues_no_weights_tell_odd_from_even_on_a_constant_row(seed: int) -> None:
    """On equal tokens S_t = (1 - beta k k') S_{t-1} + beta k v' with the same beta, k and v: what is left of the start
    shrinks by 1 - beta at each token. Where that is not negative every output is monotone in t, and a threshold gets no
    more than half of an alternating row; where it is, the outputs alternate."""
    length, generator = 16, torch.Generator().manual_seed(seed)
    x = torch.randn(1, 1, DIM, dtype=torch.float64, generator=generator).expand(1, length, DIM)
    parity = torch.arange(1, length + 1) % 2
    accuracies = []
    for negative in (False, True):
        torch.manual_seed(seed)
        choices = {"heads": 1, "head_dim": 5, "conv": 0, "norm": False, "negative_eigenvalues": negative}
        mixer: Any = zoo.create_mixer("delta", dim=DIM, causal=True, init_std=1.0, **choices).double()
        with torch.no_grad():
            mixer.beta.weight.copy_(x[0, :1] / x[0, 0].square().sum())  # beta 0.73, or 1.46
            y = mixer(x, Context())[0]  # (T, D)
        change = y.diff(dim=0)
        monotone = (change.amin(0) >= 0) | (change.amax(0) <= 0)
        assert monotone.all() if not negative else not monotone.any()
        accuracies.append(best_accuracy(y[:, 0], parity))
    assert accuracies[0] <= 0.5 + 1 / length
    assert accuracies[1] == 1.0


@pytest.mark.parametrize(("name", "low"), [("gated_delta", 0.0), ("kda", 1.0)])
def test_decays_start_as_the_papers(name: str, low: float) -> None:
    """exp(A) uniform up to 16; softplus(dt) between 0.001 and 0.1, uniform in its logarithm."""
    torch.manual_seed(0)
    decay: Any = zoo.create_mixer(name, dim=64, heads=512, head_dim=2, causal=True).decay  # type: ignore[attr-defined]
    rates, steps = decay.A_log.detach().exp(), F.softplus(decay.dt_bias.detach())
    assert low <= rates.min() < low + 0.5 and 15.5 < rates.max() <= 16.0
    assert abs(rates.mean() - (low + 16.0) / 2) < 1.0  # 4.6 / sqrt(512) is 0.2
    assert steps.min() > 0.99e-3 and steps.max() < 0.101
    assert abs(steps.log().mean() - math.log(0.01)) < 0.3  # 1.33 / sqrt(512) is 0.06


def test_key_heads_that_do_not_divide_the_value_heads_are_refused() -> None:
    with pytest.raises(zoo.ConfigError, match="value_heads 6 is not a multiple of heads 4"):
        zoo.create_mixer("kda", dim=16, heads=4, value_heads=6, causal=True)


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("delta", 4 * 4 * 4 + 3 * (3 * 16)),
        ("gated_delta", 4 * 4 * 8 + 3 * (2 * 16 + 32)),
        ("kda", 4 * 4 * 4 + 3 * (3 * 16)),
        ("rwkv7", 4 * 4 * 4 + 16),
    ],
)
def test_a_state_holds_a_matrix_per_head_and_the_last_inputs(name: str, numbers: int) -> None:
    """H K V, and three tokens of q, k and v for a convolution of four, or one token for the shift."""
    state = MixerCase(name).build(causal=True, dtype=torch.float32).init_state(2, 100)
    assert state.nbytes() == 2 * 4 * numbers
    half = MixerCase(name).build(causal=True, dtype=torch.bfloat16).init_state(2, 100)
    assert half["matrix"].dtype == torch.float32


# RWKV-7's values across layers.


def stack(
    mixer: Any = "rwkv7", *, causal: bool = True, checkpointing: bool = False, depth: int = 3, **facts: Any
) -> Stack:
    torch.manual_seed(0)
    config = TransformerConfig(
        dim=DIM, depth=depth, heads=HEADS, mixer=mixer, init_std=0.3, checkpointing=checkpointing, layout="mixer_only"
    )
    model = Stack(config, Slot(dim=DIM, heads=HEADS, max_len=32, causal=causal, where="test", **facts)).double()
    return randomised(model)  # type: ignore[arg-type]


def modules(model: Stack) -> list[RWKV7]:
    return [module for module in model.modules() if isinstance(module, RWKV7)]


STACKS: dict[str, dict[str, Any]] = {
    "causal": {},
    "two ways": {"causal": False},
    "two ways tied": {"causal": False, "mixer": {"name": "rwkv7", "tied": True}},
    "snake": {"causal": False, "mixer": {"name": "rwkv7", "scan": "snake"}, "grid": (3, 4)},
    "hybrid": {"mixer": {"name": "hybrid", "pattern": ["attention", "rwkv7"]}, "depth": 4},
}
stacks = pytest.mark.parametrize("choices", STACKS.values(), ids=STACKS)


def grid_of(choices: dict[str, Any]) -> dict[str, Any]:
    return {"grid": choices["grid"]} if "grid" in choices else {}


@stacks
def test_one_layer_of_a_direction_leads_and_the_others_take_a_share_of_its_values(choices: dict[str, Any]) -> None:
    """A share of 1 leaves nothing of a later layer's own values; what it then holds is the first layer's."""
    model = stack(**choices).eval()
    found = modules(model)
    directions = 2 if choices.get("causal") is False and "tied" not in str(choices) else 1
    leaders = [module for module in found if module.leads]
    assert leaders == found[:directions] and all((m.share is None) == m.leads for m in found)
    assert len(found) > directions
    x, context = rows(length=T), grid_of(choices)
    with torch.no_grad():
        before = model(x, Context(**context))
        for module in found[directions:]:
            module.value.weight.add_(1.0)
        assert (model(x, Context(**context)) - before).abs().max() > 1e-3
        for module in found[directions:]:
            assert module.share is not None
            module.share.up.weight.zero_()
            module.share.up.bias.fill_(50.0)
        shared = model(x, Context(**context))
        for module in found[directions:]:
            module.value.weight.zero_()
        torch.testing.assert_close(model(x, Context(**context)), shared, **fp64)
        for module in leaders:
            module.value.weight.add_(0.1)
        assert (model(x, Context(**context)) - shared).abs().max() > 1e-3


@stacks
def test_checkpointing_gives_the_same_outputs_and_gradients(choices: dict[str, Any]) -> None:
    mask = torch.ones(2, T, dtype=torch.bool)
    mask[0, 5:7] = False
    results = []
    for checkpointing in (False, True):
        model, x = stack(**choices, checkpointing=checkpointing).train(), rows(length=T).requires_grad_()
        y = model(x, Context(token_mask=mask, **grid_of(choices)))
        results.append((y, *torch.autograd.grad(y[mask].square().sum(), [x, *model.parameters()])))
    for plain, recomputed in zip(*results, strict=True):
        assert plain.abs().max() > 0
        torch.testing.assert_close(recomputed, plain, rtol=0, atol=0)


@pytest.mark.parametrize("choices", [STACKS["causal"], STACKS["hybrid"]], ids=["causal", "hybrid"])
def test_a_stack_in_pieces_with_padding_equals_each_row_alone(choices: dict[str, Any]) -> None:
    model, x = stack(**choices).eval(), rows(length=T)
    mask = torch.ones(2, T, dtype=torch.bool)
    mask[0, :3] = mask[1, 5:7] = mask[1, 9] = False
    state, pieces, start = model.init_state(2, T, dtype=torch.float64), [], 0
    for stop in (4, 5, 6, 10, T):
        pieces.append(model(x[:, start:stop], Context(token_mask=mask[:, start:stop]), state))
        start = stop
    together = torch.cat(pieces, 1)
    for row in range(2):
        alone = model(x[row : row + 1, mask[row]], Context())
        torch.testing.assert_close(together[row, mask[row]], alone[0], **fp64)


def test_packed_documents_share_values_with_themselves_alone() -> None:
    model, x = stack().eval(), rows(length=T)
    documents = torch.tensor([[0] * 5 + [1] * 7, [0] * 8 + [1] * 4])
    y = model(x, Context(documents=documents))
    for row, edge in ((0, 5), (1, 8)):
        torch.testing.assert_close(y[row, edge:], model(x[row : row + 1, edge:], Context())[0], **fp64)


def test_without_the_value_residual_a_layer_stands_alone() -> None:
    model = stack({"name": "rwkv7", "value_residual": False})
    assert all(module.share is None for module in modules(model))


def test_a_later_layer_called_alone_says_what_it_lacks() -> None:
    model = stack()
    with pytest.raises(ValueError, match=r"test.1.mixer: needs the values of the stack's first rwkv7 layer"):
        model.blocks[1](rows(), Context())


def test_a_width_of_one_does_not_broadcast() -> None:
    mixer = MixerCase("rwkv7").build(causal=True, dtype=torch.float32)
    with pytest.raises(ValueError, match=rf"x should be of width {DIM}, got \(2, 3, 1\)"):
        mixer(torch.zeros(2, 3, 1), Context())


def test_two_stacks_have_each_their_own_first_layer() -> None:
    """An encoder's values never reach the decoder."""
    choices = {"vocab_size": 12, "max_len": 16, "dim": 16, "depth": 2, "heads": 2}
    model = zoo.create_model("transformer", mixer="rwkv7", cross="attention", **choices)
    leaders = [name for name, module in model.named_modules() if isinstance(module, RWKV7) and module.leads]
    assert len(leaders) == 3 and sum("decoder" in name for name in leaders) == 1  # the encoder reads both ways


def test_large_weights_stay_finite() -> None:
    """A decay leaves at least exp(-exp(-1/2)): the key that reads what stood before it grows by 1.84 at most."""
    mixer = randomised(MixerCase("rwkv7").build(causal=True, dtype=torch.float32))
    with torch.no_grad():
        for weight in mixer.parameters():
            weight.mul_(50.0)
        assert mixer(rows(length=200, dtype=torch.float32), Context()).isfinite().all()


def test_rates_of_forgetting_start_where_they_are_told() -> None:
    for low, high in ((0.0, 16.0), (0.5, 1.0)):
        mixer: Any = zoo.create_mixer("gated_delta", dim=32, heads=16, causal=True, decay_rates=(low, high))
        rates = mixer.decay.A_log.exp()
        assert rates.min() >= low
        assert rates.max() <= high * (1 + 1e-6)  # the rounding of a logarithm and its inverse
    with pytest.raises(zoo.ConfigError, match="the lower rate, then the higher, got 2, 1"):
        zoo.create_mixer("gated_delta", dim=32, heads=2, causal=True, decay_rates=(2.0, 1.0))
