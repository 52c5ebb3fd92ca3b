"""The operators of sequence mixers, without projections, beside fused attention of the same width and other libraries.

Batch 2, width 256 as 4 heads of 64 x 64 states; Mamba has 512 channels of 16 states and Mamba-2 8 heads of 64 x 64,
twice the width, as in their blocks. fp32, log decays between -0.1 and 0.

    zoo              what `zoo.ops` takes on this device (compiled loops where numba is installed)
    zoo torch        its form in plain PyTorch
    attention        torch's fused causal attention, 4 heads of 64
    transformers     its PyTorch forms: Mamba's loop over time, Mamba-2 (chunks of 256, their default), the gated delta
                     rule of Qwen3-Next, Kimi Delta Attention
    transformers-64  Mamba-2 in chunks of 64
    mambapy          its parallel scan
    fla naive, fla chunk  its recurrences and chunked forms in plain PyTorch (see fla_naive.py)

Every peer computes our outputs: what a library scales is scaled back in its inputs, before the clock starts. Calls of
many seconds are made at one small length, and once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.speed.arms import BACKWARD, FORWARD, OURS, Arm, Family, Growth, Target
from benchmarks.speed.mixers.fla_naive import fla_naive
from zoo.ops.recurrence import recurrence
from zoo.ops.selective_scan import selective_scan

__all__ = [
    "ATTENTION",
    "LENGTHS",
    "OPERATORS",
    "PART",
    "TORCH",
    "MixerCase",
    "arm",
    "inputs_of",
    "operator_of",
    "plain",
]

LENGTHS = (256, 512, 1024, 2048, 4096, 8192)
OPERATORS = (
    "linear",
    "retention",
    "lightning",
    "gla",
    "delta",
    "gated_delta",
    "kda",
    "rwkv7",
    "mamba2",
    "mamba",
)
FAMILY_OF_64 = tuple(name for name in OPERATORS if name != "mamba")
"""Those with a matrix of states per head, which performance.md, section 10, promises."""
TORCH, ATTENTION = "zoo torch", "attention"
DECAYS = {"mild": (-0.1, 0.0), "strong": (-20.0, -5.0)}
"""Bounds of the log decays."""


@dataclass(frozen=True, kw_only=True)
class MixerCase:
    name: str
    operator: str
    length: int
    batch: int = 2
    heads: int = 4
    width: int = 64
    channels: int = 512
    states: int = 16
    decays: str = "mild"
    smoke: bool = False

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(self.batch, self.length, *shape)

    def keys(self) -> Tensor:
        """Rows of length 1, (B, T, H, K)."""
        return F.normalize(self.normal(self.heads, self.width), dim=-1)

    def decay(self, *shape: int) -> Tensor:
        """Log decays, (B, T, *shape)."""
        low, high = DECAYS[self.decays]
        return low + (high - low) * torch.rand(self.batch, self.length, *shape)

    def at(self, *lengths: int) -> bool:
        """Whether this is one of these lengths; a smoke case is."""
        return self.smoke or self.length in lengths


def _small(operator: str) -> MixerCase:
    sizes: dict[str, Any] = {"length": 64, "heads": 2, "width": 8, "channels": 16, "states": 4}
    return MixerCase(name=f"smoke-{operator}", operator=operator, smoke=True, **sizes)


def _time(bound: float, peer: str, operator: str, *lengths: int, mode: str = BACKWARD) -> Iterator[Target]:
    for length in lengths:
        yield Target("time", bound, peer=peer, mode=mode, case=f"{operator}-{length}")


PART: Family[MixerCase] = Family(
    "mixers",
    cases=(
        *(MixerCase(name=f"{name}-{n}", operator=name, length=n) for name in (ATTENTION, *OPERATORS) for n in LENGTHS),
        *map(_small, OPERATORS),
    ),
    targets=(
        # performance.md, section 10
        *(target for name in FAMILY_OF_64 for target in _time(0.4, ATTENTION, name, 2048)),
        *(target for name in FAMILY_OF_64 for target in _time(1.0, ATTENTION, name, 512, 1024)),
        *_time(0.35, "transformers", "gated_delta", 2048),
        *_time(1 / 20, "transformers", "kda", 512),
        # section 8
        *_time(1 / 30, "transformers", "mamba", 256),
        *_time(0.5, "transformers", "mamba", 256, 512, 1024, 2048, mode=FORWARD),
        *_time(1 / 3, "mambapy", "mamba", 512, 1024),
        *(Target("memory", 1 / 5, peer="mambapy", mode=BACKWARD, case=f"mamba-{n}") for n in (512, 1024)),
        *_time(1 / 3, TORCH, "mamba", 512, 1024, 2048),
        *_time(0.4, "transformers", "mamba2", 256, 512, 1024, 2048),
        *_time(0.75, "transformers-64", "mamba2", 256, 512, 1024, 2048),
        *_time(0.35, ATTENTION, "mamba2", 4096),
        *(
            target
            for name in ("gla", "retention", "lightning", "delta", "gated_delta", "kda", "rwkv7")
            for target in _time(1 / 15, "fla naive", name, 512)
        ),
        *_time(0.8, "fla chunk", "delta", 512),
        *_time(1.05, "transformers", "gated_delta", 512),
    ),
    series=lambda case: None if case.smoke else (case.operator, case.length),
    growth=Growth(exponent=1.15, doubling=2.5, arms=(OURS, TORCH)),
    patience=1.0,
)


def arm(inputs: dict[str, Any], call: Callable[..., Any], *, once: bool = False, backward: bool = True) -> Arm:
    """`call(**inputs)` without gradients, and with those of every tensor. once: forward and backward takes seconds."""
    leaves = [value.requires_grad_() for value in inputs.values() if isinstance(value, Tensor)]

    def forward() -> Tensor:
        with torch.no_grad():
            return call(**inputs)

    def step() -> None:
        call(**inputs).sum().backward()
        for leaf in leaves:
            leaf.grad = None

    calls: dict[str, Callable[[], object]] = {FORWARD: forward}
    if backward:
        calls[BACKWARD] = step
    return Arm(calls, once=frozenset({BACKWARD} if once else ()))


def inputs_of(case: MixerCase) -> dict[str, Any]:
    """Arguments of the operator."""
    heads, width = case.heads, case.width
    if case.operator == "mamba":
        return _mamba_inputs(case)
    if case.operator == "mamba2":
        shared = {name: case.normal(1, width) for name in ("q", "k")}
        return {**shared, "v": case.normal(2 * heads, width), "decay": case.decay(2 * heads)}
    inputs: dict[str, Any] = {"q": case.keys(), "k": case.keys(), "v": case.normal(heads, width)}
    decays: dict[str, Callable[[], Tensor]] = {
        "retention": lambda: torch.log1p(-(2.0 ** -(5 + torch.arange(heads)))),
        "lightning": lambda: case.decay(heads),
        "gla": lambda: case.decay(heads, width),
        "gated_delta": lambda: case.decay(heads),
        "kda": lambda: case.decay(heads, width),
        "rwkv7": lambda: case.decay(heads, width),
    }
    if case.operator in decays:
        inputs["decay"] = decays[case.operator]()
    if case.operator in ("delta", "gated_delta", "kda"):
        inputs["beta"] = torch.rand(case.batch, case.length, heads)
    if case.operator == "rwkv7":
        removed = case.keys()
        inputs["a"], inputs["b"] = -torch.rand_like(removed) * removed, removed
    return inputs


def _mamba_inputs(case: MixerCase) -> dict[str, Any]:
    """Steps times A are the log decays: A from -1 to -N where they are mild, as its block begins, else -1."""
    mild = case.decays == "mild"
    A = -torch.arange(1.0, case.states + 1) if mild else -torch.ones(case.states)
    return {
        "x": case.normal(case.channels),
        "delta": -case.decay(case.channels),
        "A": A.expand(case.channels, case.states).contiguous(),
        "B": case.normal(case.states),
        "C": case.normal(case.states),
    }


def operator_of(name: str) -> Callable[..., Tensor]:
    """Our operator as a function of those arguments."""
    if name == "mamba":
        return lambda x, delta, A, B, C: selective_scan(x, delta, A, B, C, None)[0]

    def call(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        decay: Tensor | None = None,
        beta: Tensor | None = None,
        a: Tensor | None = None,
        b: Tensor | None = None,
    ) -> Tensor:
        if beta is None:
            return recurrence(q, k, v, decay, a, b)[0]
        write = beta[..., None] * k  # (B, T, H, K)
        return recurrence(q, write, v, decay, -write, k)[0]

    return call


def plain(call: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The same call with all kernels off."""

    def torch_alone(**inputs: Any) -> Tensor:
        with _kernels_off():
            return call(**inputs)

    return torch_alone


