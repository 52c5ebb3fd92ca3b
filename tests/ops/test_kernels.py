"""Which path an operator takes, what `zoo list kernels` says of it, and the adapter of a library that needs CUDA."""

from __future__ import annotations

import sys
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from tests.ops.test_recurrence import DECAYS, RULES, draw, outcome
from zoo import __main__ as verbs
from zoo.ops import kernels
from zoo.ops.kernels import KERNELS, chosen, explain
from zoo.ops.recurrence import naive_recurrence, recurrence

CPU, CUDA, META = torch.device("cpu"), torch.device("cuda"), torch.device("meta")


@pytest.fixture
def all_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ZOO_KERNELS", raising=False)
    monkeypatch.setattr(kernels, "_trouble", lambda module: "")


@pytest.mark.parametrize(
    ("operator", "device", "dtype", "path"),
    [
        ("recurrence", CPU, torch.float32, "numba"),
        ("recurrence", CPU, torch.bfloat16, "numba"),
        ("recurrence", CUDA, torch.bfloat16, "fla"),
        ("recurrence", CUDA, torch.float32, "torch"),
        ("recurrence", META, torch.float32, "torch"),
        ("selective_scan", CPU, torch.float64, "numba"),
        ("selective_scan", CUDA, torch.float32, "mamba_ssm"),
        ("selective_scan", CUDA, torch.float64, "torch"),
    ],
)
@pytest.mark.usefixtures("all_installed")
def test_the_device_of_the_tensors_decides(operator: str, device: torch.device, dtype: torch.dtype, path: str) -> None:
    assert chosen(operator, device, dtype) == path


@pytest.mark.usefixtures("all_installed")
def test_the_switch_is_read_at_every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen("recurrence", CPU, torch.float32) == "numba"
    monkeypatch.setenv("ZOO_KERNELS", "torch")
    assert chosen("recurrence", CPU, torch.float32) == "torch"
    assert {path for _, _, path, _ in explain()} == {"torch"}
    monkeypatch.setenv("ZOO_KERNELS", "triton")
    with pytest.raises(ValueError, match="ZOO_KERNELS should be 'torch' or not be set, got 'triton'"):
        chosen("recurrence", CPU, torch.float32)


def test_what_is_not_installed_is_not_taken_and_the_list_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ZOO_KERNELS", raising=False)
    monkeypatch.setitem(sys.modules, "numba", None)
    kernels._trouble.cache_clear()
    try:
        assert chosen("recurrence", CPU, torch.float32) == "torch"
        assert ("recurrence", "cpu", "torch") in {row[:3] for row in explain()}
        assert "pip install 'architecture-zoo[fast]'" in " ".join(why for *_, why in explain())
    finally:
        kernels._trouble.cache_clear()


