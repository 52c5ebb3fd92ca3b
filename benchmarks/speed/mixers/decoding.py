"""One token at a time after a long past: 64 steps of a recurrent mixer after 1,024 to 65,536 tokens.

"zoo" has read 65,536 tokens, the others fewer, in chunks of 1,024. One row, width 256, 4 heads, whole mixers. Time and
bytes of the state should be the same after all of them. The fact "state growth" is the bytes after 65,536 tokens over
those after 1,024.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.speed.arms import OURS, Arm, Family, Target

__all__ = ["PART", "STEPS", "DecodingCase"]

MIXERS = (
    "linear_attention",
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
STEPS = "64 steps"
BYTES, GROWTH = "state bytes", "state growth"


@dataclass(frozen=True, kw_only=True)
class DecodingCase:
    name: str
    mixer: str
    past: tuple[int, ...] = (1024, 4096, 16384, 65536)
    """Tokens read before: of the peers, and at last of "zoo"."""
    chunk: int = 1024
    dim: int = 256
    heads: int = 4
    steps: int = 64
    smoke: bool = False


PART: Family[DecodingCase] = Family(
    "mixers",
    cases=(
        *(DecodingCase(name=f"decode-{name}", mixer=name) for name in MIXERS),
        *(
            DecodingCase(name=f"smoke-decode-{name}", mixer=name, past=(8, 16), chunk=8, dim=32, smoke=True)
            for name in MIXERS
        ),
    ),
    targets=(
        Target("time", 1.1, peer="after 1024"),  # a difference below a tenth is noise
        Target(GROWTH, 1.0, peer=OURS),
    ),
    peaks=False,
    patience=1.0,
)


def _read(case: DecodingCase, tokens: int) -> tuple[Any, Any]:
    """The mixer, and its state after so many tokens."""
    from zoo import create_mixer
    from zoo.blocks.api import Context

    torch.manual_seed(0)
    mixer: Any = create_mixer(case.mixer, dim=case.dim, heads=case.heads, causal=True, max_len=max(case.past)).eval()
    with torch.inference_mode():
        state = mixer.init_state(1, tokens)
        for _ in range(tokens // case.chunk):
            mixer(torch.randn(1, case.chunk, case.dim), Context(), state)  # (1, T, D)
    return mixer, state


def _arm(case: DecodingCase, tokens: int) -> Arm:
    from zoo.blocks.api import Context

    mixer, state = _read(case, tokens)
    x = torch.randn(1, case.dim)  # (N, D)

    def decode() -> Tensor:
        with torch.inference_mode():
            step: Callable[[Tensor, Any], Tensor] = mixer.step(state)
            y = x
            for _ in range(case.steps):
                y = step(x, Context())
            return y

    return Arm({STEPS: decode}, facts={BYTES: state.nbytes()})


@PART.peer(OURS)
def zoo(case: DecodingCase) -> Arm:
    made = _arm(case, case.past[-1])
    _, state = _read(case, case.past[0])
    made.facts[GROWTH] = made.facts[BYTES] / state.nbytes()
    return made


def _earlier(place: int) -> Callable[[DecodingCase], Arm | None]:
    return lambda case: _arm(case, case.past[place]) if place < len(case.past) - 1 else None


for _place, _tokens in enumerate(DecodingCase.past[:-1]):
    PART.peer(f"after {_tokens}")(_earlier(_place))