@contextmanager
def _kernels_off() -> Iterator[None]:
    before = os.environ.get("ZOO_KERNELS")
    os.environ["ZOO_KERNELS"] = "torch"
    try:
        yield
    finally:
        del os.environ["ZOO_KERNELS"]
        if before is not None:
            os.environ["ZOO_KERNELS"] = before


@PART.peer(OURS)
def zoo(case: MixerCase) -> Arm | None:
    return None if case.operator == ATTENTION else arm(inputs_of(case), operator_of(case.operator))


@PART.peer(TORCH)
def zoo_torch(case: MixerCase) -> Arm | None:
    if case.operator == ATTENTION or case.length > 4096:
        return None
    return arm(inputs_of(case), plain(operator_of(case.operator)))


@PART.peer(ATTENTION)
def attention(case: MixerCase) -> Arm | None:
    longest = {ATTENTION: 8192, "mamba2": 4096}.get(case.operator, 2048)
    if case.length > longest:
        return None
    shape = (case.batch, case.heads, case.length, case.width)
    inputs = {name: torch.randn(shape) for name in ("query", "key", "value")}
    call = F.scaled_dot_product_attention
    return arm(inputs, lambda **rows: call(**rows, is_causal=True), once=case.length > 4096)


@PART.peer("transformers")
def transformers(case: MixerCase) -> Arm | None:
    if case.length > 2048:
        return None
    if case.operator == "mamba":
        return _transformers_mamba(case)
    if case.operator == "mamba2":
        return _transformers_mamba2(case, 256)
    inputs = _scaled(inputs_of(case)) if case.operator in ("gated_delta", "kda") else {}
    if case.operator == "gated_delta":
        from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule as rule

        return arm(inputs, lambda q, k, v, decay, beta: rule(q, k, v, decay, beta)[0])
    if case.operator == "kda" and case.at(512):
        from transformers.models.kimi_linear.modeling_kimi_linear import chunk_kimi_delta_attention as kda

        return arm(inputs, lambda q, k, v, decay, beta: kda(q, k, v, decay, beta)[0], once=True)
    return None


