"""Every part in every family: what trains, and what refuses with which sentence.

    python -m benchmarks.matrix                     # mixers and feed-forwards, to benchmarks/results/matrix.md
    python -m benchmarks.matrix mixer=mamba2,kda    # these alone, printed

A cell builds a small model, takes 20 steps of AdamW on one random batch, and shows the last three losses over the first
three: below 0.9 it trains. tests/test_matrix.py asks the same of every cell. A family joins by one entry in FAMILIES, a
part by being registered.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import zoo
from benchmarks.files import results
from benchmarks.words import WordsError, asks_help, choice, split
from zoo import registry
from zoo.diffusion import FlowConfig
from zoo.files import write_text

__all__ = ["FAMILIES", "Cell", "cell", "choices_of", "table"]

Loss = Callable[[], Tensor]
Built = tuple[nn.Module, Loss]
SIZES: dict[str, Any] = {"vocab_size": 12, "max_len": 16, "dim": 16, "depth": 2, "heads": 2, "init_std": "fan_in"}
STEPS, TRAINS = 20, 0.9
KINDS = ("mixer", "ffn", "norm", "residual", "position")
HEAD = """# Parts in families

Written by `python -m benchmarks.matrix`: the mean loss of the last three of 20 steps over that of the first three, on
one random batch of a model of width 16. Bold: it does not fall below 0.9. (n): refused, with the sentence below.
"""


@dataclass(frozen=True)
class Cell:
    """What became of one part in one family: a ratio of losses, or the sentence that refuses."""

    ratio: float | None = None
    refusal: str | None = None

    @property
    def trains(self) -> bool:
        return self.ratio is not None and self.ratio < TRAINS


def cell(family: str, **choices: Any) -> Cell:
    """Train the family's small model with these choices."""
    torch.manual_seed(0)
    try:
        model, loss = FAMILIES[family](**choices)
    except zoo.ConfigError as refusal:
        return Cell(refusal=str(refusal))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(STEPS):
        value = loss()
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return Cell(ratio=sum(losses[-3:]) / sum(losses[:3]))  # NaN is not below anything


def choices_of(kind: str) -> list[str]:
    """Names of all registered parts of a kind."""
    zoo.list_mixers()  # registers everything
    return registry.names(kind)


def _vit(**choices: Any) -> Built:
    sizes = {"dim": 16, "depth": 2, "heads": 2}
    model = zoo.create_model("vit", image_size=8, patch_size=2, channels=1, num_classes=4, **sizes, **choices)
    images, labels = torch.randn(16, 1, 8, 8), torch.randint(4, (16,))
    return model, lambda: F.cross_entropy(model(images), labels)


def _dit(**choices: Any) -> Built:
    sizes = {"dim": 16, "depth": 2, "heads": 2, "channels": 1, "num_classes": 4, "learned_sigma": False}
    model = zoo.create_model("dit", image_size=8, patch_size=2, label_dropout=0.0, **sizes, **choices)
    images, noise, t, labels = torch.randn(16, 1, 8, 8), torch.randn(16, 1, 8, 8), torch.rand(16), torch.arange(16) % 4
    process = FlowConfig().build()
    return model, lambda: process.loss(lambda x, t: model(x, t, labels), images, t=t, noise=noise).mean()


def _scored(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten())


def _gpt(**choices: Any) -> Built:
    model, ids = zoo.create_model("gpt", **SIZES, **choices), torch.randint(12, (4, 9))
    return model, lambda: _scored(model(ids[:, :-1]), ids[:, 1:])


def _bert(**choices: Any) -> Built:
    model, ids = zoo.create_model("bert", **SIZES, **choices), torch.randint(12, (4, 9))
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[0, 6:] = False
    return model, lambda: _scored(model(ids, token_mask=mask)[mask], ids[mask])


