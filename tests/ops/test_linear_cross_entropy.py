"""Chunked linear cross-entropy against its naive twin and torch's plain form: values, gradients, memory, refusals."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from zoo.ops.linear_cross_entropy import (
    linear_cross_entropy,
    linear_cross_entropy_score,
    naive_linear_cross_entropy,
)

N, D, V = 11, 5, 13


def draw(dtype: torch.dtype = torch.float64, tokens: int = N) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    x, w, b = (torch.randn(*s, generator=g, dtype=torch.float64).to(dtype) for s in ((tokens, D), (V, D), (V,)))
    return x.requires_grad_(), w.requires_grad_(), torch.randint(0, V, (tokens,), generator=g), b.requires_grad_()


def plain(x: Tensor, w: Tensor, y: Tensor, b: Tensor | None, *, soft_cap: float | None = None, **options) -> Tensor:
    logits = F.linear(x, w, b)
    logits = logits if soft_cap is None else soft_cap * torch.tanh(logits / soft_cap)
    return F.cross_entropy(logits, y, reduction="sum", **options)


IGNORED = {"none": [], "ends": [0, N - 1], "a whole chunk": [4, 5, 6, 7], "all but one": list(range(1, N))}


@pytest.mark.parametrize("ignored", IGNORED)
@pytest.mark.parametrize(
    ("smoothing", "cap", "biased"), list(itertools.product([0.0, 0.1, 1.0], [None, 2.0], [True, False]))
)
def test_value_and_gradients_equal_both_twins(ignored: str, smoothing: float, cap: float | None, biased: bool) -> None:
    x, w, y, b = draw()
    y[IGNORED[ignored]] = -100
    bias = b if biased else None
    leaves = [x, w, b] if biased else [x, w]
    options = {"label_smoothing": smoothing, "soft_cap": cap}
    want = plain(x, w, y, bias, **options)
    torch.testing.assert_close(naive_linear_cross_entropy(x, w, y, bias, **options), want, rtol=0, atol=1e-10)
    expected = torch.autograd.grad(want * 0.7, leaves)
    for chunk in (1, 4, N, 100, None):
        got = linear_cross_entropy(x, w, y, bias, chunk=chunk, **options)
        torch.testing.assert_close(got, want, rtol=0, atol=1e-10)
        for mine, theirs in zip(torch.autograd.grad(got * 0.7, leaves), expected, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-10)


def test_another_ignored_id_counts_nothing() -> None:
    x, w, y, b = draw()
    y[3:6] = 0
    got = linear_cross_entropy(x, w, y, b, ignore_index=0, chunk=4)
    torch.testing.assert_close(got, plain(x, w, y, b, ignore_index=0), rtol=0, atol=1e-10)


@pytest.mark.parametrize("tokens", [0, N])
def test_no_real_target_gives_zero_with_zero_gradients(tokens: int) -> None:
    x, w, y, b = draw(tokens=tokens)
    y.fill_(-100)
    for chunk in (4, None):
        loss = linear_cross_entropy(x, w, y, b, chunk=chunk, label_smoothing=0.1)
        assert loss.item() == 0.0
        for leaf, grad in zip((x, w, b), torch.autograd.grad(loss, (x, w, b)), strict=True):
            assert torch.equal(grad, torch.zeros_like(leaf))


def test_logits_far_apart_stay_finite() -> None:
    x = torch.tensor([[1.0], [1.0]], requires_grad=True)
    w = torch.tensor([[0.0], [200.0], [-200.0]], requires_grad=True)
    loss = linear_cross_entropy(x, w, torch.tensor([2, 1]), chunk=1)
    assert loss.item() == 400.0
    assert all(grad.isfinite().all() for grad in torch.autograd.grad(loss, (x, w)))


@pytest.mark.parametrize("needs", [(True, False, False), (False, True, False), (False, False, True)])
def test_frozen_parts_get_no_gradient(needs: tuple[bool, bool, bool]) -> None:
    x, w, y, b = draw()
    leaves = [t.requires_grad_(need) for t, need in zip((x, w, b), needs, strict=True)]
    (moving,) = [t for t in leaves if t.requires_grad]
    (expected,) = torch.autograd.grad(plain(x, w, y, b), [moving])
    linear_cross_entropy(x, w, y, b, chunk=4).backward()
    assert [t.grad is not None for t in leaves] == list(needs)
    torch.testing.assert_close(moving.grad, expected, rtol=0, atol=1e-10)


def test_without_gradients_nothing_is_recorded() -> None:
    x, w, y, b = draw()
    with torch.no_grad():
        loss = linear_cross_entropy(x, w, y, b, chunk=4)
    assert not loss.requires_grad
    torch.testing.assert_close(loss, plain(x, w, y, b).detach(), rtol=0, atol=1e-10)


def test_a_tied_table_gathers_both_gradients_once() -> None:
    _, w, y, _ = draw()
    ids = torch.randint(0, V, (N,), generator=torch.Generator().manual_seed(1))
    (expected,) = torch.autograd.grad(plain(F.embedding(ids, w), w, y, None), [w])
    for _ in range(2):
        linear_cross_entropy(F.embedding(ids, w), w, y, chunk=4).backward()
    torch.testing.assert_close(w.grad, 2 * expected, rtol=0, atol=1e-10)


def test_a_retained_graph_gives_the_same_gradients_again() -> None:
    x, w, y, b = draw()
    loss = linear_cross_entropy(x, w, y, b, chunk=4)
    first = torch.autograd.grad(loss, (x, w, b), grad_outputs=torch.tensor(0.0).double(), retain_graph=True)
    assert all(grad.abs().max() == 0 for grad in first)
    expected = torch.autograd.grad(plain(x, w, y, b), (x, w, b))
    for mine, theirs in zip(torch.autograd.grad(loss, (x, w, b)), expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-10)


def test_a_second_derivative_is_refused() -> None:
    x, w, y, b = draw()
    with pytest.raises(RuntimeError, match="no second derivative") as error:
        torch.autograd.grad(linear_cross_entropy(x, w, y, b, chunk=4), (x,), create_graph=True)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2), (torch.float16, 3e-3)])
def test_low_precision_keeps_statistics_in_fp32(dtype: torch.dtype, bound: float) -> None:
    """Relative error of the largest entry: a few units in the last place of the inputs' dtype."""
    x, w, y, b = draw(dtype)
    wide = [t.detach().double().requires_grad_() for t in (x, w, b)]
    want = plain(wide[0], wide[1], y, wide[2])
    expected = torch.autograd.grad(want, wide)
    for chunk in (4, N):
        got = linear_cross_entropy(x, w, y, b, chunk=chunk)
        assert got.dtype == torch.float32
        torch.testing.assert_close(got.double(), want, rtol=bound, atol=0)
        for mine, theirs in zip(torch.autograd.grad(got, (x, w, b)), expected, strict=True):
            assert mine.dtype == dtype
            assert (mine.double() - theirs).abs().max() <= bound * theirs.abs().max()


