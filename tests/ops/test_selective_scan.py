"""Mamba's selective scan: every form against the loop over time, in outputs, final states and gradients."""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from zoo.ops import selective_scan as op
from zoo.ops.selective_scan import naive_selective_scan, selective_scan, selective_scan_step

HAS_NUMBA = importlib.util.find_spec("numba") is not None
without_numba = pytest.mark.skipif(not HAS_NUMBA, reason="the compiled scan needs numba")
FORMS = ["torch", pytest.param("numba", marks=without_numba), "unrolled"]
KEPT = FORMS[:2]  # those that recompute the states in backward
KEPT_HERE = ["torch", "numba"] if HAS_NUMBA else ["torch"]

Inputs = dict[str, Tensor | None]


@contextmanager
def taking(form: str) -> Iterator[None]:
    """Selective scans by one form, whatever would be chosen here."""
    if form == "unrolled":
        with mock.patch.object(torch.compiler, "is_compiling", return_value=True):
            yield
    else:
        with mock.patch.object(op, "chosen", return_value=form):
            yield


def draw(
    batch: int = 2, length: int = 11, channels: int = 3, states: int = 2, dtype: torch.dtype = torch.float64, seed=0
) -> Inputs:
    g = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    inputs = {
        "x": normal(batch, length, channels),
        "delta": F.softplus(normal(batch, length, channels) - 1),
        "A": -normal(channels, states).exp(),
        "B": normal(batch, length, states),
        "C": normal(batch, length, states),
        "D": normal(channels),
        "state": normal(batch, channels, states),
    }
    return {name: v.to(dtype) for name, v in inputs.items()}


def flags(batch: int, length: int, share: float, seed: int = 5) -> Tensor:
    return torch.rand(batch, length, generator=torch.Generator().manual_seed(seed)) < share


def results(scan: Callable, inputs: Inputs, **options) -> tuple[list[Tensor], list[Tensor]]:
    """Outputs and final state, and the gradients of every input from a weighted sum of both."""
    leaves = {name: None if v is None else v.detach().clone().requires_grad_() for name, v in inputs.items()}
    outputs = scan(**leaves, **options)
    weights = [torch.linspace(-1, 2, y.numel(), dtype=y.dtype, device=y.device).view_as(y) for y in outputs]
    loss = sum((y * w).sum() for y, w in zip(outputs, weights, strict=True))
    wanted = [v for v in leaves.values() if v is not None]
    return [y.detach() for y in outputs], list(torch.autograd.grad(loss, wanted, materialize_grads=True))


def close(ours: list[Tensor], theirs: list[Tensor], tolerance: float) -> None:
    """Equal up to `tolerance` of the largest value, or of 1."""
    for mine, other in zip(ours, theirs, strict=True):
        size = max(1.0, float(other.detach().abs().max()))
        torch.testing.assert_close(mine.to(other.dtype), other, rtol=0, atol=tolerance * size)


def compare(form: str, inputs: Inputs, chunk: int = 4, tolerance: float = 1e-10, **options) -> None:
    exact = {name: None if v is None else v.double() for name, v in inputs.items()}
    with taking(form):
        outputs, grads = results(selective_scan, inputs, chunk=chunk, **options)
    expected, expected_grads = results(naive_selective_scan, exact, **options)
    close(outputs, expected, tolerance)
    close(grads, expected_grads, tolerance)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("length", [1, 2, 4, 8, 11])
@pytest.mark.parametrize("flagged", ["plain", "mask", "starts", "mask_and_starts"])
@pytest.mark.parametrize("form", FORMS)
def test_outputs_states_and_gradients_equal_the_loop(form: str, flagged: str, length: int, dtype: torch.dtype) -> None:
    options = {}
    if "mask" in flagged:
        options["mask"] = flags(2, length, 0.6)
    if "starts" in flagged:
        options["starts"] = flags(2, length, 0.4, seed=6)
    compare(form, draw(length=length, dtype=dtype), tolerance=1e-10 if dtype == torch.float64 else 1e-5, **options)


