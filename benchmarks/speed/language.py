"""What the language families share: ids, and arms that train a model with its own loss or with plain cross-entropy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.speed.arms import BACKWARD, FORWARD, Arm, supervised

__all__ = ["FUSED", "causal", "ids", "logits_of", "plain", "trained"]


FUSED: dict[str, Any] = {"attn_implementation": "sdpa"}
"""What makes a transformers config choose fused attention."""


def ids(vocab_size: int, *shape: int) -> Tensor:
    """Random tokens; ids 0 and 1 are left out, which peers read as padding and end."""
    return torch.randint(2, vocab_size, shape)


def causal(batch: int, length: int, vocab_size: int) -> tuple[Tensor, Tensor]:
    """Ids (B, T) and the next ids (B, T)."""
    rows = ids(vocab_size, batch, length + 1)
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def trained(module: nn.Module, forward: Callable[[], Any], loss: Callable[[], Tensor]) -> Arm:
    """An arm whose training step does not pass through the logits of `forward`."""

    def evaluate() -> None:
        with torch.no_grad():
            forward()

    def step() -> None:
        loss().backward()
        module.zero_grad(set_to_none=True)

    calls = {FORWARD: evaluate, BACKWARD: step}

    def flops(mode: str) -> int:
        # On the CPU itself: which tokens have a label is not known on the meta device. Fused attention counts as 0
        # there, so that its products are made one by one; a causal triangle is then a full square.
        module.train(mode != FORWARD)
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            calls[mode]()
        return counter.get_total_flops()

    return Arm(dict(calls), module, flops)


def plain(module: nn.Module, inputs: list[Any], labels: Tensor) -> Arm:
    """Logits of all tokens, then cross-entropy over those with a label: what the usual training script does."""
    arm = supervised(
        module, inputs, [labels], output=logits_of, loss=lambda x, y: F.cross_entropy(x.flatten(0, 1), y.flatten())
    )
    return Arm(arm.calls, module)  # without FLOPs: its masks cannot be made on the meta device, and ours counts them


def logits_of(result: Any) -> Tensor:
    """Of a transformers output."""
    return result.logits
