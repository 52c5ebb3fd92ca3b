"""Multi-query associative recall: how much of what was said before can a mixer find again?

    python -m benchmarks.recall [mixer=attention,taylor,...] [seeds=3] [steps=1000] [lr=5e-3]
                                [optimizer=adamw|muon] [out=FILE]

Arora et al. 2023 (Zoology), arXiv:2312.04927, with the layout of their generator: a row of T tokens begins with `pairs`
keys, each followed by its value; later each key comes once more, and the token to tell there is its value. Keys come
from the first half of the vocabulary, values from the second, both without replacement; gaps before the second call are
drawn with a power law of exponent 0.01. Fresh rows in every step, 500 rows to test.

The model is theirs too: two layers of a mixer without feed-forwards, learned positions, tied head, and before every
mixer a causal depthwise convolution of width 3, the same for all, which removes the phase in which attention learns to
look at the previous token. Training stops at an accuracy of 0.995. `optimizer=muon` trains the matrices of the
mixers by Muon and all other parameters by AdamW, as these are by themselves by default.

Results say what is reached within these steps at this rate, not what a mixer can do at best.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

import zoo
from benchmarks.files import console, header, results, write_json
from benchmarks.suites.recall import pair_rows
from benchmarks.suites.synthetic import IGNORED
from benchmarks.words import WordsError, asks_help, choice, integer, split
from recipes.muon import Muon
from zoo.blocks.api import Context, Slot
from zoo.blocks.recurrent_mixer import Tokens
from zoo.blocks.short_conv import ShortConv
from zoo.registry import decode

__all__ = ["ARMS", "Recall", "rows", "train"]

LENGTH, PAIRS, VOCABULARY, DIM, DEPTH, BATCH, TEST, CONV = 64, 16, 256, 64, 2, 32, 500, 3
WARMUP = 0.05  # share of the steps in which the rate rises
KEYS = ("mixer", "seeds", "steps", "lr", "optimizer", "out")
OPTIMIZERS = ("adamw", "muon")

ARMS: dict[str, Any] = {
    "attention": {"name": "attention", "heads": 1},
    "linear_attention": {"name": "linear_attention", "heads": 1, "feature_map": "elu"},
    "taylor": {"name": "linear_attention", "heads": 1, "feature_map": "taylor"},
    # One head that starts with rates up to 16 forgets within some ten tokens: 0.09 after 1,000 steps (seeds 0 and 1).
    "gated_delta": {"name": "gated_delta", "heads": 1, "expand_v": 1.0, "decay_rates": (0.0, 0.1)},
}
"""Mixers by the name of the arm; any registered mixer with its defaults is one too."""


class Recall(nn.Module):
    """ids (B, T) -> logits (B, T, V)."""

    def __init__(self, mixer: Any) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(VOCABULARY, DIM), nn.Embedding(LENGTH, DIM)
        config = decode("mixer", mixer)
        self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(DEPTH))
        self.convs = nn.ModuleList(ShortConv(DIM, CONV, bias=True, activation=False) for _ in range(DEPTH))
        slot = Slot(
            dim=DIM,
            heads=1,
            max_len=LENGTH,
            depth=DEPTH,
            branches=DEPTH,
            causal=True,
            init_std="fan_in",
            where="recall",
        )
        self.mixers = nn.ModuleList(config.at(n, DEPTH).build(slot.at(layer=n)) for n in range(DEPTH))
        self.norm = nn.LayerNorm(DIM)
        for table in (self.embed, self.place):
            nn.init.normal_(table.weight, std=DIM**-0.5)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) + self.place.weight  # (B, T, D)
        for norm, conv, mixer in zip(self.norms, self.convs, self.mixers, strict=True):
            x = x + mixer(conv(norm(x), Tokens(), None), Context())
        return F.linear(self.norm(x), self.embed.weight)  # (B, T, V)

    def state_bytes(self) -> int:
        """Bytes that one row's states hold at the end of a row."""
        return sum(mixer.init_state(1, LENGTH).nbytes() for mixer in self.mixers)  # type: ignore[operator, union-attr]


@dataclass(frozen=True)
class Outcome:
    """One training."""

    accuracy: float
    steps: int
    seconds: float