@pytest.mark.parametrize("left_out", ["D", "state"])
@pytest.mark.parametrize("form", FORMS)
def test_no_skip_and_no_first_state(form: str, left_out: str) -> None:
    compare(form, draw() | {left_out: None})


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=25, deadline=None)
@given(
    batch=st.integers(1, 3),
    length=st.integers(1, 23),
    channels=st.integers(1, 9),
    states=st.integers(1, 4),
    chunk=st.integers(1, 25),
    masked=st.floats(0, 1),
    starting=st.floats(0, 1),
)
def test_any_size_equals_the_loop(form, batch, length, channels, states, chunk, masked, starting) -> None:
    inputs = draw(batch, length, channels, states)
    options = {"mask": flags(batch, length, masked), "starts": flags(batch, length, starting, seed=6)}
    compare(form, inputs, chunk, **options)


@without_numba
def test_blocks_of_channels_on_two_threads_equal_the_loop(monkeypatch) -> None:
    from zoo.ops import compiled
    from zoo.ops.compiled.selective_scan import WIDTH

    monkeypatch.setattr(compiled, "GRAIN", 1)
    torch.set_num_threads(2)
    for batch in (1, 3):
        compare("numba", draw(batch, length=6, channels=WIDTH + 9))


@pytest.mark.parametrize("rate", [-50.0, -1e3, -1e-6], ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_strong_and_weak_decays_equal_the_loop(form: str, dtype: torch.dtype, rate: float) -> None:
    inputs = draw(dtype=dtype)
    inputs |= {"A": torch.full((3, 2), rate, dtype=dtype), "delta": torch.ones(2, 11, 3, dtype=dtype)}
    compare(form, inputs, tolerance=1e-10 if dtype == torch.float64 else 1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_decays_of_all_sizes_side_by_side_equal_the_loop(form: str) -> None:
    inputs = draw(channels=5)
    inputs["delta"] = torch.tensor([0.0, 1e-8, 1e-2, 1.0, 300.0], dtype=torch.float64).expand(2, 11, 5)
    compare(form, inputs)


@pytest.mark.parametrize("form", FORMS)
def test_long_runs_of_zeros(form: str) -> None:
    inputs = draw(batch=1, length=400, dtype=torch.float32)
    inputs["x"] = inputs["x"].index_fill(1, torch.arange(20, 380), 0.0)
    compare(form, inputs, chunk=16, tolerance=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_a_split_anywhere_with_the_state_carried_equals_one_pass(form: str) -> None:
    inputs = draw(dtype=torch.float64)
    mask, starts = flags(2, 11, 0.7), flags(2, 11, 0.3, seed=6)

    def part(first: int, last: int, state: Tensor) -> tuple[Tensor, Tensor]:
        cut = {name: inputs[name][:, first:last] for name in ("x", "delta", "B", "C")}
        kept = {"A": inputs["A"], "D": inputs["D"], "state": state}
        return selective_scan(**cut, **kept, mask=mask[:, first:last], starts=starts[:, first:last], chunk=4)

    with taking(form):
        y, last = part(0, 11, inputs["state"])
        for split in range(1, 11):
            early, state = part(0, split, inputs["state"])
            late, state = part(split, 11, state)
            close([torch.cat([early, late], dim=1), state], [y, last], 1e-12)
        ys, state = [], inputs["state"]
        for t in range(11):
            one, state = part(t, t + 1, state)
            ys.append(one)
        close([torch.cat(ys, dim=1), state], [y, last], 1e-12)


@pytest.mark.parametrize("form", FORMS)
def test_what_masked_tokens_hold_changes_no_bit(form: str) -> None:
    """Known fault 6: padding, here interior, leaks into the state."""
    mask = flags(2, 11, 0.6)
    inputs, noise = draw(dtype=torch.float32), draw(dtype=torch.float32, seed=9)
    swapped = dict(inputs)
    for name in ("x", "delta", "B", "C"):
        swapped[name] = torch.where(mask[..., None], inputs[name], 100 * noise[name].abs())
    with taking(form):
        (y, last), grads = results(selective_scan, inputs, mask=mask, chunk=4)
        (y2, last2), _ = results(selective_scan, swapped, mask=mask, chunk=4)
        (_, stayed), _ = results(selective_scan, inputs, mask=torch.zeros_like(mask), chunk=4)
    assert torch.equal(y[mask], y2[mask])
    assert torch.equal(last, last2)
    assert torch.equal(stayed, inputs["state"])
    assert grads[1][~mask].abs().max() == 0  # of delta


@pytest.mark.parametrize("form", FORMS)
def test_packed_documents_never_see_each_other(form: str) -> None:
    """Known fault 18."""
    inputs = draw(batch=1, length=12, dtype=torch.float32) | {"state": None}
    starts = (torch.arange(12) == 5)[None]
    changed = dict(inputs)
    changed["x"] = inputs["x"].clone()
    changed["x"][:, 4] += 1
    alone = {name: v[:, 5:] if name in ("x", "delta", "B", "C") else v for name, v in inputs.items()}
    with taking(form):
        y, last = selective_scan(**inputs, starts=starts, chunk=4)
        y2, last2 = selective_scan(**changed, starts=starts, chunk=4)
        y3, last3 = selective_scan(**alone, chunk=4)
    assert not torch.equal(y[:, 4], y2[:, 4])
    assert torch.equal(y[:, 5:], y2[:, 5:]) and torch.equal(last, last2)
    close([y[:, 5:], last], [y3, last3], 1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_half_precision_is_computed_in_fp32(form: str) -> None:
    exact = draw(dtype=torch.bfloat16)
    inputs = {name: v.bfloat16() if name in ("x", "delta", "B", "C") else v.float() for name, v in exact.items()}
    with taking(form):
        (y, last), grads = results(selective_scan, inputs, chunk=4)
        want, want_last = selective_scan(**{name: v.float() for name, v in inputs.items()}, chunk=4)
    assert y.dtype == torch.bfloat16 and last.dtype == torch.float32
    assert torch.equal(y, want.bfloat16()) and torch.equal(last, want_last)
    assert [grad.dtype for grad in grads] == [v.dtype for v in inputs.values()]


@pytest.mark.parametrize("form", FORMS)
def test_autocast_changes_nothing(form: str) -> None:
    def scan(**inputs: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return selective_scan(**inputs, chunk=4)

    inputs = draw(dtype=torch.float32)
    with taking(form):
        outputs, grads = results(selective_scan, inputs, chunk=4)
        outputs2, grads2 = results(scan, inputs)
    for one, other in zip(outputs + grads, outputs2 + grads2, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("form", KEPT)
def test_a_backward_under_autocast_is_in_fp32_too(form: str) -> None:
    inputs = draw(dtype=torch.float32)
    with taking(form):
        _, grads = results(selective_scan, inputs, chunk=4)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            _, grads2 = results(selective_scan, inputs, chunk=4)
    for one, other in zip(grads, grads2, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("form", FORMS)
def test_views_of_any_stride_are_read_right(form: str) -> None:
    inputs = draw(dtype=torch.float64)
    views = {name: v if v.dim() < 3 else v.mT.contiguous().mT for name, v in inputs.items()}
    views["x"] = torch.stack([inputs["x"], inputs["x"]], dim=-1)[..., 0]
    with taking(form):
        for ours, theirs in zip(selective_scan(**views, chunk=4), selective_scan(**inputs, chunk=4), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("form", FORMS)
def test_not_a_number_stays_in_its_channel_and_is_seen(form: str) -> None:
    inputs = draw(dtype=torch.float32)
    inputs["x"][0, 3, 1] = math.nan
    with taking(form):
        y, last = selective_scan(**inputs, chunk=4)
    assert y[0, 3:, 1].isnan().all() and last[0, 1].isnan().all()
    assert int(y.isnan().sum()) == 8 and int(last.isnan().sum()) == 2


@pytest.mark.parametrize("form", KEPT)
def test_the_second_derivative_is_right(form: str) -> None:
    inputs = draw(batch=1, length=3, channels=2, states=2)
    starts = torch.tensor([[False, False, True]])
    names, leaves = list(inputs), [v.requires_grad_() for v in inputs.values()]

    def scan(*values: Tensor) -> tuple[Tensor, Tensor]:
        return selective_scan(**dict(zip(names, values, strict=True)), starts=starts, chunk=2)

    with taking(form):
        assert torch.autograd.gradgradcheck(scan, leaves)


@pytest.mark.parametrize("form", KEPT)
def test_backward_keeps_the_inputs_and_the_states_between_chunks(form: str) -> None:
    inputs = draw(length=64, channels=8, states=4, dtype=torch.float32) | {"D": None}
    leaves = {name: None if v is None else v.requires_grad_() for name, v in inputs.items()}
    kept: dict[int, int] = {}

    def pack(x: Tensor) -> Tensor:
        kept[x.data_ptr()] = x.numel()
        return x

    with taking(form), torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        y, _ = selective_scan(**leaves, chunk=16)
    assert y.requires_grad
    own = sum(v.numel() for v in inputs.values() if v is not None)
    assert sum(kept.values()) <= own + 64 // 16 * inputs["state"].numel()


def test_a_hundred_thousand_tokens_step_by_step_stay_finite_and_equal_one_pass() -> None:
    inputs = draw(batch=1, length=1000, channels=2, states=2, dtype=torch.float32)
    inputs["A"] = torch.tensor([[-1e-4, -0.1], [-1.0, -30.0]])
    A, D, state = inputs["A"], inputs["D"], inputs["state"]
    steps = list(zip(*(inputs[name].unbind(1) for name in ("x", "delta", "B", "C")), strict=True))
    many = {name: v.repeat(1, 100, 1) if v.dim() == 3 and name != "state" else v for name, v in inputs.items()}
    with torch.inference_mode():
        for x, delta, B, C in steps * 100:
            y, state = selective_scan_step(x, delta, A, B, C, D, state)
        assert state.isfinite().all()
        for form in KEPT_HERE:
            with taking(form):
                ys, last = selective_scan(**many)
            assert ys.isfinite().all()
            close([state, y], [last, ys[:, -1]], 1e-4)  # what fp32 leaves of 1e5 sums


class Layer(torch.nn.Module):
    """A scan with its own decays, as a mixer has it."""

    def __init__(self) -> None:
        super().__init__()
        self.A = torch.nn.Parameter(-torch.rand(3, 2))

    def forward(self, x: Tensor, delta: Tensor, B: Tensor, C: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        return selective_scan(x, delta, self.A, B, C, mask=mask)


def test_a_module_with_a_scan_can_be_exported() -> None:
    inputs = draw(length=37, dtype=torch.float32)
    arguments = (*(inputs[name] for name in ("x", "delta", "B", "C")), flags(2, 37, 0.7))
    layer = Layer()
    exported = torch.export.export(layer, arguments).module()
    close(list(exported(*arguments)), list(layer(*arguments)), 1e-6)


def test_a_module_with_a_scan_is_one_graph_of_torch_compile() -> None:
    inputs = draw(length=37, dtype=torch.float32)
    arguments = (*(inputs[name] for name in ("x", "delta", "B", "C")), flags(2, 37, 0.7))
    layer = Layer()
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    close(list(compiled(*arguments)), list(layer(*arguments)), 1e-6)


def test_torch_func_sees_through_a_scan() -> None:
    inputs = draw()
    kept = {name: v for name, v in inputs.items() if name != "A"}

    def loss(A: Tensor) -> Tensor:
        return selective_scan(A=A, **kept, chunk=4)[0].square().sum()

    A = inputs["A"].clone().requires_grad_()
    close([torch.func.grad(loss)(inputs["A"])], list(torch.autograd.grad(loss(A), A)), 1e-10)


def test_worked_example_of_three_tokens() -> None:
    """One channel, A = -log 2 and steps of 1: the state halves and takes the input. The skip adds a tenth of it."""
    x = torch.tensor([1.0, 0.0, 4.0]).view(1, 3, 1)
    ones, A = torch.ones(1, 3, 1), torch.tensor([[-math.log(2)]])
    y, state = selective_scan(x, ones, A, ones, ones, torch.tensor([0.1]))
    torch.testing.assert_close(y.flatten(), torch.tensor([1.1, 0.5, 4.65]))
    torch.testing.assert_close(state.flatten(), torch.tensor([4.25]))


@without_numba
def test_the_compiled_power_of_two_is_exact_to_fp32() -> None:
    import numpy as np
    from numba import njit

    from zoo.ops.compiled import selective_scan as compiled

    exp2 = compiled._exp2

    @njit
    def table(z, out):
        for i in range(z.size):
            out[i] = exp2(z[i])

    z = np.linspace(-125, 125, 100_001, dtype=np.float32)
    out = np.empty_like(z)
    table(z, out)
    exact = np.exp2(z.astype(np.float64))
    assert np.max(np.abs(out - exact) / exact) < 2e-7
    special = np.array([0.0, -1e3, -np.inf, np.nan], dtype=np.float32)
    out = np.empty_like(special)
    table(special, out)
    assert out[0] == 1 and 0 <= out[1] < 1e-37 and 0 <= out[2] < 1e-37 and np.isnan(out[3])


def test_the_librarys_layout_and_its_final_state(monkeypatch) -> None:
    """The call of mamba_ssm, with the loop in the kernel's place."""

    def selective_scan_fn(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor) -> Tensor:
        assert u.shape[1] == A.shape[0]
        return naive_selective_scan(u.mT, delta.mT, A, B.mT, C.mT)[0].mT

    names = ("mamba_ssm", "mamba_ssm.ops", "mamba_ssm.ops.selective_scan_interface")
    modules = {name: ModuleType(name) for name in names}
    modules[names[-1]].selective_scan_fn = selective_scan_fn  # type: ignore[attr-defined]
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    compare("mamba_ssm", draw() | {"state": None})
    compare("mamba_ssm", draw() | {"state": None}, mask=flags(2, 11, 0.6))
    compare("mamba_ssm", draw())  # a first state, and documents: not by the library
    compare("mamba_ssm", draw() | {"state": None}, starts=flags(2, 11, 0.4))


@pytest.mark.skipif(
    not torch.cuda.is_available() or importlib.util.find_spec("mamba_ssm") is None,
    reason="mamba_ssm's kernel needs CUDA and the mamba_ssm package",
)
def test_the_librarys_kernel_equals_the_torch_form() -> None:
    inputs = {name: v.cuda() for name, v in draw(length=40, channels=8, states=4, dtype=torch.float32).items()}
    inputs["state"] = None
    with taking("mamba_ssm"):
        outputs, grads = results(selective_scan, inputs)
    with taking("torch"):
        expected, expected_grads = results(selective_scan, inputs)
    close(outputs, expected, 1e-4)
    close(grads, expected_grads, 1e-4)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"x": torch.zeros(2, 0, 3)}, r"x should be \(B, T, C\) with T >= 1 and A \(C, N\), got \(2, 0, 3\)"),
        ({"delta": torch.zeros(2, 11, 1)}, r"delta should be \(2, 11, 3\), got \(2, 11, 1\)"),
        ({"A": torch.zeros(2, 2)}, r"A should be \(3, 2\), got \(2, 2\)"),
        ({"B": torch.zeros(2, 11, 3)}, r"B should be \(2, 11, 2\), got \(2, 11, 3\)"),
        ({"D": torch.zeros(2)}, r"D should be \(3,\), got \(2,\)"),
        ({"state": torch.zeros(2, 2, 3)}, r"state should be \(2, 3, 2\), got \(2, 2, 3\)"),
        ({"mask": torch.ones(2, 10, dtype=torch.bool)}, r"mask should be \(2, 11\), got \(2, 10\)"),
        ({"starts": torch.ones(2, 11)}, r"starts should be of torch.bool, got torch.float32"),
        ({"chunk": 0}, "chunk should be at least 1, got 0"),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(wrong: dict, told: str) -> None:
    with pytest.raises(ValueError, match=f"^selective_scan: {told}") as error:
        selective_scan(**draw() | wrong)
    assert "\n" not in str(error.value)
