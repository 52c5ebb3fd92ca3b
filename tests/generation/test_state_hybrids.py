"""Small Jamba and MiniMax-01: with a state, at any split and behind padding, what one pass says, in fp64 to 1e-10."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import zoo
from tests.generation.models import VOCAB, padded, prompt

EXPERT: dict[str, Any] = {"name": "swiglu", "hidden": 24}
MOE: dict[str, Any] = {"name": "moe", "experts": 4, "expert": EXPERT}
SIZES: dict[str, Any] = {"dim": 32, "depth": 8, "heads": 8, "vocab_size": VOCAB, "max_len": 64, "init_std": 0.3}
SMALL: dict[str, dict[str, Any]] = {
    "jamba": {"ffn": {"name": "hybrid", "pattern": [EXPERT, {**MOE, "normalise": False}]}},
    "minimax_01": {"ffn": MOE},
}
each = pytest.mark.parametrize("name", SMALL)
MORE, NEW = 6, 8


def small(name: str) -> Any:
    """The preset with its own mixers, residual connections and positions, and few channels."""
    torch.manual_seed(0)
    return zoo.create_model(name, **SIZES, **SMALL[name]).double().eval()


@each
@pytest.mark.parametrize("cuts", [[9, 1, 1, 1, 1, 1, 1], [9, 4, 2], [2, 1, 8, 3, 1]], ids=str)
@pytest.mark.parametrize("where", ["left", "anywhere"])
def test_pieces_with_a_state_equal_each_row_alone(name: str, cuts: list[int], where: str) -> None:
    model = small(name)
    ids, mask, _ = padded(where)
    ids = torch.cat([ids, torch.stack([prompt(MORE, seed) for seed in range(3)])], 1)  # (3, 15)
    mask = torch.cat([mask, torch.ones(3, MORE, dtype=torch.bool)], 1)
    with torch.no_grad():
        state = model.init_state(3, ids.shape[1])
        pieces = zip(ids.split(cuts, 1), mask.split(cuts, 1), strict=True)
        cached = torch.cat([model(piece, token_mask=real, state=state) for piece, real in pieces], 1)
        torch.testing.assert_close(model(ids, token_mask=mask)[mask], cached[mask], rtol=0, atol=1e-10)
        for row, real in enumerate(mask):
            torch.testing.assert_close(cached[row, real], model(ids[row, real][None])[0], rtol=0, atol=1e-10)


def without_state(model: Any, row: Tensor) -> Tensor:
    """Greedy tokens of one prompt, each by a pass over all that went before."""
    ids = row[None]
    for _ in range(NEW):
        ids = torch.cat([ids, model(ids)[:, -1].argmax(-1, keepdim=True)], 1)
    return ids[0, len(row) :]


@each
def test_generated_tokens_equal_those_of_whole_passes(name: str) -> None:
    model = small(name)
    _, _, prompts = padded("left")
    with torch.no_grad():
        expected = [without_state(model, row) for row in prompts]
    found = zoo.generate(model, prompts, max_new_tokens=NEW).new
    assert all(torch.equal(mine, its) for mine, its in zip(found, expected, strict=True))
    assert len({tuple(row.tolist()) for row in expected}) == 3  # the answers vary
