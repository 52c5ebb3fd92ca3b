"""`python -m zoo walk model=llama3_8b length=1000`: a forward pass step by step."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from zoo.cli.errors import guarded
from zoo.cli.model_words import model_config, of_one_model, whole_number

__all__ = ["main"]

USAGE = """\
Print the forward pass of a model step by step: operation, kind, shapes, parameters and FLOPs of one row.

  python -m zoo walk model=llama3_8b length=1000
  python -m zoo walk model=vit_base_patch16_224
  python -m zoo walk model=t5_small length=64 memory_length=512

model=          a family or preset (python -m zoo list model), or a folder that zoo.save_pretrained wrote
length=         tokens of a row (1000); families over images have it from their fields
memory_length=  tokens of the source, of an encoder-decoder (as many as length)
KEY=VALUE       any field of the model, such as dim=256, mixer=gla, ffn.hidden=512
"""
KEYS = ("model", "length", "memory_length")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line (without the program's name; default: this process's) and return its exit code."""
    return guarded(lambda: _main(sys.argv[1:] if argv is None else argv))


def _main(words: Sequence[str]) -> int:
    if not words or "-h" in words or "--help" in words:
        print(USAGE, end="")
        return 0 if words else 2
    values, changes = of_one_model(words, KEYS)
    length, memory_length = whole_number(values, "length"), whole_number(values, "memory_length")
    config = model_config(values["model"], changes)
    from zoo.inspection.walk import walk

    found = walk(config, length, memory_length)
    rows = [("step", "operation", "kind", "in", "out", "parameters", "FLOPs", "layers")]
    for number, step in enumerate(found.steps, 1):
        operation = f"{step.part}: {step.operation}" if step.part else step.operation
        sizes = [f"{value:,}" if value else "" for value in (step.params, step.flops)]
        layers = f"x {step.times}" if step.layers else ""
        rows.append((str(number), operation, step.kind, step.given, step.made, *sizes, layers))  # type: ignore[arg-type]
    rows.append(("", "all steps, all layers", "", "", "", f"{found.params:,}", f"{found.flops:,}", ""))
    wide = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [cell.rjust(wide[n]) if n in (0, 5, 6) else cell.ljust(wide[n]) for n, cell in enumerate(row)]
        print("  ".join(cells).rstrip())
    print("Parameters and FLOPs of one layer where a step is in layers; 2 FLOPs a multiply-add, causal scores in full.")
    return 0