def test_every_entry_is_listed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZOO_KERNELS", "torch")
    assert verbs.main(["list", "kernels"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + len(KERNELS)
    for kernel, line in zip(KERNELS, lines[1:], strict=True):
        assert line.split() == [kernel.operator, "on", kernel.device, "torch:", "ZOO_KERNELS=torch"]


def test_compiled_loops_are_kept_for_the_next_process() -> None:
    pytest.importorskip("numba", reason="compiled loops need numba: pip install 'architecture-zoo[fast]'")
    from zoo.ops.compiled import compiled

    for _ in range(2):
        compiled.cache_clear()
        kernel = compiled(_doubled, torch.float32, 1, 1)
    assert sum(kernel.stats.cache_hits.values()) == 1  # type: ignore[attr-defined]
    x, y = torch.arange(3.0), torch.zeros(3)
    kernel(1, 3, x.numpy(), y.numpy())
    assert y.tolist() == [0.0, 2.0, 4.0]


def test_compiled_loops_work_where_no_folder_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba", reason="compiled loops need numba: pip install 'architecture-zoo[fast]'")
    from zoo.ops import compiled

    def without_folders(*signature, cache: bool = False, **options):
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return njit(*signature, **options)

    njit = compiled.njit
    monkeypatch.setattr(compiled, "njit", without_folders)
    kernel = compiled.compiled.__wrapped__(_doubled, torch.float64, 1, 1)
    x, y = torch.arange(3.0, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    kernel(0, 3, x.numpy(), y.numpy())
    assert y.tolist() == [0.0, 2.0, 4.0]


def _doubled(first, last, x, y):
    for i in range(first, last):
        y[i] = 2 * x[i]


def library(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The three functions of flash-linear-attention, as it documents them, by loops; returns what was called."""
    called: list[str] = []

    def run(name: str, q, k, v, g, a, b, scale, initial_state, output_final_state, cu_seqlens) -> tuple[Tensor, Tensor]:
        called.append(name)
        assert output_final_state and initial_state.dtype == torch.float32
        assert {x.dtype for x in (q, k, v, a, b) if x is not None} == {v.dtype}
        q, k, v, a, b = (None if x is None else x.float() for x in (q, k, v, a, b))
        bounds = [0, q.shape[1]] if cu_seqlens is None else cu_seqlens.tolist()
        outs, finals = [], []
        for n, (start, end) in enumerate(pairwise(bounds)):
            S = initial_state if cu_seqlens is None else initial_state[n : n + 1]
            for t in range(start, end):
                read = 0 if a is None else b[:, t, :, :, None] * (a[:, t, :, None] @ S)
                w = 1 if g is None else g[:, t].exp().view(*g.shape[:1], g.shape[2], -1, 1)
                S = w * S + read + k[:, t, :, :, None] * v[:, t, :, None]
                outs.append(scale * (q[:, t, :, None] @ S)[:, :, 0])
            finals.append(S)
        return torch.stack(outs, dim=1), torch.cat(finals)

    def chunk_simple_gla(
        q, k, v, g=None, g_gamma=None, scale=None, initial_state=None, output_final_state=False, cu_seqlens=None
    ):
        assert g is None or g.shape == q.shape[:3]
        return run("simple_gla", q, k, v, g, None, None, scale, initial_state, output_final_state, cu_seqlens)

    def chunk_gla(q, k, v, g, scale=None, initial_state=None, output_final_state=False, cu_seqlens=None):
        assert g.shape == q.shape
        return run("gla", q, k, v, g, None, None, scale, initial_state, output_final_state, cu_seqlens)

    def chunk_dplr_delta_rule(
        q, k, v, a, b, gk, scale=None, initial_state=None, output_final_state=False, cu_seqlens=None
    ):
        assert gk.shape == q.shape
        return run("dplr", q, k, v, gk, a, b, scale, initial_state, output_final_state, cu_seqlens)

    modules = {
        "simple_gla": SimpleNamespace(chunk_simple_gla=chunk_simple_gla),
        "gla": SimpleNamespace(chunk_gla=chunk_gla),
        "generalized_delta_rule": SimpleNamespace(chunk_dplr_delta_rule=chunk_dplr_delta_rule),
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, f"fla.ops.{name}", module)
    return called


@pytest.mark.parametrize("flags", [(), ("mask",), ("starts",), ("mask", "starts")], ids="-".join)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("decay", DECAYS)
def test_inputs_are_handed_to_the_cuda_library_as_its_documentation_has_them(
    decay: str, rule: str, flags: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library itself needs CUDA: here its functions are the formulas of its documentation."""
    called = library(monkeypatch)
    monkeypatch.setattr("zoo.ops.recurrence.chosen", lambda *_: "fla")
    x = draw(decay, rule, length=9, groups=2, dtype=torch.float32)
    mask, starts = torch.ones(2, 9, dtype=torch.bool), torch.zeros(2, 9, dtype=torch.bool)
    mask[0, 3:5] = mask[1, 7:] = False
    starts[0, [2, 4, 6]] = starts[1, [0, 5]] = True
    options = {name: {"mask": mask, "starts": starts}[name] for name in flags}
    got, wanted = outcome(recurrence, x, **options), outcome(naive_recurrence, x, **options)
    for name, mine, theirs in zip(["out", "final", *x], got, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4, msg=lambda text, name=name: f"{name}: {text}")
    assert called == ["dplr" if rule != "plain" else "gla" if decay == "channel" else "simple_gla"]


@pytest.mark.skipif(
    not torch.cuda.is_available() or bool(kernels._trouble("fla")),
    reason="the library's Triton kernels need CUDA and flash-linear-attention",
)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("decay", DECAYS)
def test_the_cuda_library_equals_the_form_made_of_matrix_products(
    decay: str, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ZOO_KERNELS", raising=False)
    x = draw(decay, rule, length=100, keys=32, values=32, dtype=torch.float32)
    x = {n: (v if n in ("decay", "state") else v.bfloat16()).cuda().detach().requires_grad_() for n, v in x.items()}
    starts = torch.zeros(2, 100, dtype=torch.bool, device="cuda")
    starts[:, [30, 71]] = True
    got = outcome(recurrence, x, starts=starts)
    monkeypatch.setenv("ZOO_KERNELS", "torch")
    for mine, theirs in zip(got, outcome(recurrence, x, starts=starts), strict=True):
        assert (mine - theirs).norm() < 2e-2 * theirs.norm()
