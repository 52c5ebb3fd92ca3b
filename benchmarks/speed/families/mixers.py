"""The operators of sequence mixers, without projections, beside fused attention of the same width and other libraries.

Batch 2, width 256 as 4 heads of 64 x 64 states; Mamba has 512 channels of 16 states and Mamba-2 8 heads of 64 x 64,
twice the width, as in their blocks. fp32, log decays between -0.1 and 0. "zoo" is what `zoo.ops` takes on this device
(compiled loops where numba is installed), "zoo torch" its form in plain PyTorch.

Peers: torch's fused attention, 4 heads of 64; Hugging Face's PyTorch forms of Mamba-2, Gated DeltaNet and Kimi Delta
Attention; mambapy's parallel scan; fla's naive recurrence of GLA (pip install --no-deps fla-core), whose kernels need a
GPU. A peer is left out at lengths where one of its calls takes many seconds.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.speed.arms import BACKWARD, FORWARD, OURS, Arm, Family, Target
from zoo.ops.recurrence import recurrence
from zoo.ops.selective_scan import selective_scan

__all__ = ["FAMILY", "OPERATORS", "MixerCase", "inputs_of", "operator_of"]

LENGTHS = (256, 512, 1024, 2048, 4096, 8192)
OPERATORS = ("linear", "retention", "lightning", "gla", "delta", "gated_delta", "kda", "mamba2", "mamba")


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
    smoke: bool = False

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(self.batch, self.length, *shape)

    def keys(self) -> Tensor:
        """Rows of length 1, (B, T, H, K)."""
        return F.normalize(self.normal(self.heads, self.width), dim=-1)

    def decay(self, *shape: int) -> Tensor:
        """Log decays between -0.1 and 0, (B, T, *shape)."""
        return -0.1 * torch.rand(self.batch, self.length, *shape)


FAMILY: Family[MixerCase] = Family(
    "mixers",
    cases=(
        *(MixerCase(name=f"{name}-{n}", operator=name, length=n) for name in OPERATORS for n in LENGTHS),
        *(
            MixerCase(
                name=f"smoke-{name}", operator=name, length=20, heads=2, width=8, channels=16, states=4, smoke=True
            )
            for name in OPERATORS
        ),
    ),
    targets=(
        *(
            Target("time", 0.4, peer="attention", mode=BACKWARD, case=f"{name}-2048")
            for name in OPERATORS
            if name != "mamba"
        ),
        *(
            Target("time", 1.0, peer="attention", mode=BACKWARD, case=f"{name}-512")
            for name in OPERATORS
            if name != "mamba"
        ),
        Target("time", 0.35, peer="attention", mode=BACKWARD, case="mamba2-4096"),
        Target("time", 0.4, peer="transformers", mode=BACKWARD, case="mamba2-1024"),
        Target("time", 0.35, peer="transformers", mode=BACKWARD, case="gated_delta-2048"),
        Target("time", 1.05, peer="transformers", mode=BACKWARD, case="gated_delta-512"),
        Target("time", 0.05, peer="transformers", mode=BACKWARD, case="kda-512"),
        Target("time", 1 / 15, peer="fla naive", mode=BACKWARD, case="gla-512"),
        Target("time", 1 / 3, peer="zoo torch", mode=BACKWARD, case="mamba-1024"),
        Target("time", 1 / 3, peer="mambapy", mode=BACKWARD, case="mamba-512"),
        Target("memory", 1 / 5, peer="mambapy", mode=BACKWARD, case="mamba-512"),
    ),
    series=lambda case: (case.operator, case.length),
)


def _arm(inputs: dict[str, Any], call: Callable[..., Any]) -> Arm:
    """`call(**inputs)` without gradients, and with those of every tensor."""
    leaves = [value.requires_grad_() for value in inputs.values() if isinstance(value, Tensor)]

    def forward() -> None:
        with torch.no_grad():
            call(**inputs)

    def step() -> None:
        call(**inputs).sum().backward()
        for leaf in leaves:
            leaf.grad = None

    return Arm({FORWARD: forward, BACKWARD: step})


def inputs_of(case: MixerCase) -> dict[str, Any]:
    """Arguments of the operator."""
    heads, width = case.heads, case.width
    if case.operator == "mamba":
        shape = (case.channels, case.states)
        return {
            "x": case.normal(case.channels),
            "delta": 0.1 * torch.rand(case.batch, case.length, case.channels),
            "A": -torch.arange(1.0, case.states + 1).expand(shape).contiguous(),
            "B": case.normal(case.states),
            "C": case.normal(case.states),
        }
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
    }
    if case.operator in decays:
        inputs["decay"] = decays[case.operator]()
    if case.operator in ("delta", "gated_delta", "kda"):
        inputs["beta"] = torch.rand(case.batch, case.length, heads)
    return inputs


def operator_of(name: str) -> Callable[..., Tensor]:
    """Our operator as a function of those arguments."""
    if name == "mamba":
        return lambda x, delta, A, B, C: selective_scan(x, delta, A, B, C, None)[0]

    def call(q: Tensor, k: Tensor, v: Tensor, decay: Tensor | None = None, beta: Tensor | None = None) -> Tensor:
        if beta is None:
            return recurrence(q, k, v, decay)[0]
        write = beta[..., None] * k  # (B, T, H, K)
        return recurrence(q, write, v, decay, -write, k)[0]

    return call


@FAMILY.peer(OURS)
def zoo(case: MixerCase) -> Arm:
    return _arm(inputs_of(case), operator_of(case.operator))


@FAMILY.peer("zoo torch")
def zoo_torch(case: MixerCase) -> Arm:
    operator = operator_of(case.operator)

    def call(**inputs: Any) -> Tensor:
        before = os.environ.get("ZOO_KERNELS")
        os.environ["ZOO_KERNELS"] = "torch"
        try:
            return operator(**inputs)
        finally:
            del os.environ["ZOO_KERNELS"]
            if before is not None:
                os.environ["ZOO_KERNELS"] = before

    return _arm(inputs_of(case), call)


@FAMILY.peer("attention")
def attention(case: MixerCase) -> Arm:
    shape = (case.batch, case.heads, case.length, case.width)
    inputs = {name: torch.randn(shape) for name in ("query", "key", "value")}
    return _arm(inputs, lambda **rows: F.scaled_dot_product_attention(**rows, is_causal=True))


@FAMILY.peer("transformers")
def transformers(case: MixerCase) -> Arm | None:
    if case.length > 2048 or (case.operator == "kda" and case.length > 512):
        return None
    inputs = inputs_of(case)
    if case.operator == "gated_delta":
        from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule as rule

        return _arm(inputs, lambda q, k, v, decay, beta: rule(q, k, v, decay, beta)[0])
    if case.operator == "kda":
        from transformers.models.kimi_linear.modeling_kimi_linear import chunk_kimi_delta_attention as kda

        return _arm(inputs, lambda q, k, v, decay, beta: kda(q, k, v, decay, beta)[0])
    if case.operator == "mamba2":
        from transformers.models.mamba2.modeling_mamba2 import mamba2_chunk_scan as scan

        a = -torch.ones(2 * case.heads)  # so that a step is the decay's size
        return _arm(inputs, lambda q, k, v, decay: _first(scan(v, -decay, a, k, q, 256)))
    return None


def _first(result: Any) -> Tensor:
    return result[0] if isinstance(result, tuple) else result


@FAMILY.peer("mambapy")
def mambapy(case: MixerCase) -> Arm | None:
    if case.operator != "mamba" or case.length > 1024:
        return None
    from mambapy.pscan import pscan  # type: ignore[import-not-found]

    def call(x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor) -> Tensor:
        decay = (delta[..., None] * A).exp()  # (B, T, C, N)
        return (pscan(decay, (delta * x)[..., None] * B[:, :, None]) @ C[..., None])[..., 0]

    return _arm(inputs_of(case), call)


@FAMILY.peer("fla naive")
def fla_naive(case: MixerCase) -> Arm | None:
    if case.operator != "gla" or case.length > 512:
        return None
    from fla.ops.gla.naive import naive_recurrent_gla  # type: ignore[import-not-found]

    rows = {name: value.transpose(1, 2).contiguous() for name, value in inputs_of(case).items()}
    return _arm(rows, lambda q, k, v, decay: naive_recurrent_gla(q, k, v, decay)[0])
