"""Classifier-free guidance: the formula, the switch of the original, and a model that is asked once at scale 1."""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.diffusion import guided

X, T = torch.randn(3, 4, 2, 2, generator=torch.Generator().manual_seed(0)), torch.tensor([1.0, 2.0, 3.0])
LABELS = torch.tensor([0, 2, 1])


class Model:
    null_label = 9

    def __init__(self, times: int = 1) -> None:
        self.times, self.calls = times, 0

    def __call__(self, x: Tensor, t: Tensor, labels: Tensor) -> Tensor:
        self.calls += 1
        y = torch.sin(x * (1 + labels.view(-1, 1, 1, 1))) + t.view(-1, 1, 1, 1)
        return torch.cat([y * (n + 1) for n in range(self.times)], dim=1)


def test_guidance_is_the_formula_and_leaves_the_variance_to_the_class() -> None:
    model = Model(times=2)
    told, untold = model(X, T, LABELS), model(X, T, torch.full((3,), 9))
    out = guided(model, LABELS, 2.5)(X, T)
    torch.testing.assert_close(out[:, :4], untold[:, :4] + 2.5 * (told[:, :4] - untold[:, :4]))
    torch.testing.assert_close(out[:, 4:], told[:, 4:])
    torch.testing.assert_close(guided(model, LABELS, 0.0)(X, T)[:, :4], untold[:, :4])


def test_three_channels_are_guided_as_in_the_original() -> None:
    model = Model(times=2)
    both = model(torch.cat((X, X)), torch.cat((T, T)), torch.cat((LABELS, torch.full((3,), 9))))
    noise, rest = both[:, :3], both[:, 3:]
    told, untold = noise.split(3)
    half = untold + 4.0 * (told - untold)
    original = torch.cat((torch.cat((half, half)), rest), dim=1)[:3]
    torch.testing.assert_close(guided(model, LABELS, 4.0, channels=3)(X, T), original)


def test_at_scale_1_the_model_is_asked_once_for_the_class_alone() -> None:
    model = Model()
    assert torch.equal(guided(model, LABELS)(X, T), Model()(X, T, LABELS)) and model.calls == 1
