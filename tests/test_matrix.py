"""Every mixer in every family: a cell trains with falling loss, or refuses in one sentence that says why.

A family joins by one entry in FAMILIES; a mixer joins by being registered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import zoo
from zoo import registry

Loss = Callable[[], torch.Tensor]


def vit(**choices: Any) -> tuple[torch.nn.Module, Loss]:
    model = zoo.create_model(
        "vit", image_size=8, patch_size=2, channels=1, num_classes=4, dim=16, depth=2, heads=2, **choices
    )
    images, labels = torch.randn(16, 1, 8, 8), torch.randint(4, (16,))
    return model, lambda: torch.nn.functional.cross_entropy(model(images), labels)


FAMILIES: dict[str, Callable[..., tuple[torch.nn.Module, Loss]]] = {"vit": vit}


def cell(family: str, **choices: Any) -> None:
    torch.manual_seed(0)
    try:
        model, loss = FAMILIES[family](**choices)
    except zoo.ConfigError as refusal:
        text = str(refusal)
        assert "\n" not in text and text.startswith(family) and ("needs" in text or "choices" in text), text
        return
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(20):
        value = loss()
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(value.item())
    assert all(torch.isfinite(torch.tensor(losses)))
    assert sum(losses[-3:]) < 0.9 * sum(losses[:3])


def choices_of(kind: str) -> list[str]:
    zoo.list_mixers()  # registers everything
    return registry.names(kind)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("mixer", choices_of("mixer"))
def test_mixer_in_family(family: str, mixer: str) -> None:
    cell(family, mixer=mixer)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind in ("ffn", "norm", "residual", "position") for name in choices_of(kind)]
)
def test_part_in_family(family: str, kind: str, name: str) -> None:
    cell(family, **{kind: name})
