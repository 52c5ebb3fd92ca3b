"""The contract of every registered feed-forward, norm, residual connection and position."""

from __future__ import annotations

import copy

import pytest
import torch

import zoo
from tests.parts import DIM, HEADS, rows
from zoo import registry
from zoo.blocks.api import Context, ResidualConfig, Slot
from zoo.blocks.init import materialise
from zoo.blocks.norms import LayerNormConfig, RMSNormConfig
from zoo.ops.rms_norm import naive_rms_norm, rms_norm

DTYPES = [torch.float64, torch.float32, torch.bfloat16]
SLOT = Slot(dim=DIM, heads=HEADS, max_len=64, init_std=0.3, cond_dim=6, grid=(3, 4), prefix=1)
FFN_CHOICES = [
    ("mlp", {}),
    ("mlp", {"activation": "relu"}),
    ("mlp", {"activation": "relu2", "bias": False}),
    ("mlp", {"activation": "gelu_tanh", "hidden": 24}),
    ("swiglu", {"bias": True}),
    ("geglu", {"hidden": 20}),
]
EXPERTS = {"name": "moe", "experts": 4, "expert": {"name": "swiglu", "hidden": 8}}
FFN_VARIANTS: list[dict] = [
    {**EXPERTS, "top_k": 1},
    {**EXPERTS, "top_k": 4, "expert": {"name": "mlp", "hidden": 8}},
    {**EXPERTS, "scores": "sigmoid", "bias_rate": 1e-3, "scale": 2.5, "shared": {"name": "swiglu", "hidden": 8}},
    {**EXPERTS, "shared": "mlp", "shared_gate": True, "weigh": "input"},
    {**EXPERTS, "groups": 2, "z_loss": 1e-3, "normalise": False},
    {**EXPERTS, "capacity": 1.25, "eval_capacity": 2.0},
    {**EXPERTS, "router": "experts"},
    {"name": "hybrid", "pattern": [EXPERTS, "mlp"]},
    {"name": "hybrid", "pattern": ["mlp", EXPERTS], "offset": 1},
    {"name": "hybrid", "pattern": ["mlp"], "first": [EXPERTS]},
]


def build(kind: str, name: str | dict, **choices):
    torch.manual_seed(0)
    config = registry.decode(kind, {"name": name, **choices} if isinstance(name, str) else name)
    if kind == "norm":
        return config.build(DIM)
    return config.build(SLOT, LayerNormConfig()) if kind == "residual" else config.build(SLOT)


def modules(kind: str):
    return [pytest.param(kind, name, id=f"{kind}-{name}") for name in registry.names(kind)]


PARTS = [p for kind in ("ffn", "norm", "residual") for p in modules(kind)]
PARTS += [
    pytest.param("ffn", choices, id=f"ffn-{number}-{choices['name']}") for number, choices in enumerate(FFN_VARIANTS)
]
LIMITED = ("eval_capacity", "router")  # tokens stand in line for an expert
ALONE = [p for p in PARTS if isinstance(p.values[1], str) or not set(LIMITED) & set(p.values[1])]


def call(kind: str, module, x: torch.Tensor) -> torch.Tensor:
    context = Context(cond=torch.linspace(-1, 1, 12, dtype=x.dtype).view(2, 6), grid=(2, 5), prefix=1)
    if kind == "norm":
        return module(x)
    return module(x, lambda h: h * 2 + 1, context) if kind == "residual" else module(x, context)