def rows(batch: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """ids and labels, (B, T) each; labels are -100 where nothing is asked."""
    return pair_rows(batch, generator, length=LENGTH, pairs=PAIRS, symbols=VOCABULARY)


def train(mixer: Any, seed: int, steps: int, lr: float, optimizer: str = "adamw") -> Outcome:
    """Train on fresh rows and test on rows of another generator, every 100 steps."""
    torch.manual_seed(seed)
    model, begun = Recall(mixer), time.process_time()
    optim = Muon(_groups(model, orthogonal=optimizer == "muon"), lr=lr, betas=(0.9, 0.95))
    generator, test = torch.Generator().manual_seed(seed), rows(TEST, torch.Generator().manual_seed(1_000_003))
    warmup = torch.optim.lr_scheduler.LambdaLR(optim, lambda done: min(1.0, (done + 1) / (WARMUP * steps)))
    accuracy, step = 0.0, 0
    while step < steps and accuracy < 0.995:
        model.train()
        for _ in range(min(100, steps - step)):
            ids, labels = rows(BATCH, generator)
            loss = F.cross_entropy(model(ids).flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
            optim.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optim.step()
            warmup.step()
            step += 1
        accuracy = _accuracy(model.eval(), *test)
    return Outcome(accuracy, step, time.process_time() - begun)


def _groups(model: Recall, *, orthogonal: bool) -> list[dict[str, Any]]:
    """Weight decay on all but vectors; the matrices of the mixers for Muon, or for AdamW as all others."""
    inside = [module.weight for module in model.mixers.modules() if isinstance(module, nn.Linear)]
    taken = {id(p) for p in inside}
    others = [p for p in model.parameters() if id(p) not in taken]
    return [
        {"params": inside, "weight_decay": 0.1, "muon": orthogonal},
        {"params": [p for p in others if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in others if p.dim() <= 1]},
    ]


@torch.no_grad()
def _accuracy(model: Recall, ids: Tensor, labels: Tensor) -> float:
    asked = labels != IGNORED
    return (model(ids).argmax(-1)[asked] == labels[asked]).float().mean().item()


def main(words: Sequence[str] | None = None) -> int:
    """Train every arm with every seed, print the table and write it."""
    words = list(sys.argv[1:] if words is None else words)
    if asks_help(words):
        print(__doc__)
        return 0
    try:
        values = split(words, KEYS)
        known = [*ARMS, *(name for name in zoo.list_mixers() if name not in ARMS)]
        names = [choice({"mixer": n}, "mixer", n, known) for n in values.get("mixer", ",".join(ARMS)).split(",")]
        seeds, steps = integer(values, "seeds", 3, 1, 100), integer(values, "steps", 1000, 1, 1_000_000)
        lr = _positive(values.get("lr", "5e-3"))
        optimizer = choice(values, "optimizer", OPTIMIZERS[0], OPTIMIZERS)
    except WordsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    shown = Table("mixer", "accuracy", "seeds", "steps", "state bytes a row", "CPU s", title="recall")
    found = {}
    for name in names:
        mixer = ARMS.get(name, name)
        outcomes = [train(mixer, seed, steps, lr, optimizer) for seed in range(seeds)]
        size = Recall(mixer).state_bytes()
        found[name] = {"state_bytes": size, "runs": [outcome.__dict__ for outcome in outcomes]}
        accuracies = [outcome.accuracy for outcome in outcomes]
        told = ", ".join(f"{accuracy:.3f}" for accuracy in accuracies)
        spent = [str(outcome.steps) for outcome in outcomes]
        seconds = sum(outcome.seconds for outcome in outcomes)
        shown.add_row(
            name, f"{statistics.fmean(accuracies):.3f}", told, ", ".join(spent), f"{size:,}", f"{seconds:.0f}"
        )
        console().print(f"{name}: {told} after {', '.join(spent)} steps, {seconds:.0f} s of CPU")
    console().print(shown)
    path = Path(values["out"]) if "out" in values else results() / "recall.json"
    command = " ".join(["python -m benchmarks.recall", *words])
    write_json(path, header(command, torch.get_num_threads()) | {"arms": found})
    print(f"written: {path}")
    return 0


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value < float("inf"):
        raise WordsError(f"lr: should be a number above 0, got '{text}'")
    return value


if __name__ == "__main__":
    raise SystemExit(main())
