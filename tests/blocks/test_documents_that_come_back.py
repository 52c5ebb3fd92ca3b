"""An id that comes back in a row is another document, for every mixer that keeps documents apart."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import zoo
from zoo.blocks.api import Capability
from zoo.registry import decode

IDS = torch.tensor([[3, 3, 1, 1, 1, 3, 3, 3, 3, 1, 7, 7, 3], [0] * 5 + [1] * 4 + [0] * 4])
RUNS = torch.tensor([[0, 0, 1, 1, 1, 2, 2, 2, 2, 3, 4, 4, 5], [0] * 5 + [1] * 4 + [2] * 4])
MASK = torch.ones(2, 13, dtype=torch.bool)
MASK[0, 3] = MASK[0, 8] = MASK[1, -1] = False
CHOICES: list[Any] = [*zoo.list_mixers(), {"name": "attention", "window": 4}]
MIXERS = [choice for choice in CHOICES if Capability.DOCUMENTS in decode("mixer", choice).capabilities]


def made(mixer: Any, *, causal: bool) -> nn.Module:
    torch.manual_seed(0)
    return zoo.create_mixer(mixer, dim=16, heads=2, max_len=32, causal=causal).double().eval()


@pytest.fixture
def x() -> Tensor:
    return torch.randn(2, 13, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "two-sided"])
@pytest.mark.parametrize("mixer", MIXERS, ids=str)
def test_an_id_that_comes_back_is_another_document(mixer: Any, causal: bool, x: Tensor) -> None:
    module = made(mixer, causal=causal)
    for token_mask in (None, MASK):
        told, expected = (module(x, zoo.Context(documents=d, token_mask=token_mask)) for d in (IDS, RUNS))
        torch.testing.assert_close(told, expected, rtol=0, atol=0)


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("lengths", [(13,), (7, 6), (5, 1, 7), (1,) * 13], ids=str)
@pytest.mark.parametrize("mixer", MIXERS, ids=str)
def test_it_is_so_after_any_split(mixer: Any, lengths: tuple[int, ...], padded: bool, x: Tensor) -> None:
    module: Any = made(mixer, causal=True)
    outputs = []
    for documents in (IDS, RUNS):
        state, parts = module.init_state(2, 32, dtype=torch.float64), []
        for part, ids, real in zip(*(whole.split(lengths, 1) for whole in (x, documents, MASK)), strict=True):
            context = zoo.Context(documents=ids, token_mask=real if padded else None)
            parts.append(module(part, context, state=state).masked_fill(~(real | (not padded))[..., None], 0.0))
        outputs.append(torch.cat(parts, 1))
    torch.testing.assert_close(outputs[0], outputs[1], rtol=0, atol=1e-12)