@pytest.mark.parametrize(("kind", "name"), PARTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_shape_and_dtype_are_kept(kind: str, name: str, dtype: torch.dtype) -> None:
    y = call(kind, build(kind, name).to(dtype), rows(dtype=dtype))
    assert y.shape == (2, 11, DIM) and y.dtype == dtype and y.isfinite().all()


@pytest.mark.parametrize(("kind", "name"), PARTS)
def test_gradients_reach_every_parameter(kind: str, name: str) -> None:
    module, x = build(kind, name).double(), rows().requires_grad_()
    if name == "adaln_zero":  # starts as the identity: move it off its zeros first
        torch.nn.init.normal_(module.modulation.projection.weight)
    weight = torch.randn(2, 11, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    (call(kind, module, x) * weight).sum().backward()
    assert x.grad is not None and x.grad.abs().max() > 0
    for parameter_name, parameter in module.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().max() > 0, parameter_name


@pytest.mark.parametrize(("kind", "name"), ALONE)
def test_tokens_never_mix(kind: str, name: str) -> None:
    module, x = build(kind, name).double().eval(), rows()
    other = x.clone()
    other[:, 4] += 3.0
    difference = (call(kind, module, other) - call(kind, module, x)).abs().amax((0, 2))
    # experts multiply the tokens that chose them together, and their number decides over the order of a sum
    assert difference[4] > 0 and difference[torch.arange(11) != 4].max() < 1e-12


@pytest.mark.parametrize(("kind", "name"), PARTS)
def test_copies_and_meta_builds_start_alike(kind: str, name: str) -> None:
    module = build(kind, name)
    with torch.device("meta"):
        late = build(kind, name)
    materialise(late)
    x = rows(dtype=torch.float32)
    assert torch.equal(call(kind, copy.deepcopy(module), x), call(kind, module, x))
    for a, b in zip(module.parameters(), late.parameters(), strict=True):
        assert a.shape == b.shape
        if a.numel() >= 64:
            torch.testing.assert_close(a.std(), b.std(), rtol=0.45, atol=1e-6)
        elif (a == a.flatten()[0]).all():  # a constant, not a few random numbers
            torch.testing.assert_close(a, b, rtol=0, atol=0)


@pytest.mark.parametrize(("name", "choices"), FFN_CHOICES)
def test_feed_forwards_equal_their_formula(name: str, choices: dict) -> None:
    ffn, x = zoo.create_ffn(name, dim=DIM, init_std=0.3, **choices).double(), rows()
    functions = {
        "gelu": lambda h: 0.5 * h * (1 + torch.erf(h / 2**0.5)),
        "gelu_tanh": lambda h: 0.5 * h * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (h + 0.044715 * h**3))),
        "relu": lambda h: h.clamp(min=0),
        "relu2": lambda h: h.clamp(min=0) ** 2,
        "silu": lambda h: h / (1 + torch.exp(-h)),
    }

    def linear(layer: torch.nn.Linear, h: torch.Tensor) -> torch.Tensor:
        return h @ layer.weight.T + (layer.bias if layer.bias is not None else 0)

    activation = functions[ffn.config.activation]
    hidden = activation(linear(ffn.up, x)) if name == "mlp" else activation(linear(ffn.gate, x)) * linear(ffn.up, x)
    torch.testing.assert_close(ffn(x, Context()), linear(ffn.down, hidden), rtol=0, atol=1e-10)
    with torch.no_grad():  # overwrites its own hidden activations, and nothing else
        before = x.clone()
        torch.testing.assert_close(ffn(x, Context()), linear(ffn.down, hidden), rtol=0, atol=1e-10)
        assert torch.equal(x, before)


def test_gated_width_is_two_thirds_rounded_as_published() -> None:
    def width(dim: int, **choices) -> int:
        return registry.decode("ffn", {"name": "swiglu", **choices}).width(dim)

    assert width(4096, multiple_of=256) == 11008  # Llama 1 and 2, 7B
    assert width(5120, multiple_of=256) == 13824  # 13B
    assert width(4096, multiplier=1.3, multiple_of=1024) == 14336  # Llama 3, 8B
    assert width(8192, multiplier=1.3, multiple_of=4096) == 28672  # Llama 2 and 3, 70B
    plain = sum(p.numel() for p in zoo.create_ffn("mlp", dim=96, bias=False).parameters())
    gated = sum(p.numel() for p in zoo.create_ffn("swiglu", dim=96).parameters())
    assert plain == gated == 8 * 96 * 96


