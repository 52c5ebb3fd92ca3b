"""Greedy decoding, against Hugging Face's `generate`, for GPT-2's and Llama's form.

A call reads the prompts and writes the new tokens. The floor is the least that any implementation does: each weight
matrix times the prompt's tokens, then times one new token at a time, called from Python; no attention, no norms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.speed.arms import OURS, Arm, Family, Target
from benchmarks.speed.families import gpt, llama
from benchmarks.speed.language import ids

__all__ = ["DECODE", "FAMILY", "DecodeCase"]

DECODE = "decode"


@dataclass(frozen=True, kw_only=True)
class DecodeCase:
    name: str
    form: str
    """"gpt" or "llama"."""
    batch: int
    prompt: int = 128
    new: int = 64
    dim: int = 384
    depth: int = 6
    heads: int = 6
    kv_heads: int = 2
    hidden: int = 1024
    vocab_size: int = 1024
    smoke: bool = False

    @property
    def length(self) -> int:
        """Room for prompt and answer."""
        return self.prompt + self.new

    def prompts(self) -> Tensor:
        return ids(self.vocab_size, self.batch, self.prompt)  # (B, T)


def _small(form: str) -> DecodeCase:
    sizes = {"prompt": 5, "new": 3, "dim": 32, "depth": 1, "heads": 4, "hidden": 64, "vocab_size": 50}
    return DecodeCase(name="smoke" if form == "gpt" else f"smoke-{form}", form=form, batch=2, smoke=True, **sizes)


FAMILY: Family[DecodeCase] = Family(
    "decode",
    cases=(
        *(DecodeCase(name=f"{form}-b{batch}", form=form, batch=batch) for form in ("gpt", "llama") for batch in (1, 8)),
        _small("gpt"),
        _small("llama"),
    ),
    targets=(
        Target("time", 0.77, peer="transformers"),
        Target("time", 1.25, peer="floor", case="gpt-b1"),
        Target("time", 1.25, peer="floor", case="llama-b1"),
    ),
)


def _arm(module: nn.Module, answer: Callable[[], Any]) -> Arm:
    module.eval()

    def decode() -> Any:
        with torch.inference_mode():
            return answer()

    return _Decoding({DECODE: decode}, module)


class _Decoding(Arm):
    """In evaluation mode in its one mode."""

    def ready(self, mode: str) -> Callable[[], object]:
        return self.calls[mode]


@FAMILY.peer(OURS)
def zoo(case: DecodeCase) -> Arm:
    from zoo.generation import generate

    model, prompts = (gpt if case.form == "gpt" else llama).model(case), case.prompts()
    return _arm(model, lambda: generate(model, prompts, max_new_tokens=case.new))


@FAMILY.peer("transformers")
def transformers(case: DecodeCase) -> Arm:
    model, prompts = (gpt if case.form == "gpt" else llama).hugging_face(case), case.prompts()
    settings = {"max_new_tokens": case.new, "do_sample": False, "pad_token_id": 0, "use_cache": True}
    mask = torch.ones_like(prompts)
    return _arm(model, lambda: model.generate(prompts, attention_mask=mask, **settings))


@FAMILY.peer("floor")
def floor(case: DecodeCase) -> Arm:
    model = (gpt if case.form == "gpt" else llama).model(case)
    tables = [linear.weight.detach() for linear in model.stack.modules() if isinstance(linear, nn.Linear)]
    head = model.head.table.detach()
    first = {table.shape[1]: torch.randn(case.batch * case.prompt, table.shape[1]) for table in [*tables, head]}
    later = {width: rows[: case.batch].clone() for width, rows in first.items()}

    def decode() -> None:
        with torch.inference_mode():
            for step in range(case.new):
                inputs = later if step else first
                for table in tables:
                    F.linear(inputs[table.shape[1]], table)
                F.linear(later[head.shape[1]], head).argmax(-1)

    return Arm({DECODE: decode})
