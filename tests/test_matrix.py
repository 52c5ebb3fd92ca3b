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


SIZES: dict[str, Any] = {"vocab_size": 12, "max_len": 16, "dim": 16, "depth": 2, "heads": 2, "init_std": "fan_in"}


def scored(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten())


def gpt(**choices: Any) -> tuple[torch.nn.Module, Loss]:
    model, ids = zoo.create_model("gpt", **SIZES, **choices), torch.randint(12, (4, 9))
    return model, lambda: scored(model(ids[:, :-1]), ids[:, 1:])


def bert(**choices: Any) -> tuple[torch.nn.Module, Loss]:
    model, ids = zoo.create_model("bert", **SIZES, **choices), torch.randint(12, (4, 9))
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[0, 6:] = False
    return model, lambda: scored(model(ids, token_mask=mask)[mask], ids[mask])


def electra(**choices: Any) -> tuple[torch.nn.Module, Loss]:
    model, ids = zoo.create_model("electra", generator_share=0.5, **SIZES, **choices), torch.randint(12, (4, 9))
    replaced = (ids % 2).float()
    return model, lambda: torch.nn.functional.binary_cross_entropy_with_logits(model(ids), replaced)


def encoder_decoder(family: str) -> Callable[..., tuple[torch.nn.Module, Loss]]:
    def build(**choices: Any) -> tuple[torch.nn.Module, Loss]:
        model = zoo.create_model(family, **SIZES, **choices)
        source, target = torch.randint(12, (4, 7)), torch.randint(12, (4, 6))
        mask = torch.ones_like(source, dtype=torch.bool)
        mask[0, 4:] = False
        return model, lambda: scored(model(source, target[:, :-1], source_mask=mask), target[:, 1:])

    return build


FAMILIES: dict[str, Callable[..., tuple[torch.nn.Module, Loss]]] = {
    "vit": vit,
    "gpt": gpt,
    "bert": bert,
    "electra": electra,
    "t5": encoder_decoder("t5"),
    "transformer": encoder_decoder("transformer"),
}


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
