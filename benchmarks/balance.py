"""Do the experts share the work? Loads with the Switch loss, with the bias that needs no loss, and with neither.

    python -m benchmarks.balance [arm=none,switch,...] [seeds=1] [steps=500] [out=FILE]

Task: the next byte of the Python standard library's own source; a GPT of 2 layers, width 64, with 8 experts a layer
(MLPs of 256), one a token; 16 rows of 64 bytes a step, AdamW at 3e-3. Two claims, each as far as so short a run allows:

    Fedus et al. 2021, arXiv:2101.03961: without a loss the router prefers a few experts (largest load at least 3 times
        the mean load), with a coefficient of 0.01 it does not (at most 2); a larger capacity drops fewer tokens.
    Wang et al. 2024, arXiv:2408.15664: a bias on the choice, moved by the sign of the load, evens the loads without
        a loss (MaxVio at most half of what it is without the bias). The published step of 0.001 is for long runs; here
        it is 0.01.

Arms that are compared share the gate: softmax for those of Fedus, each kind for the bias. MaxVio is the largest load
over the mean load, less 1; loads are summed over the last 50 steps, and MaxVio is the mean over the layers. The loss is
the mean over the last 50 steps too, without the balancing loss.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

import zoo
from benchmarks.files import console, header, results, write_json
from benchmarks.words import WordsError, asks_help, choice, integer, split
from recipes.data.text.stdlib_code import StdlibCode
from zoo.blocks.auxiliary import collect
from zoo.blocks.ffn.balance import expert_report, update_biases

__all__ = ["ARMS", "Outcome", "checks", "corpus", "train"]

LENGTH, BATCH, DIM, DEPTH, EXPERTS, RATE, LAST = 64, 16, 64, 2, 8, 3e-3, 50
KEYS = ("arm", "seeds", "steps", "out")

ARMS: dict[str, dict[str, Any]] = {
    "none": {"balance": 0.0},
    "switch": {"balance": 0.01},
    "switch capacity 1": {"balance": 0.01, "capacity": 1.0},
    "switch capacity 1.25": {"balance": 0.01, "capacity": 1.25},
    "switch capacity 2": {"balance": 0.01, "capacity": 2.0},
    "bias": {"balance": 0.0, "bias_rate": 0.01},
    "sigmoid none": {"balance": 0.0, "scores": "sigmoid"},
    "sigmoid bias": {"balance": 0.0, "scores": "sigmoid", "bias_rate": 0.01},
}
"""What each arm chooses of MoEConfig."""


@dataclass(frozen=True)
class Outcome:
    """The last 50 steps of one training."""

    violation: float
    """MaxVio."""
    dead: int
    """Experts without a token, of all layers."""
    dropped: float
    """Share of the choices that found their expert full."""
    loss: float
    """Nats per byte."""
    seconds: float
    """CPU time of the whole training."""


def corpus() -> Tensor:
    """Bytes of the training files, one after the other."""
    return torch.frombuffer(bytearray("".join(StdlibCode().load().train).encode()), dtype=torch.uint8).long()


def train(choices: Mapping[str, Any], text: Tensor, seed: int, steps: int) -> Outcome:
    """Train one arm on random windows of the text; the seed decides weights and windows."""
    torch.manual_seed(seed)
    draw, begun = torch.Generator().manual_seed(seed), time.process_time()
    ffn = {"name": "moe", "experts": EXPERTS, "top_k": 1, "expert": "mlp", **choices}
    model = zoo.create_model("gpt", vocab_size=256, max_len=LENGTH, dim=DIM, depth=DEPTH, heads=2, ffn=ffn).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95))
    measures: dict[tuple[str, str], Tensor] = {}
    losses: list[float] = []
    for step in range(steps):
        starts = torch.randint(len(text) - LENGTH, (BATCH, 1), generator=draw)
        rows = text[starts + torch.arange(LENGTH + 1)]  # (B, T + 1)
        with collect() as said:
            loss = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        (loss + said.loss).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        update_biases(model, said.measures)
        if step >= steps - LAST:
            losses.append(loss.item())
            for name, value in said.measures.items():
                measures[name] = measures.get(name, 0.0) + value
    report = {name: value.item() for name, value in expert_report(measures).items()}
    return Outcome(
        report["load_violation"],
        int(report["dead_experts"]),
        report.get("dropped_share", 0.0),
        statistics.fmean(losses),
        time.process_time() - begun,
    )


def checks(found: Mapping[str, Sequence[Outcome]]) -> dict[str, bool]:
    """The claims about the arms that were run, on the means over their seeds."""
    violation = {name: statistics.fmean(run.violation for run in runs) for name, runs in found.items()}
    dropped = {name: statistics.fmean(run.dropped for run in runs) for name, runs in found.items()}
    told: dict[str, bool] = {}
    if {"none", "switch"} <= found.keys():
        told["max load / mean load at most 2 with the Switch loss"] = violation["switch"] + 1 <= 2
        told["max load / mean load at least 3 without"] = violation["none"] + 1 >= 3
    capacities = [f"switch capacity {factor}" for factor in ("1", "1.25", "2")]
    if set(capacities) <= found.keys():
        first, second, third = (dropped[name] for name in capacities)
        told["a larger capacity drops fewer tokens"] = first > second > third
    for gate in ("", "sigmoid "):
        if {f"{gate}none", f"{gate}bias"} <= found.keys():
            halved = violation[f"{gate}bias"] <= violation[f"{gate}none"] / 2
            told[f"the bias at least halves MaxVio, {gate or 'softmax '}gate"] = halved
    return told


def main(words: Sequence[str] | None = None) -> int:
    """Train every arm with every seed, print the table and the checks, and write them."""
    words = list(sys.argv[1:] if words is None else words)
    if asks_help(words):
        print(__doc__)
        return 0
    try:
        values = split(words, KEYS)
        names = [choice({"arm": n}, "arm", n, list(ARMS)) for n in values.get("arm", ",".join(ARMS)).split(",")]
        seeds, steps = integer(values, "seeds", 1, 1, 100), integer(values, "steps", 500, 1, 1_000_000)
    except WordsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    text = corpus()
    shown = Table("arm", "max / mean load", "MaxVio", "dead experts", "dropped", "loss", "CPU s", title="balance")
    found: dict[str, list[Outcome]] = {}
    for name in names:
        found[name] = [train(ARMS[name], text, seed, steps) for seed in range(seeds)]
        mean = {key: statistics.fmean(asdict(run)[key] for run in found[name]) for key in asdict(found[name][0])}
        loads = f"{mean['violation'] + 1:.2f}", f"{mean['violation']:.2f}", f"{mean['dead']:.1f}"
        shown.add_row(name, *loads, f"{mean['dropped']:.3f}", f"{mean['loss']:.3f}", f"{mean['seconds']:.0f}")
    console().print(shown)
    told = checks(found)
    for claim, holds in told.items():
        print(f"{'holds ' if holds else 'MISSED'}  {claim}")
    path = Path(values["out"]) if "out" in values else results() / "balance.json"
    command = " ".join(["python -m benchmarks.balance", *(f"'{word}'" if " " in word else word for word in words)])
    arms = {name: [asdict(run) for run in runs] for name, runs in found.items()}
    write_json(path, header(command, torch.get_num_threads()) | {"arms": arms, "checks": told})
    print(f"written: {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
