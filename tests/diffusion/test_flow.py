"""Rectified flow against data whose velocity field and whose every path are known."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

import zoo
from zoo.diffusion import FlowConfig, SampleNoise

MU, S = 0.7, 0.4  # data: each pixel N(MU, S^2)


def best(x: Tensor, t: Tensor) -> Tensor:
    """E[e - x_0 | x_t] for that data: the path is x_t = (1 - t) MU + r z, r^2 = (1 - t)^2 S^2 + t^2."""
    t = (t / 1000).view(-1, 1, 1, 1)
    z_over_r = (x - (1 - t) * MU) / ((1 - t) ** 2 * S**2 + t**2)
    return t * z_over_r - (MU + (1 - t) * S**2 * z_over_r)


def gap(sampler: str, steps: int, **choices) -> float:
    """Largest distance from where the exact path ends, MU + S z."""
    x = FlowConfig(sampler=sampler, **choices).build().sample(best, (1, 8, 8), seeds=[0, 1], steps=steps)
    return (x - (MU + S * SampleNoise([0, 1])((1, 8, 8)))).abs().max().item()


@pytest.mark.parametrize("shift", [1.0, 3.0])
@pytest.mark.parametrize(("sampler", "order"), [("euler", 1), ("heun", 2)])
def test_samplers_reach_the_data_with_their_order(sampler: str, order: int, shift: float) -> None:
    gaps = [gap(sampler, steps, shift=shift) for steps in (40, 80, 160)]
    assert gaps[-1] < 0.04 / order**3
    assert all(a / b > 2**order * 0.8 for a, b in pairwise(gaps)), gaps


def test_euler_steps_are_those_written_out() -> None:
    x = SampleNoise([7])((1, 2, 2))
    for now, then in ((1.0, 0.75), (0.75, 0.5), (0.5, 0.25), (0.25, 0.0)):
        x = x + (then - now) * best(x, torch.tensor([1000 * now]))
    torch.testing.assert_close(FlowConfig().build().sample(best, (1, 2, 2), seeds=[7], steps=4), x)


def test_loss_is_the_squared_error_of_the_velocity() -> None:
    x0, noise = torch.randn(2, 3, 4, 4, dtype=torch.float64), torch.randn(2, 3, 4, 4, dtype=torch.float64)
    t, seen = torch.tensor([0.25, 0.9], dtype=torch.float64), []

    def denoise(x: Tensor, told: Tensor) -> Tensor:
        seen.extend([x, told])
        return torch.zeros_like(x)

    losses = FlowConfig().build().loss(denoise, x0, t=t, noise=noise)
    torch.testing.assert_close(losses, (noise - x0).square().mean((1, 2, 3)))
    torch.testing.assert_close(seen[0], (1 - t).view(2, 1, 1, 1) * x0 + t.view(2, 1, 1, 1) * noise)
    torch.testing.assert_close(seen[1], 1000 * t)
    assert FlowConfig().build().loss(lambda *_: noise - x0, x0, t=t, noise=noise).max() == 0


def test_training_times_have_the_density_asked_for() -> None:
    torch.manual_seed(0)
    logits = torch.logit(FlowConfig(mean=0.5, std=0.8).build().times(20000))
    assert abs(logits.mean() - 0.5) < 5 * 0.8 / 20000**0.5 and abs(logits.std() / 0.8 - 1) < 0.03
    uniform = FlowConfig(density="uniform").build().times(20000)
    assert abs(uniform.mean() - 0.5) < 0.012 and abs(uniform.var() - 1 / 12) < 0.003
    torch.manual_seed(1)
    plain = FlowConfig().build().times(100)
    torch.manual_seed(1)
    torch.testing.assert_close(FlowConfig(shift=3.0).build().times(100), 3 * plain / (1 + 2 * plain))


@pytest.mark.parametrize("sampler", ["euler", "heun"])
def test_a_sample_does_not_depend_on_its_batch(sampler: str) -> None:
    process = FlowConfig(sampler=sampler).build()
    together = process.sample(best, (1, 4, 4), seeds=[3, 5, 9], steps=6)
    assert torch.equal(together[1:2], process.sample(best, (1, 4, 4), seeds=[5], steps=6))
    assert not torch.equal(together[0], together[1])


@pytest.mark.parametrize(("sampler", "calls"), [("euler", 5), ("heun", 9)])
def test_every_step_can_be_watched_and_time_0_is_never_asked(sampler: str, calls: int) -> None:
    times, seen = [], []

    def denoise(x: Tensor, t: Tensor) -> Tensor:
        times.append(t.item())
        return best(x, t)

    x = (
        FlowConfig()
        .build()
        .sample(denoise, (1, 4, 4), seeds=[0], steps=5, sampler=sampler, watch=lambda *p: seen.append(p))
    )
    assert len(times) == calls and min(times) > 0 and len(seen) == 5
    assert torch.equal(seen[-1][0], x)
    torch.testing.assert_close(seen[-1][1], x)  # the last step goes to where the image was expected


def test_a_denoiser_with_a_variance_and_empty_seeds_are_refused() -> None:
    with pytest.raises(zoo.ConfigError, match="learned_sigma=False"):
        FlowConfig().build().loss(lambda x, t: torch.cat((x, x), 1), torch.randn(2, 1, 4, 4))
    with pytest.raises(ValueError, match="seeds"):
        FlowConfig().build().sample(best, (1, 4, 4), seeds=[])