@PART.peer("transformers-64")
def transformers_64(case: MixerCase) -> Arm | None:
    return _transformers_mamba2(case, 64) if case.operator == "mamba2" and case.length <= 2048 else None


def _transformers_mamba(case: MixerCase) -> Arm:
    """In its own layout, (B, C, T)."""
    from transformers.models.mamba.modeling_mamba import mamba_selective_scan as scan

    rows = {name: x.mT.contiguous() if x.dim() == 3 else x for name, x in inputs_of(case).items()}
    return arm(rows, lambda x, delta, A, B, C: scan(x, delta, A, B, C).mT, once=True, backward=case.at(256))


def _transformers_mamba2(case: MixerCase, chunk: int) -> Arm:
    from transformers.models.mamba2.modeling_mamba2 import mamba2_chunk_scan as scan

    inputs = inputs_of(case)
    inputs["v"] = inputs["v"] / -inputs["decay"][..., None]  # it multiplies by the step, and here that is the decay
    minus_one = -torch.ones(inputs["v"].shape[2])
    return arm(inputs, lambda q, k, v, decay: scan(v, -decay, minus_one, k, q, chunk))


@PART.peer("mambapy")
def mambapy(case: MixerCase) -> Arm | None:
    if case.operator != "mamba" or not case.at(256, 512, 1024):
        return None
    try:
        from mambapy.pscan import pscan  # type: ignore[import-not-found]
    except ModuleNotFoundError as error:
        raise ImportError("pip install --no-deps mambapy") from error

    def call(x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor) -> Tensor:
        decay = (delta[..., None] * A).exp()  # (B, T, C, N)
        return (pscan(decay, (delta * x)[..., None] * B[:, :, None]) @ C[..., None])[..., 0]

    return arm(inputs_of(case), call)


