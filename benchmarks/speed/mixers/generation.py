"""A Mamba language model that writes greedily, against transformers' `generate`: width 384, 6 layers, vocabulary 1,024.

    read 128     a prompt of 128 tokens, and one new token
    write 64     64 new tokens after a prompt of two, so that nearly all of the time is that of single steps

The floor is the least that any implementation does for those 64 tokens, called from Python: each matrix of weights
times one token at a time; no scan, no norms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.speed.arms import OURS, Arm, Family, Target
from benchmarks.speed.language import ids

__all__ = ["PART", "READ", "WRITE", "GenerationCase"]

READ, WRITE = "read 128", "write 64"


@dataclass(frozen=True, kw_only=True)
class GenerationCase:
    name: str
    batch: int
    prompt: int = 128
    new: int = 64
    dim: int = 384
    depth: int = 6
    vocab_size: int = 1024
    smoke: bool = False

    def prompts(self, length: int) -> Tensor:
        return ids(self.vocab_size, self.batch, length)  # (B, T)


PART: Family[GenerationCase] = Family(
    "mixers",
    cases=(
        *(GenerationCase(name=f"decode-mamba-model-b{batch}", batch=batch) for batch in (1, 8)),
        GenerationCase(name="smoke-mamba-model", batch=2, prompt=5, new=3, dim=32, depth=1, vocab_size=50, smoke=True),
    ),
    targets=(
        Target("time", 0.6, peer="transformers", mode=WRITE),
        Target("time", 0.5, peer="transformers", mode=READ),
        Target("time", 1.4, peer="floor", mode=WRITE, case="decode-mamba-model-b1"),
    ),
    peaks=False,
    patience=4.0,
)


class _Writing(Arm):
    """In evaluation mode in all of its modes."""

    def ready(self, mode: str) -> Callable[[], object]:
        return self.calls[mode]


def _arm(case: GenerationCase, module: nn.Module, write: Callable[[Tensor, int], object]) -> Arm:
    module.eval()
    long, short = case.prompts(case.prompt), case.prompts(2)

    def within(prompts: Tensor, new: int) -> object:
        with torch.inference_mode():
            return write(prompts, new)

    return _Writing({READ: lambda: within(long, 1), WRITE: lambda: within(short, case.new)}, module)


def _model(case: GenerationCase) -> Any:
    from zoo import create_model

    return create_model(
        "gpt",
        dim=case.dim,
        depth=case.depth,
        vocab_size=case.vocab_size,
        mixer="mamba",
        layout="mixer_only",
        norm={"name": "rmsnorm", "eps": 1e-5},
        position="none",
        max_len=case.prompt + case.new,
    )


@PART.peer(OURS)
def zoo(case: GenerationCase) -> Arm:
    from zoo.generation import generate

    model = _model(case)
    return _arm(case, model, lambda prompts, new: generate(model, prompts, max_new_tokens=new))


@PART.peer("transformers")
def transformers(case: GenerationCase) -> Arm:
    from transformers import MambaConfig, MambaForCausalLM

    model: Any = MambaForCausalLM(
        MambaConfig(
            vocab_size=case.vocab_size,
            hidden_size=case.dim,
            num_hidden_layers=case.depth,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=0,
        )
    )
    settings = {"do_sample": False, "pad_token_id": 0, "use_cache": True}

    def write(prompts: Tensor, new: int) -> Tensor:
        mask = torch.ones_like(prompts)
        return model.generate(prompts, attention_mask=mask, max_new_tokens=new, **settings)

    return _arm(case, model, write)


@PART.peer("floor")
def floor(case: GenerationCase) -> Arm:
    model = _model(case)
    tables = [linear.weight.detach() for linear in model.stack.modules() if isinstance(linear, nn.Linear)]
    tables.append(model.head.table.detach())
    rows = {table.shape[1]: torch.randn(case.batch, table.shape[1]) for table in tables}

    def write() -> None:
        with torch.inference_mode():
            for _ in range(case.new):
                for table in tables:
                    F.linear(rows[table.shape[1]], table)

    return Arm({WRITE: write})