def _electra(**choices: Any) -> Built:
    model, ids = zoo.create_model("electra", generator_share=0.5, **SIZES, **choices), torch.randint(12, (4, 9))
    replaced = (ids % 2).float()
    return model, lambda: F.binary_cross_entropy_with_logits(model(ids), replaced)


def _encoder_decoder(family: str, role: str = "mixer") -> Callable[..., Built]:
    """`role`: the field that a mixer goes to, both stacks' own or the one that reads the memory."""

    def build(**choices: Any) -> Built:
        if "mixer" in choices:
            choices = {**choices, role: choices.pop("mixer")}
        model = zoo.create_model(family, **SIZES, **choices)
        source, target = torch.randint(12, (4, 7)), torch.randint(12, (4, 6))
        mask = torch.ones_like(source, dtype=torch.bool)
        mask[0, 4:] = False
        return model, lambda: _scored(model(source, target[:, :-1], source_mask=mask), target[:, 1:])

    return build


def _decision(**choices: Any) -> Built:
    sizes = {name: value for name, value in SIZES.items() if name in ("dim", "depth", "heads", "init_std")}
    model = zoo.create_model("decision", state_dim=4, action_dim=3, discrete=True, max_timestep=9, **sizes, **choices)
    states, actions, returns = torch.randn(4, 6, 4), torch.randint(3, (4, 6)), torch.rand(4, 6)
    return model, lambda: _scored(model(states, actions, returns), actions)


def _whisper(**choices: Any) -> Built:
    model = zoo.create_model("whisper", mels=5, max_frames=14, start_id=0, **SIZES, **choices)
    frames, target = torch.randn(4, 5, 14), torch.randint(12, (4, 6))
    mask = torch.ones(4, 14, dtype=torch.bool)
    mask[0, 8:] = False
    return model, lambda: _scored(model(frames, target[:, :-1], source_mask=mask), target[:, 1:])


FAMILIES: dict[str, Callable[..., Built]] = {
    "vit": _vit,
    "dit": _dit,
    "gpt": _gpt,
    "bert": _bert,
    "electra": _electra,
    "t5": _encoder_decoder("t5"),
    "t5 cross": _encoder_decoder("t5", "cross"),
    "transformer": _encoder_decoder("transformer"),
    "whisper": _whisper,
    "decision": _decision,
}


def table(kind: str, names: Sequence[str]) -> str:
    """Markdown: a row for each part, a column for each family, and the sentences of those that refuse."""
    rows, notes = [], []
    for name in names:
        shown = []
        for family in FAMILIES:
            found = cell(family, **{kind: name})
            if found.refusal is None:
                shown.append(f"{found.ratio:.2f}" if found.trains else f"**{found.ratio:.2f}**")
            else:
                if found.refusal not in notes:
                    notes.append(found.refusal)
                shown.append(f"({notes.index(found.refusal) + 1})")
        rows.append(f"| {name} | " + " | ".join(shown) + " |")
    head = [f"| {kind} | " + " | ".join(FAMILIES) + " |", "|---" * (len(FAMILIES) + 1) + "|"]
    told = [f"({number}) `{note}`  " for number, note in enumerate(notes, 1)]
    return "\n".join([*head, *rows, "", *told]).rstrip() + "\n"


def main(words: Sequence[str] | None = None) -> int:
    """Write the whole table, or print that of the parts named."""
    words = list(sys.argv[1:] if words is None else words)
    if asks_help(words):
        print(__doc__)
        return 0
    try:
        asked = split(words, KINDS)
        named = {kind: [choice({kind: n}, kind, n, choices_of(kind)) for n in asked[kind].split(",")] for kind in asked}
    except WordsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if named:
        print("\n".join(table(kind, names) for kind, names in named.items()), end="")
        return 0
    parts = [f"## {kind}\n\n{table(kind, choices_of(kind))}" for kind in ("mixer", "ffn")]
    path = results() / "matrix.md"
    write_text(path, "\n".join([HEAD, *parts]))
    print(f"written: {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