@PART.peer("fla naive")
def fla_recurrences(case: MixerCase) -> Arm | None:
    inputs = inputs_of(case) if case.at(512) and case.operator in FAMILY_OF_64 else {}
    if not inputs or case.operator in ("linear", "mamba2"):
        return None
    if case.operator == "rwkv7":  # it reads the state before the decay
        rule = fla_naive("generalized_delta_rule/dplr").dplr_recurrence
        inputs["b"] = inputs["b"] * inputs["decay"].exp()
        rows = _heads_first(_scaled(inputs))
        return arm(rows, lambda q, k, v, decay, a, b: rule(q, k, v, b, a, decay)[0].transpose(1, 2), once=True)
    if case.operator == "delta":
        rule = fla_naive("delta_rule").delta_rule_recurrence
        rows = _heads_first(_scaled(inputs))
        return arm(rows, lambda q, k, v, beta: rule(q, k, v, beta)[0].transpose(1, 2), once=True)
    if case.operator == "gated_delta":
        rule = fla_naive("gated_delta_rule").naive_recurrent_gated_delta_rule
        return arm(_scaled(inputs), lambda q, k, v, decay, beta: rule(q, k, v, beta, decay)[0], once=True)
    if case.operator == "kda":
        rule = fla_naive("kda").naive_recurrent_kda
        return arm(_scaled(inputs), lambda q, k, v, decay, beta: rule(q, k, v, decay, beta)[0], once=True)
    if case.operator == "gla":
        rule = fla_naive("gla").naive_recurrent_gla
    else:
        rule = fla_naive("simple_gla").naive_recurrent_simple_gla
        inputs["decay"] = inputs["decay"].expand(inputs["v"].shape[:3]).contiguous()
    return arm(_scaled(inputs), lambda q, k, v, decay: rule(q, k, v, decay)[0], once=True)


@PART.peer("fla chunk")
def fla_chunks(case: MixerCase) -> Arm | None:
    if not case.at(512):
        return None
    if case.operator == "lightning":
        rule = fla_naive("simple_gla").naive_chunk_simple_gla
        return arm(_scaled(inputs_of(case)), lambda q, k, v, decay: rule(q, k, v, decay)[0])
    if case.operator == "delta":
        rule = fla_naive("delta_rule").delta_rule_chunkwise
        rows = _heads_first(_scaled(inputs_of(case)))
        return arm(rows, lambda q, k, v, beta: _first(rule(q, k, v, beta)).transpose(1, 2))
    if case.operator == "gated_delta":
        rule = fla_naive("gated_delta_rule").naive_chunk_gated_delta_rule
        return arm(_scaled(inputs_of(case)), lambda q, k, v, decay, beta: rule(q, k, v, decay, beta)[0])
    return None


def _scaled(inputs: dict[str, Any]) -> dict[str, Any]:
    """With queries times the root of their width, by which the library divides."""
    return inputs | {"q": inputs["q"] * inputs["q"].shape[-1] ** 0.5}


def _heads_first(inputs: dict[str, Any]) -> dict[str, Any]:
    """(B, H, T, ...) for (B, T, H, ...)."""
    return {name: x.transpose(1, 2).contiguous() for name, x in inputs.items()}


def _first(result: Any) -> Tensor:
    return result[0] if isinstance(result, tuple) else result
