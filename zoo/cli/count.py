"""`python -m zoo count model=llama3_8b length=1000`: what a model costs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from zoo.cli.errors import guarded, refuse
from zoo.cli.model_words import model_config, of_one_model, whole_number

__all__ = ["main"]

USAGE = """\
Count parameters, FLOPs, state bytes and activation memory of a model, without running it.

  python -m zoo count model=llama3_8b length=1000
  python -m zoo count model=gpt mixer=mamba2 dim=256 length=512 batch=8
  python -m zoo count model=t5_small length=64 memory_length=512 dtype=bfloat16

model=          a family or preset (python -m zoo list model), or a folder that zoo.save_pretrained wrote
length=         tokens of a row (1000, or max_len where that is less); families over images have it from their fields
memory_length=  tokens of the source, of an encoder-decoder (as many as length)
batch=          rows (1)
dtype=          of weights and states, for bytes: float32, bfloat16 or float16
KEY=VALUE       any field of the model, such as dim=256, mixer=gla, ffn.hidden=512
"""
KEYS = ("model", "length", "memory_length", "batch", "dtype")
DTYPES = ("float32", "bfloat16", "float16")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line (without the program's name; default: this process's) and return its exit code."""
    return guarded(lambda: _main(sys.argv[1:] if argv is None else argv))


def _main(words: Sequence[str]) -> int:
    if not words or "-h" in words or "--help" in words:
        print(USAGE, end="")
        return 0 if words else 2
    values, changes = of_one_model(words, KEYS)
    length, memory_length = whole_number(values, "length"), whole_number(values, "memory_length")
    batch, dtype = whole_number(values, "batch", 1), values.get("dtype", DTYPES[0])
    if dtype not in DTYPES:
        raise refuse(f"should be {' or '.join(DTYPES)}, got '{dtype}'", "dtype")
    config = model_config(values["model"], changes)
    import torch

    from zoo.inspection.count import counted_by_length, shadow
    from zoo.inspection.examples import example
    from zoo.inspection.states import state_lines

    model = shadow(config).eval()
    found = counted_by_length(model, batch or 1, length, memory_length, getattr(torch, dtype))
    print("\n".join(_lines(found, values["model"], dtype)))
    shapes = example(config, batch or 1, length, memory_length)
    if shapes.step is not None:
        print("\n".join(state_lines(model, config, batch or 1, shapes)))
    return 0


def _lines(found: Any, name: str, dtype: str) -> list[str]:
    rows = "one row" if found.batch == 1 else f"{found.batch} rows"
    source = f", source of {found.memory:,}" if found.memory else ""
    table = [
        ("parameters", found.params, ""),
        ("without embeddings", found.params_non_embedding, "tables that are looked up left out"),
        ("active", found.params_active, "a token's own experts, tables counted (DeepSeek, Qwen)"),
        ("active without embeddings", found.params_active_non_embedding, "tables left out (MiniMax)"),
        ("FLOPs forward", found.flops_forward, "2 a multiply-add, causal scores in full"),
        ("FLOPs forward, visible pairs", found.flops_visible, "scores only where the mask lets see (about half)"),
        ("FLOPs training step", found.flops_training, "3 x forward, without the optimizer"),
        ("FLOPs decoding step", found.flops_step, f"the last of {found.tokens:,} tokens"),
        ("state bytes", found.state_bytes, f"after {found.tokens:,} tokens, {dtype}; recurrences fp32"),
        ("activation bytes", found.activation_bytes, f"kept for backward, {dtype}, attention fused"),
        ("attention overtakes at", found.crossover, "tokens: scores against all else in the layers"),
        ("the same, visible pairs", found.crossover_visible, "tokens"),
    ]
    shown = [(title, "-" if value is None else f"{value:,}", note) for title, value, note in table]
    wide = max(len(value) for _, value, _ in shown)
    lines = [f"{name}: {rows} of {found.tokens:,} tokens{source}"]
    return lines + [f"  {title:<30}{value:>{wide}}  {note}".rstrip() for title, value, note in shown]
