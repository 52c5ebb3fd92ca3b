"""The recurrence: every form against its naive twin, in outputs, final states and the gradients of all inputs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from zoo.ops.recurrence import chunked_recurrence, naive_recurrence, recurrence, recurrence_step

B, T, H, K, V = 2, 19, 2, 3, 5
DECAYS = ("none", "head", "token", "channel")
RULES = ("plain", "low_rank", "delta")
FORMS = ("torch", "numba")
Inputs = dict[str, Tensor]


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every test that takes it runs once in PyTorch and once in compiled loops."""
    use(request.param, monkeypatch)
    return request.param


def use(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if form == "numba":
        pytest.importorskip("numba", reason="compiled loops need numba: pip install 'architecture-zoo[fast]'")
        monkeypatch.delenv("ZOO_KERNELS", raising=False)
    else:
        monkeypatch.setenv("ZOO_KERNELS", "torch")


def draw(
    decay: str = "token",
    rule: str = "plain",
    *,
    batch: int = B,
    length: int = T,
    heads: int = H,
    groups: int = H,
    keys: int = K,
    values: int = V,
    strength: float = 1.0,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> Inputs:
    """Leaves of every tensor input; `strength` scales log decays."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def unit(*shape: int) -> Tensor:
        return F.normalize(normal(*shape), dim=-1)

    shapes = {"head": (heads,), "token": (batch, length, heads), "channel": (batch, length, heads, keys)}
    x = {
        "q": normal(batch, length, groups, keys),
        "k": unit(batch, length, groups, keys),
        "v": normal(batch, length, heads, values),
        "state": normal(batch, heads, keys, values),
    }
    if decay != "none":
        x["decay"] = -strength * torch.rand(shapes[decay], generator=generator, dtype=torch.float64)
    if rule == "low_rank":  # of norm at most 1, as in RWKV-7
        x["a"] = unit(batch, length, heads, keys) * 0.9
        x["b"] = unit(batch, length, heads, keys)
    if rule == "delta":  # write strengths up to 2, a key that is repeated and one that is zero
        key = unit(batch, length, heads, keys)
        key[:, 1::3] = key[:, :1]
        key[:, 2::7] = 0.0
        strong = 2.0 * torch.rand(batch, length, heads, 1, generator=generator, dtype=torch.float64)
        x["a"], x["b"] = -strong * key, key
    return {name: value.to(dtype).requires_grad_() for name, value in x.items()}


def outcome(function: Callable[..., tuple[Tensor, Tensor]], x: Inputs, **options) -> list[Tensor]:
    """Outputs, the final state, and the gradients of all inputs under one fixed weighting of both."""
    out, final = function(**x, **options)
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(y.shape, generator=generator, dtype=torch.float64).to(y.dtype) for y in (out, final)]
    loss = (out * weights[0]).sum() + (final * weights[1]).sum()
    return [out, final, *torch.autograd.grad(loss, list(x.values()), materialize_grads=True)]


def compare(x: Inputs, atol: float = 1e-10, chunk: int = 8, **options) -> None:
    got, wanted = outcome(recurrence, x, chunk=chunk, **options), outcome(naive_recurrence, x, **options)
    for name, mine, theirs in zip(["out", "final", *x], got, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=atol, atol=atol, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("decay", DECAYS)
def test_outputs_states_and_gradients_equal_the_naive_twin(form: str, decay: str, rule: str) -> None:
    compare(draw(decay, rule))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("decay", DECAYS)
def test_padding_inside_and_documents_equal_the_naive_twin(form: str, decay: str, rule: str) -> None:
    mask = torch.ones(B, T, dtype=torch.bool)
    mask[0, :3] = mask[0, 9:12] = mask[1, 5:] = False
    starts = torch.zeros(B, T, dtype=torch.bool)
    starts[0, [4, 10, 13, 14]] = starts[1, [0, 2, 8]] = True  # some of them at padding, which does nothing
    compare(draw(decay, rule), mask=mask, starts=starts)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("decay", DECAYS)
def test_heads_that_share_queries_and_keys_equal_the_naive_twin(form: str, decay: str, rule: str) -> None:
    compare(draw(decay, rule, heads=4, groups=2, length=11))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("decay", DECAYS)
def test_single_precision_is_exact_to_its_rounding(form: str, decay: str, rule: str) -> None:
    double = draw(decay, rule, keys=16, values=16, length=24)
    single = {name: value.detach().float().requires_grad_() for name, value in double.items()}
    double = {name: value.detach().double().requires_grad_() for name, value in single.items()}
    got, wanted = outcome(recurrence, single, chunk=16), outcome(naive_recurrence, double)
    for name, mine, theirs in zip(["out", "final", *single], got, wanted, strict=True):
        assert mine.dtype == torch.float32
        error = (mine - theirs).abs().max() / theirs.abs().max()
        assert error < 1e-5, f"{name}: {error}"


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    form=st.sampled_from(FORMS),
    decay=st.sampled_from(DECAYS),
    rule=st.sampled_from(RULES),
    sizes=st.tuples(*[st.integers(1, n) for n in (2, 37, 2, 2, 4, 4)]),
    chunk=st.integers(1, 20),
    strength=st.sampled_from([1e-6, 1.0, 50.0, 1e4]),
    flags=st.sampled_from([(), ("mask",), ("starts",), ("mask", "starts")]),
    seed=st.integers(0, 99),
)
def test_any_sizes_and_chunks_equal_the_naive_twin(
    form: str,
    decay: str,
    rule: str,
    sizes: tuple[int, ...],
    chunk: int,
    strength: float,
    flags: tuple[str, ...],
    seed: int,
) -> None:
    batch, length, groups, shared, keys, values = sizes
    x = draw(
        decay,
        rule,
        batch=batch,
        length=length,
        heads=groups * shared,
        groups=groups,
        keys=keys,
        values=values,
        strength=strength,
        seed=seed,
    )
    generator = torch.Generator().manual_seed(seed)
    likely = {"mask": 0.7, "starts": 0.2}
    options = {name: torch.rand(batch, length, generator=generator) < likely[name] for name in flags}
    with pytest.MonkeyPatch.context() as patch:
        use(form, patch)
        compare(x, chunk=chunk, **options)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("decay", ["token", "channel"])
def test_decays_of_any_strength_equal_the_naive_twin(form: str, decay: str, rule: str) -> None:
    x = draw(decay, rule)
    values = torch.tensor([0.0, -1e-6, -0.3, -50.0, -1e4, -torch.inf], dtype=torch.float64)
    choice = torch.randint(len(values), x["decay"].shape, generator=torch.Generator().manual_seed(2))
    x["decay"] = values[choice].requires_grad_()
    compare(x)
    assert all(grad.isfinite().all() for grad in outcome(recurrence, x, chunk=8))


@pytest.mark.parametrize("rule", RULES)
def test_what_padding_holds_changes_no_bit(form: str, rule: str) -> None:
    mask = torch.rand(B, T, generator=torch.Generator().manual_seed(3)) < 0.6
    mask[0, 7] = mask[1, 8] = False
    first = draw("channel", rule, dtype=torch.float32)
    other = draw("channel", rule, dtype=torch.float32, seed=5)
    second = {
        name: value if name == "state" else torch.where(mask.view(B, T, 1, 1), value, other[name])
        for name, value in first.items()
    }
    out, final = recurrence(**first, mask=mask, chunk=8)
    noisy, last = recurrence(**second, mask=mask, chunk=8)
    assert torch.equal(out[mask], noisy[mask])
    assert torch.equal(final, last)


def test_masked_tokens_leave_the_state_as_it_is_to_the_bit(form: str) -> None:
    x = draw("channel", "delta", dtype=torch.float32)
    _, final = recurrence(**x, mask=torch.zeros(B, T, dtype=torch.bool), chunk=8)
    assert torch.equal(final, x["state"])


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("decay", DECAYS)
def test_any_split_with_the_carried_state_equals_one_pass(form: str, decay: str, rule: str) -> None:
    x = {name: value.detach() for name, value in draw(decay, rule).items()}
    starts = torch.zeros(B, T, dtype=torch.bool)
    starts[:, [6, 16]] = True
    whole, final = recurrence(**x, starts=starts, chunk=8)
    state = x.pop("state")

    def part(tokens: slice, state: Tensor) -> tuple[Tensor, Tensor]:
        rows = {name: value if value.dim() == 1 else value[:, tokens] for name, value in x.items()}
        return recurrence(**rows, state=state, starts=starts[:, tokens], chunk=8)

    for place in range(1, T):
        head, carried = part(slice(place), state)
        tail, last = part(slice(place, None), carried)
        torch.testing.assert_close(torch.cat([head, tail], dim=1), whole, rtol=0, atol=1e-10)
        torch.testing.assert_close(last, final, rtol=0, atol=1e-10)
    steps, carried = [], state
    for t in range(T):
        out, carried = part(slice(t, t + 1), carried)
        steps.append(out)
    torch.testing.assert_close(torch.cat(steps, dim=1), whole, rtol=0, atol=1e-10)
    torch.testing.assert_close(carried, final, rtol=0, atol=1e-10)


@pytest.mark.parametrize("length", [1, 9])
def test_half_precision_is_computed_in_single_precision(form: str, length: int) -> None:
    half = {name: x.detach().bfloat16() for name, x in draw("token", "delta", length=length).items()}
    half["state"] = half["state"].float()
    out, final = recurrence(**half)
    wanted, last = recurrence(**{name: x.float() for name, x in half.items()})
    assert (out.dtype, final.dtype) == (torch.bfloat16, torch.float32)
    assert torch.equal(out, wanted.bfloat16()) and torch.equal(final, last)


def test_autocast_changes_nothing(form: str) -> None:
    x = {name: value.detach() for name, value in draw("token", "delta", dtype=torch.float32).items()}
    wanted = recurrence(**x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = recurrence(**x)
    assert all(torch.equal(mine, other) for mine, other in zip(got, wanted, strict=True))


def test_no_state_is_a_state_of_zeros(form: str) -> None:
    x = draw("token", "delta")
    del x["state"]
    zeros = torch.zeros(B, H, K, V, dtype=torch.float64)
    for mine, other in zip(recurrence(**x), recurrence(**x, state=zeros), strict=True):
        assert torch.equal(mine, other)


def test_inputs_of_any_strides_give_the_same_bits(form: str) -> None:
    x = {name: value.detach() for name, value in draw("channel", "delta", dtype=torch.float32).items()}
    strided = {name: value.transpose(1, -1).contiguous().transpose(1, -1) for name, value in x.items()}
    assert not strided["v"].is_contiguous()
    for mine, other in zip(recurrence(**strided), recurrence(**x), strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-6)


def test_a_key_that_is_overwritten_is_recalled_by_hand(form: str) -> None:
    """The delta rule at strength 1: the second value of a key replaces the first; a decay of one half halves it."""
    k = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]], dtype=torch.float64).view(1, 3, 1, 2)
    v = torch.tensor([5.0, 7.0, 0.0], dtype=torch.float64).view(1, 3, 1, 1)
    q = torch.tensor([1.0, 0.0], dtype=torch.float64).expand(1, 3, 1, 2)
    decay = torch.tensor([1.0, 1.0, 0.5], dtype=torch.float64).log().view(1, 3, 1)
    out, final = recurrence(q, k, v, decay, -k, k)
    torch.testing.assert_close(out.flatten(), torch.tensor([5.0, 7.0, 3.5], dtype=torch.float64), rtol=0, atol=1e-12)
    torch.testing.assert_close(final.flatten(), torch.tensor([3.5, 0.0], dtype=torch.float64), rtol=0, atol=1e-12)


def test_low_rank_writes_read_the_state_after_its_decay(form: str) -> None:
    """One token: S = P + a (b' P) with P = exp(g) S_0, by hand in numbers."""
    state = torch.tensor([[2.0]], dtype=torch.float64).view(1, 1, 1, 1)
    one = torch.ones(1, 2, 1, 1, dtype=torch.float64)
    decay = torch.full((1, 2, 1), 0.5, dtype=torch.float64).log()
    out, _ = recurrence(one, one * 0, one, decay, one * 3, one * 4, state=state)
    assert out.flatten().tolist() == pytest.approx([13.0, 84.5])  # 1 + 3 * 4 * 1, then half of it times 13


def test_nan_in_is_nan_out(form: str) -> None:
    x = {name: value.detach() for name, value in draw("token", "delta").items()}
    x["v"][0, 5, 1, 2] = torch.nan
    out, final = recurrence(**x, chunk=8)
    assert out[0, 5:, 1, 2].isnan().all() and final[0, 1, :, 2].isnan().any()
    assert out[1].isfinite().all() and out[0, :, 0].isfinite().all()


def test_compiled_loops_use_threads_and_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    use("numba", monkeypatch)
    from zoo.ops import compiled

    x = draw("channel", "delta", batch=3)
    alone = outcome(recurrence, x)
    monkeypatch.setattr(compiled, "GRAIN", 1)
    torch.set_num_threads(3)
    for mine, other in zip(outcome(recurrence, x), alone, strict=True):
        assert torch.equal(mine, other)


def test_compiled_loops_refuse_a_second_derivative(monkeypatch: pytest.MonkeyPatch) -> None:
    use("numba", monkeypatch)
    x = draw()
    out, _ = recurrence(**x)
    with pytest.raises(RuntimeError, match="ZOO_KERNELS=torch"):
        torch.autograd.grad(out.sum(), x["q"], create_graph=True)


def test_second_derivatives_in_torch_are_those_of_the_naive_twin(monkeypatch: pytest.MonkeyPatch) -> None:
    use("torch", monkeypatch)
    x = draw("token", "delta", batch=1, length=5, heads=1, groups=1)

    def second(function: Callable[..., tuple[Tensor, Tensor]]) -> Tensor:
        (slope,) = torch.autograd.grad(function(**x)[0].square().sum(), x["decay"], create_graph=True)
        return torch.autograd.grad(slope.square().sum(), x["k"])[0]

    torch.testing.assert_close(second(recurrence), second(naive_recurrence), rtol=0, atol=1e-9)


def test_vmap_and_functional_gradients_take_the_form_made_of_matrix_products() -> None:
    x = {name: value.detach() for name, value in draw("token", "delta", length=6).items()}
    many = torch.stack([x["v"], 2.0 * x["v"]])
    out = torch.func.vmap(lambda v: recurrence(**{**x, "v": v})[0])(many)
    torch.testing.assert_close(out[1], recurrence(**{**x, "v": many[1]})[0], rtol=0, atol=1e-10)
    slope = torch.func.grad(lambda q: recurrence(**{**x, "q": q})[0].sum())(x["q"])
    assert slope.shape == x["q"].shape


@pytest.mark.parametrize("rule", ["plain", "delta"])
def test_compile_and_export_need_no_graph_break(rule: str) -> None:
    x = {name: value.detach() for name, value in draw("channel", rule, dtype=torch.float32).items()}
    mask, starts = torch.ones(B, T, dtype=torch.bool), torch.zeros(B, T, dtype=torch.bool)
    mask[0, :2], starts[:, 9] = False, True

    class Module(torch.nn.Module):
        def forward(self, x: Inputs) -> tuple[Tensor, Tensor]:
            return recurrence(**x, mask=mask, starts=starts, chunk=8)

    wanted = Module()(x)
    compiled = torch.compile(Module(), backend="eager", fullgraph=True)(x)
    exported = torch.export.export(Module(), (x,)).module()(x)
    for got in (compiled, exported):
        for mine, other in zip(got, wanted, strict=True):
            torch.testing.assert_close(mine, other, rtol=0, atol=1e-5)


def test_a_step_and_a_chunk_are_callable_on_their_own() -> None:
    x = {name: value.detach() for name, value in draw("token", "delta").items()}
    out, state = chunked_recurrence(*(x[n] for n in ("q", "k", "v", "decay", "a", "b", "state")), 8)
    y, carried = [], x["state"]
    for t in range(T):
        one, carried = recurrence_step(*(x[n][:, t] for n in ("q", "k", "v", "decay", "a", "b")), carried)
        y.append(one)
    torch.testing.assert_close(torch.stack(y, dim=1), out, rtol=0, atol=1e-10)
    torch.testing.assert_close(carried, state, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("name", "shape", "told"),
    [
        ("q", (B, T, 3, K), "H a multiple of G"),
        ("v", (B, 0, H, V), "T >= 1"),
        ("k", (B, T, H, K + 1), "k should be (2, 19, 2, 3), got (2, 19, 2, 4)"),
        ("decay", (B, T), "decay should be (2,) or (2, 19, 2) or (2, 19, 2, 3), got (2, 19)"),
        ("state", (B, H, V, K), "state should be (2, 2, 3, 5), got (2, 2, 5, 3)"),
        ("mask", (B, T, 1), "mask should be (2, 19), got (2, 19, 1)"),
        ("a", (B, T, H, 1), "a should be (2, 19, 2, 3), got (2, 19, 2, 1)"),
    ],
)
def test_shapes_that_do_not_fit_are_refused_in_one_line(name: str, shape: tuple[int, ...], told: str) -> None:
    with pytest.raises(ValueError) as caught:
        recurrence(**{**draw("token", "delta"), name: torch.zeros(shape)})
    assert told in str(caught.value) and "\n" not in str(caught.value)


def test_a_without_b_is_refused() -> None:
    x = draw("token", "delta")
    del x["b"]
    with pytest.raises(ValueError, match="a and b belong together"):
        recurrence(**x)


def test_compiled_loops_run_after_a_fork(root, monkeypatch: pytest.MonkeyPatch) -> None:
    """A forked process has none of its parent's threads, and makes its own."""
    use("numba", monkeypatch)
    code = (
        "import os, torch; from zoo.ops import compiled; from zoo.ops.recurrence import recurrence\n"
        "compiled.GRAIN = 1; torch.set_num_threads(2); x = torch.randn(2, 9, 2, 4); recurrence(x, x, x)\n"
        "child = os.fork()\n"
        "if not child: recurrence(x, x, x); os._exit(0)\n"
        "print(os.waitpid(child, 0)[1])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, timeout=120)
    assert run.stdout.split() == ["0"], run.stderr