def test_layer_norm_and_rms_norm_equal_their_formula() -> None:
    x = rows() * 3 + 1
    centred = x - x.mean(-1, keepdim=True)
    expected = centred / (centred.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    torch.testing.assert_close(LayerNormConfig().build(DIM).double()(x), expected, rtol=0, atol=1e-10)
    expected = x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    for offset in (False, True):
        norm = RMSNormConfig(unit_offset=offset).build(DIM).double()
        torch.testing.assert_close(norm(x), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_rms_norm_function_equals_its_naive_twin_in_value_and_gradients(dtype: torch.dtype) -> None:
    x, weight = rows(dtype=dtype).requires_grad_(), torch.linspace(-1, 2, DIM, dtype=dtype).requires_grad_()
    atol = 1e-10 if dtype == torch.float64 else 1e-5
    ours, naive = rms_norm(x, weight, 1e-6), naive_rms_norm(x, weight, 1e-6)
    torch.testing.assert_close(ours, naive, rtol=0, atol=atol)
    out = torch.randn(ours.shape, dtype=dtype, generator=torch.Generator().manual_seed(2))
    for a, b in zip(
        torch.autograd.grad((ours * out).sum(), (x, weight)),
        torch.autograd.grad((naive * out).sum(), (x, weight)),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=0, atol=10 * atol)  # the weight's gradient sums 22 rows
    zeros = torch.zeros(2, 3, DIM, dtype=dtype, requires_grad=True)
    (grad,) = torch.autograd.grad(rms_norm(zeros, weight, 1e-6).sum(), zeros)
    assert grad.isfinite().all()


def test_rms_norm_has_a_second_derivative() -> None:
    x, weight = rows(1, 2).requires_grad_(), torch.linspace(-1, 2, DIM, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda a, b: rms_norm(a, b, 1e-6), (x, weight))


def residual(name: str, **facts):
    config: ResidualConfig = registry.decode("residual", name)
    return config.build(SLOT.at(**facts), LayerNormConfig()).double()


def test_residuals_equal_their_formula() -> None:
    x = rows()

    def f(h: torch.Tensor) -> torch.Tensor:
        return h * 2 + 1

    def n(h: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.layer_norm(h, (DIM,), eps=1e-6)

    cond = torch.randn(2, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    expected = {
        "pre": x + f(n(x)),
        "post": n(x + f(x)),
        "res_post": x + n(f(x)),
        "sandwich": x + n(f(n(x))),
        "deepnorm": n((2 * 5) ** 0.25 * x + f(x)),
        "layerscale": x + 1e-4 * f(n(x)),
        "adaln": x + f(n(x)),
        "adaln_zero": x,
    }
    assert set(expected) == set(registry.names("residual"))
    for name, value in expected.items():
        out = residual(name, depth=5)(x, f, Context(cond=cond))
        torch.testing.assert_close(out, value, rtol=0, atol=1e-10, msg=name)
    for name in ("adaln", "adaln_zero"):
        block = residual(name)
        linear = block.modulation.projection
        torch.nn.init.normal_(linear.weight)
        torch.nn.init.normal_(linear.bias)
        made = torch.nn.functional.silu(cond) @ linear.weight.T + linear.bias
        shift, scale, *gate = made[:, None].chunk(3 if name == "adaln_zero" else 2, -1)
        y = f(n(x) * (1 + scale) + shift)
        out = block(x, f, Context(cond=cond))
        torch.testing.assert_close(out, x + (gate[0] * y if gate else y), rtol=0, atol=1e-10)


def test_a_residual_weight_scales_the_branch() -> None:
    x = rows()
    half = residual("pre", branch_weight=0.5)(x, lambda h: h, Context())
    full = residual("pre")(x, lambda h: h, Context())
    torch.testing.assert_close(half - x, (full - x) / 2, rtol=0, atol=1e-12)


def test_stochastic_depth_drops_whole_rows_and_keeps_the_mean() -> None:
    torch.manual_seed(0)
    layer, x = residual("pre", drop_path=0.25).train(), torch.zeros(4000, 1, DIM, dtype=torch.float64)
    added = layer(x, lambda h: torch.ones_like(h), Context())[:, 0]
    kept = (added != 0).all(-1)
    assert torch.equal(kept, (added != 0).any(-1))  # a row goes as a whole
    assert abs(kept.double().mean() - 0.75) < 5 * (0.75 * 0.25 / 4000) ** 0.5
    torch.testing.assert_close(added[kept], torch.full_like(added[kept], 1 / 0.75))
    assert torch.equal(layer.eval()(x, lambda h: torch.ones_like(h), Context()), torch.ones_like(x))


def test_dropout_rate_zero_adds_no_module() -> None:
    assert residual("pre").drop is None


def test_adaln_zero_without_a_condition_is_refused_in_one_line() -> None:
    with pytest.raises(zoo.ConfigError, match=r"needs a condition.*choices"):
        zoo.create_model("vit", image_size=8, patch_size=4, dim=16, depth=1, heads=2, residual="adaln_zero")
