"""What is compared: a family of cases, and peers that each do the same work for a case.

A case is one shape of a task (image size, batch, width). A peer is one small function from a case to an `Arm`: what
to call for each mode, "forward", "forward+backward" or whatever the family measures. A later family is a file in
families/ with a `FAMILY`, and each peer joins it by a function of three lines:

    @FAMILY.peer("timm")
    def timm(case: ViTCase) -> Arm:
        return supervised(VisionTransformer(...), [case.images()], [case.labels()])
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.speed.measure import Call, told

__all__ = ["BACKWARD", "FORWARD", "OURS", "Arm", "Case", "Family", "Growth", "Target", "supervised"]

FORWARD, BACKWARD = "forward", "forward+backward"
OURS = "zoo"


class Case(Protocol):
    """One shape of a task. Families use a frozen dataclass with the fields that their peers read."""

    @property
    def name(self) -> str: ...

    @property
    def smoke(self) -> bool:
        """A case of seconds, to see that everything runs: measured only when named."""
        ...


@dataclass
class Arm:
    """One implementation, ready to run.

    calls: what to time, by mode. module: the model, whose parameters are compared between the arms and which is put
    into training mode for every mode but "forward". flops: floating point operations of a mode, where known. once:
    modes whose call takes seconds, so that one reading without a warm-up has to do. facts: figures that are no time,
    such as the bytes of a state, which a target may name.
    """

    calls: dict[str, Call]
    module: nn.Module | None = None
    flops: Callable[[str], int] | None = None
    once: frozenset[str] = frozenset()
    facts: dict[str, float] = field(default_factory=dict)

    def ready(self, mode: str) -> Call:
        """The call of `mode`, with the module in the right mode."""
        if self.module is not None:
            self.module.train(mode != FORWARD)
        return self.calls[mode]

    @property
    def parameters(self) -> int | None:
        """Number of trainable parameters, shared ones once."""
        if self.module is None:
            return None
        return sum(parameter.numel() for parameter in self.module.parameters() if parameter.requires_grad)


@dataclass(frozen=True)
class Target:
    """A promise: time or memory at most `bound` of the peer's, or a share of the GEMM rate of at least `bound`.

    figure: "time", "memory", "share" or the name of one of our arm's facts, which is at most `bound`. peer, mode, case:
    where it holds; None: everywhere.
    """

    figure: str
    bound: float
    peer: str | None = None
    mode: str | None = None
    case: str | None = None

    def applies(self, figure: str, peer: str, mode: str, case: str) -> bool:
        wanted = ((self.peer, peer), (self.mode, mode), (self.case, case))
        return self.figure == figure and all(mine is None or mine == theirs for mine, theirs in wanted)

    def met(self, value: float) -> bool:
        return value >= self.bound if self.at_least else value <= self.bound

    @property
    def at_least(self) -> bool:
        return self.figure == "share"


@dataclass(frozen=True)
class Growth:
    """A promise about a series of lengths, for the arms named: exponents of time and memory in length, and the time of
    twice the length over that of once, forward and backward."""

    exponent: float
    doubling: float
    arms: tuple[str, ...] = (OURS,)


CaseT = TypeVar("CaseT", bound=Case)
ArmT = TypeVar("ArmT", bound=Arm | None)


@dataclass
class Family(Generic[CaseT]):
    """Cases, peers and targets of one family.

    unequal: relative difference in parameters that definitions explain. series: (name, length) of a case, where cases
    of one name at several lengths tell how cost grows; growth: what is promised of them. peaks: whether peak memory
    says anything. rounds, patience, control: how to measure where the command line does not say; an arm gets as many
    rounds as fit into `patience` seconds a mode, and at least one. parts: families of other cases and peers that are
    measured as one with this, under its name.
    """

    name: str
    cases: Sequence[CaseT]
    targets: Sequence[Target] = ()
    unequal: float = 0.0
    series: Callable[[CaseT], tuple[str, int] | None] | None = None
    growth: Growth | None = None
    peaks: bool = True
    rounds: int = 11
    patience: float = math.inf
    control: bool = True
    parts: Sequence[Family[Any]] = ()
    peers: dict[str, Callable[[CaseT], Arm | None]] = field(default_factory=dict)

    def everything(self) -> list[tuple[Family[Any], Any]]:
        """Each case, with the part it belongs to."""
        return [(self, case) for case in self.cases] + [pair for part in self.parts for pair in part.everything()]

    def peer(self, name: str) -> Callable[[Callable[[CaseT], ArmT]], Callable[[CaseT], ArmT]]:
        """Function decorator: `name` joins the comparison. The peer named "zoo" is ours. None: not in this case."""

        def add(build: Callable[[CaseT], ArmT]) -> Callable[[CaseT], ArmT]:
            self.peers[name] = build
            return build

        return add

    def build(self, case: CaseT, device: str = "cpu") -> tuple[dict[str, Arm], dict[str, str]]:
        """Arms by name, and why a peer is absent: its package is not installed, or it failed in this case.

        Raises ValueError when the models differ in size: then times would compare different models.
        """
        arms: dict[str, Arm] = {}
        absent: dict[str, str] = {}
        for name, build in self.peers.items():
            torch.manual_seed(0)
            try:
                with torch.device(device):
                    made = build(case)
                if made is not None:
                    arms[name] = made
            except ImportError as error:
                if name == OURS:
                    raise
                absent[name] = str(error)
            except Exception as error:
                if name == OURS:
                    raise
                absent[f"{name} ({case.name})"] = f"failed: {told(error)}"
        self._compare_sizes(case, arms)
        return arms, absent

    def _compare_sizes(self, case: CaseT, arms: dict[str, Arm]) -> None:
        sizes = {name: arm.parameters for name, arm in arms.items() if arm.parameters is not None}
        if sizes and max(sizes.values()) > min(sizes.values()) * (1 + self.unequal):
            listed = ", ".join(f"{name} {size}" for name, size in sizes.items())
            raise ValueError(f"{self.name} {case.name}: the arms are different models, parameters are {listed}")


def supervised(
    module: nn.Module,
    inputs: Sequence[Any],
    targets: Sequence[Tensor],
    *,
    output: Callable[[Any], Tensor] = lambda result: result,
    loss: Callable[..., Tensor] = F.cross_entropy,
) -> Arm:
    """An arm that runs `loss(output(module(*inputs)), *targets)`: forward without gradients, and forward+backward.

    Gradients are dropped at the end of every step, so that each step allocates its own, as a training loop does.
    """

    def forward() -> None:
        with torch.no_grad():
            output(module(*inputs))

    def step() -> None:
        loss(output(module(*inputs)), *targets).backward()
        module.zero_grad(set_to_none=True)

    def flops(mode: str) -> int:
        # Fused attention counts as 0 on a CPU and is seen on the meta device.
        twin = copy.deepcopy(module).to("meta").train(mode != FORWARD)
        arguments = [value.to("meta") if isinstance(value, Tensor) else value for value in inputs]
        with FlopCounterMode(display=False) as counter, torch.set_grad_enabled(mode != FORWARD):
            result = output(twin(*arguments))
            if mode != FORWARD:
                loss(result, *(target.to("meta") for target in targets)).backward()
        return counter.get_total_flops()

    return Arm({FORWARD: forward, BACKWARD: step}, module, flops)