def test_autocast_multiplies_in_its_dtype_and_sums_in_fp32() -> None:
    x, w, y, b = draw(torch.float32)
    want = linear_cross_entropy(x, w, y, b, chunk=4)
    expected = torch.autograd.grad(want, (x, w, b))
    for chunk in (4, N, None):
        with torch.autocast("cpu", torch.bfloat16):
            got = linear_cross_entropy(x, w, y, b, chunk=chunk)
        assert got.dtype == torch.float32
        assert got.item() != want.item()  # the products were rounded
        torch.testing.assert_close(got, want, rtol=2e-2, atol=0)
        for mine, theirs in zip(torch.autograd.grad(got, (x, w, b)), expected, strict=True):
            assert mine.dtype == torch.float32
            assert (mine - theirs).abs().max() <= 2e-2 * theirs.abs().max()


class _Largest(TorchDispatchMode):
    """The most entries that any result of an operator had."""

    entries = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(value, Tensor):
                self.entries = max(self.entries, value.numel())
        return result


@pytest.mark.parametrize("options", [{}, {"soft_cap": 2.0, "label_smoothing": 0.1}])
def test_no_tensor_of_all_logits_is_ever_made(options: dict) -> None:
    tokens, chunk = 64, 8
    x, w, y, b = draw(tokens=tokens)
    with _Largest() as mode:
        linear_cross_entropy(x, w, y, b, chunk=chunk, **options).backward()
        linear_cross_entropy_score(x, w, y, b, chunk=chunk, **options)
    assert mode.entries <= max(chunk * V, tokens * D) < tokens * V
    with _Largest() as mode:
        plain(x, w, y, b, **options).backward()
    assert mode.entries >= tokens * V  # the measure sees the plain form's logits


def test_the_score_is_the_loss_and_the_number_of_right_predictions() -> None:
    x, w, y, b = draw()
    with torch.no_grad():
        y[:4] = F.linear(x, w, b).argmax(1)[:4]
    y[2] = -100
    loss, correct = linear_cross_entropy_score(x, w, y, b, chunk=4)
    torch.testing.assert_close(loss, plain(x, w, y, b).detach(), rtol=0, atol=1e-10)
    assert correct.item() == (F.linear(x, w, b).argmax(1) == y).sum().item() >= 3
    zero = linear_cross_entropy_score(x, torch.zeros_like(w), torch.arange(N), chunk=4)[1]
    assert zero.item() <= 1  # equal logits are one prediction, not all


def test_mistakes_are_told() -> None:
    x, w, y, b = draw()
    with pytest.raises(ValueError, match="label_smoothing"):
        linear_cross_entropy(x, w, y, b, label_smoothing=1.5)
    with pytest.raises(ValueError, match="chunk"):
        linear_cross_entropy(x, w, y, b, chunk=0)
    y[0] = V
    for chunk in (4, None):
        with pytest.raises((IndexError, RuntimeError), match="out of"):
            linear_cross_entropy(x, w, y, b, chunk=chunk)
