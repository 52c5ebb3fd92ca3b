"""How sets are split: the stored test rows of the embedded sets, validation by class, and splits by name.

The test rows of `digits` and `mnist5k` are those of scikit-learn's
`train_test_split(test_size=0.2, stratify=labels, random_state=0)`. Importing scikit-learn to draw them costs about two
seconds of every start, so splits/NAME.json holds them as a bit mask (bit i of the hexadecimal number, lowest first, is
row i). `write_split(name, labels)` makes such a file; a test draws the rows anew and compares.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import torch
from torch import Tensor

from recipes.data.keys import generator
from zoo.registry import ConfigError

__all__ = ["by_name", "hold_out", "read_split", "stratified", "write_split"]

FOLDER = Path(__file__).parent / "splits"
RULE = "sklearn.model_selection.train_test_split(test_size=0.2, stratify=labels, random_state=0)"


def read_split(name: str) -> tuple[Tensor, Tensor]:
    """(train rows, test rows), int64, each in ascending order."""
    stored = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    mask = int(stored["test"], 16)
    is_test = torch.tensor([mask >> row & 1 for row in range(stored["rows"])], dtype=torch.bool)
    return (~is_test).nonzero().flatten(), is_test.nonzero().flatten()


def draw_split(labels: Tensor) -> Tensor:
    """Test rows (M,) in ascending order, drawn by scikit-learn under `RULE`."""
    from sklearn.model_selection import train_test_split

    _, test = train_test_split(range(len(labels)), test_size=0.2, stratify=labels.numpy(), random_state=0)
    return torch.tensor(sorted(test))


def write_split(name: str, labels: Tensor) -> None:
    """Draw the test rows with scikit-learn and store them."""
    mask = sum(1 << row for row in draw_split(labels).tolist())
    stored = {"rule": RULE, "rows": len(labels), "test": f"{mask:x}"}
    (FOLDER / f"{name}.json").write_text(json.dumps(stored, indent=2) + "\n", encoding="utf-8")


def hold_out(labels: Tensor, share: float, limit: int | None = None) -> tuple[Tensor, Tensor]:
    """(rows to train on, rows held out), ascending: `share` of each class is held out, then at most `limit` kept.

    Raises ConfigError when nothing is left to train on.
    """
    held = stratified(labels, round(share * len(labels)), "validation")
    is_held = torch.zeros(len(labels), dtype=torch.bool)
    is_held[held] = True
    keep = (~is_held).nonzero().flatten()
    if len(held) and not len(keep):
        raise ConfigError(f"{share} of {len(labels)} images leaves none to train on", "data.validation")
    if limit is not None and limit < len(keep):
        keep = keep[stratified(labels[keep], limit, "limit")]
    return keep, held


def stratified(labels: Tensor, count: int, purpose: str) -> Tensor:
    """`count` rows, ascending, with the classes in proportion; drawn from the purpose's name alone."""
    order = torch.randperm(len(labels), generator=generator("split", purpose))
    # Each row is placed at its rank within its class as a fraction of the class; the smallest fractions are taken.
    place = torch.empty(len(labels), dtype=torch.float64)
    for label in labels.unique():
        rows = order[labels[order] == label]
        place[rows] = (torch.arange(len(rows), dtype=torch.float64) + 0.5) / len(rows)
    # Ties (classes of one size) are broken by the random order.
    chosen = order[place[order].argsort(stable=True)][:count]
    return chosen.sort().values


def by_name(name: str) -> float:
    """A number in [0, 1) from the sha1 of a name: splits by it do not move when names are added."""
    return int(hashlib.sha1(name.encode()).hexdigest()[:13], 16) / 16**13
