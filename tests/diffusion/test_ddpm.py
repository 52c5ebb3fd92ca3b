"""Discrete diffusion against its formulas, written out, and against data whose best denoiser is known."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import zoo
from zoo.diffusion import DDPM, Chain, DDPMConfig, cosine_alpha_bar, linear_alpha_bar
from zoo.diffusion.vlb import normal_kl, pixel_log_likelihood

MU, S = 0.7, 0.4  # data: each pixel N(MU, S^2)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def best(process: DDPM):
    """E[prediction | x_t] for that data, in closed form."""

    def denoise(x: Tensor, t: Tensor) -> Tensor:
        index = (t * process.config.times / 1000).round().long().cpu()
        a = process.chain.alpha_bar[index].to(x.dtype).view(-1, 1, 1, 1)
        x0 = MU + S**2 * a.sqrt() / (a * S**2 + 1 - a) * (x - a.sqrt() * MU)
        noise = (x - a.sqrt() * x0) / (1 - a).sqrt()
        predict = process.config.predict
        return noise if predict == "noise" else x0 if predict == "image" else a.sqrt() * noise - (1 - a).sqrt() * x0

    return denoise


def odd(x: Tensor, t: Tensor) -> Tensor:
    return 0.5 * torch.tanh(x) + 0.3 * torch.sin(t / 100).view(-1, 1, 1, 1)


def odd_with_variance(x: Tensor, t: Tensor) -> Tensor:
    return torch.cat((odd(x, t), torch.cos(3 * x)), dim=1)


@pytest.mark.parametrize("steps", [1000, 100])
def test_schedules_equal_their_papers(steps: int) -> None:
    product, linear = 1.0, linear_alpha_bar(steps)
    for t in range(steps):
        low, high = 1e-4 * 1000 / steps, 0.02 * 1000 / steps
        product *= 1 - (low + (high - low) * t / (steps - 1))
        assert abs(linear[t] - product) < 1e-12
    cosine = cosine_alpha_bar(steps)

    def f(t: int) -> float:
        return math.cos((t / steps + 0.008) / 1.008 * math.pi / 2) ** 2

    for t in range(steps - 1):  # beta reaches 0.999 at the last only
        assert abs(cosine[t] - f(t + 1) / f(0)) < 1e-10
    assert abs(cosine[-1] / cosine[-2] - 0.001) < 1e-12


def test_linear_schedule_ends_as_published() -> None:
    """Ho et al., section 4: L_T is about 1e-5 bits a dimension, so almost nothing is left of the data."""
    left = linear_alpha_bar(1000)[-1]
    assert abs(left - 4.0358e-5) < 1e-8
    x0 = torch.linspace(-1, 1, 101, dtype=torch.float64)
    zero = torch.zeros_like(x0)
    bits = normal_kl(left.sqrt() * x0, zero + (1 - left).log(), zero, zero).mean() / math.log(2)
    assert 5e-6 < bits < 2e-5


def test_the_posterior_is_bayes_rule() -> None:
    """x_{t-1} given x_t and x_0, from the joint normal of x_{t-1} and x_t."""
    chain = DDPMConfig(times=10).build().chain
    x0, x = normal(1, 1, 2, 2), normal(1, 1, 2, 2, seed=1)
    for t in range(1, 10):
        alpha = chain.alpha_bar[t] / chain.alpha_bar[t - 1]
        mean, variance = chain.alpha_bar[t - 1].sqrt() * x0, 1 - chain.alpha_bar[t - 1]
        gain = variance * alpha.sqrt() / (alpha * variance + 1 - alpha)
        expected = mean + gain * (x - alpha.sqrt() * mean)
        torch.testing.assert_close(chain.posterior_mean(x0, x, torch.tensor([t])), expected, rtol=0, atol=1e-12)
        assert abs(chain.variance[t] - variance * (1 - gain * alpha.sqrt())) < 1e-12
    assert torch.equal(chain.posterior_mean(x0, x, torch.tensor([0])), x0)


@pytest.mark.parametrize("predict", ["noise", "velocity", "image"])
@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_what_the_denoiser_is_asked_for_gives_back_the_image(predict: str, schedule: str) -> None:
    process = DDPMConfig(predict=predict, schedule=schedule, learned_sigma=False).build()
    t, x0, noise = torch.tensor([0, 500, 990]), normal(3, 2, 4, 4), normal(3, 2, 4, 4, seed=1)
    x, target = process.noised(x0, t, noise), process.target(x0, t, noise)
    torch.testing.assert_close(process.expected(target, x, t, process.chain), x0, rtol=0, atol=1e-9)
    assert torch.equal(process.loss(lambda *_: target, x0, t=t, noise=noise), torch.zeros(3, dtype=torch.float64))


def test_loss_is_the_mean_squared_error_of_each_row() -> None:
    process = DDPMConfig(learned_sigma=False).build()
    t, x0, noise = torch.tensor([3, 700]), normal(2, 2, 4, 4), normal(2, 2, 4, 4, seed=1)
    losses = process.loss(odd, x0, t=t, noise=noise)
    for row in range(2):
        a = process.chain.alpha_bar[t[row]]
        x = a.sqrt() * x0[row : row + 1] + (1 - a).sqrt() * noise[row : row + 1]
        error = odd(x, t[row : row + 1].double()) - noise[row : row + 1]
        assert abs(losses[row] - error.square().mean()) < 1e-12


@pytest.mark.parametrize("t", [0, 1, 400, 999])
def test_hybrid_loss_equals_the_bound_written_out(t: int) -> None:
    process = DDPMConfig().build()
    x0 = (torch.arange(32, dtype=torch.float64).view(1, 2, 4, 4) * 8 / 127.5 - 1).clamp(-1, 1)
    noise = normal(1, 2, 4, 4, seed=1)
    given = process.loss(odd_with_variance, x0, t=torch.tensor([t]), noise=noise)
    a = linear_alpha_bar(1000)
    now, before = a[t], a[t - 1] if t else torch.tensor(1.0, dtype=torch.float64)
    beta = 1 - now / before
    x = now.sqrt() * x0 + (1 - now).sqrt() * noise
    prediction, v = odd_with_variance(x, torch.tensor([t]).double()).chunk(2, 1)
    expected_x0 = (x - (1 - now).sqrt() * prediction) / now.sqrt()

    def mean(clean: Tensor) -> Tensor:
        return (before.sqrt() * beta * clean + (now / before).sqrt() * (1 - before) * x) / (1 - now)

    small = beta * (1 - before) / (1 - now) if t else (1 - a[1] / a[0]) * (1 - a[0]) / (1 - a[1])
    share = (v + 1) / 2
    ours = torch.distributions.Normal(mean(expected_x0), (share * beta.log() + (1 - share) * small.log()).exp().sqrt())
    if t:
        true = torch.distributions.Normal(mean(x0), small.sqrt().expand_as(x0))
        term = torch.distributions.kl_divergence(true, ours).mean()
    else:
        upper, lower = ours.cdf(x0 + 1 / 255), ours.cdf(x0 - 1 / 255)
        upper, lower = torch.where(x0 > 0.999, 1.0, upper), torch.where(x0 < -0.999, 0.0, lower)
        term = -(upper - lower).clamp(min=1e-12).log().mean()
    expected = (prediction - noise).square().mean() + term / math.log(2)  # 0.001 * 1000 = 1
    torch.testing.assert_close(given[0], expected, rtol=1e-10, atol=1e-12)


def test_the_bound_trains_the_variance_and_never_the_mean() -> None:
    x0, noise, out = normal(2, 1, 4, 4), normal(2, 1, 4, 4, seed=1), normal(2, 2, 4, 4, seed=2).requires_grad_()
    t = torch.tensor([0, 300])
    grads = []
    for weight in (0.0, 0.001):
        process = DDPMConfig(vlb_weight=weight).build()
        (grad,) = torch.autograd.grad(process.loss(lambda *_: out, x0, t=t, noise=noise).sum(), out)
        grads.append(grad)
    assert torch.equal(grads[0][:, :1], grads[1][:, :1])
    assert grads[0][:, 1:].abs().max() == 0 and grads[1][:, 1:].abs().min() > 0


def test_pixel_likelihoods_add_up_to_one() -> None:
    values = torch.linspace(-1, 1, 17, dtype=torch.float64)
    mass = pixel_log_likelihood(values, torch.tensor(0.3), torch.tensor(-3.0), levels=17).exp()
    assert abs(mass.sum() - 1) < 1e-9 and mass.argmax() == 10  # the value nearest 0.3 is 0.25


@pytest.mark.parametrize("predict", ["noise", "velocity", "image"])
@pytest.mark.parametrize("sampler", ["ancestral", "ddim"])
def test_samplers_give_back_the_data_of_the_best_denoiser(predict: str, sampler: str) -> None:
    process = DDPMConfig(predict=predict, learned_sigma=False, sigma="small", sample_steps=None).build()
    x = process.sample(best(process), (1, 64, 64), seeds=[1, 2], sampler=sampler)
    count = x.numel()
    assert abs(x.mean() - MU) < 5 * S / count**0.5
    assert abs(x.std() / S - 1) < 5 / (2 * count) ** 0.5 + 0.01  # 1000 steps are not a continuum


@pytest.mark.parametrize("steps", [1, 7, 50])
def test_ddim_with_eta_1_is_the_ancestral_sampler(steps: int) -> None:
    choices = {"learned_sigma": False, "sigma": "small", "schedule": "cosine", "predict": "velocity"}
    process = DDPMConfig(**choices, eta=1.0).build()
    ddim = process.sample(odd, (2, 4, 4), seeds=range(3), steps=steps, sampler="ddim")
    ancestral = process.sample(odd, (2, 4, 4), seeds=range(3), steps=steps, sampler="ancestral")
    torch.testing.assert_close(ddim, ancestral, rtol=1e-4, atol=1e-4)
    still = DDPMConfig(**choices).build().sample(odd, (2, 4, 4), seeds=range(3), steps=steps, sampler="ddim")
    assert steps == 1 or not torch.allclose(still, ddim, atol=1e-2)


def test_a_learned_variance_lies_between_the_two_fixed_ones() -> None:
    samples = {}
    for name, spread in (("small", -1.0), ("large", 1.0)):
        fixed = DDPMConfig(sigma=name, learned_sigma=False).build()
        learned = DDPMConfig().build()

        def denoise(x: Tensor, t: Tensor, spread: float = spread) -> Tensor:
            return torch.cat((odd(x, t), torch.full_like(x, spread)), dim=1)

        samples[name] = fixed.sample(odd, (1, 4, 4), seeds=[0], steps=9)
        torch.testing.assert_close(learned.sample(denoise, (1, 4, 4), seeds=[0], steps=9), samples[name])
    assert not torch.allclose(samples["small"], samples["large"], atol=1e-2)


def test_fewer_steps_are_a_chain_of_their_own() -> None:
    chain = DDPMConfig().build().chain
    whole, few = chain.spaced(1000), chain.spaced(10)
    assert torch.equal(whole.times, chain.times) and torch.equal(whole.alpha_bar, chain.alpha_bar)
    assert few.times.tolist() == [0, 111, 222, 333, 444, 555, 666, 777, 888, 999]
    assert torch.equal(few.alpha_bar, chain.alpha_bar[few.times])
    torch.testing.assert_close((1 - few.beta).cumprod(0), few.alpha_bar, rtol=1e-12, atol=0)
    assert chain.spaced(1).times.tolist() == [999]
    for steps in (0, 1001):
        with pytest.raises(zoo.ConfigError, match="1 to 1000"):
            chain.spaced(steps)


def test_a_chain_of_one_step_has_finite_variances() -> None:
    chain = Chain(torch.tensor([0.5], dtype=torch.float64), torch.tensor([0]))
    assert chain.log_variance.isfinite().all() and chain.large_log_variance.isfinite().all()


@pytest.mark.parametrize("sampler", ["ancestral", "ddim"])
def test_a_sample_does_not_depend_on_its_batch(sampler: str) -> None:
    process = DDPMConfig(eta=0.5).build()
    together = process.sample(odd_with_variance, (1, 4, 4), seeds=[3, 5, 9], steps=6, sampler=sampler)
    alone = process.sample(odd_with_variance, (1, 4, 4), seeds=[5], steps=6, sampler=sampler)
    assert torch.equal(together[1:2], alone) and not torch.equal(together[0], together[1])


def test_expected_images_are_clipped_and_every_step_can_be_watched() -> None:
    seen: list[tuple[Tensor, Tensor]] = []
    process = DDPMConfig(clip=0.5, learned_sigma=False).build()
    x = process.sample(odd, (1, 4, 4), seeds=[0, 1], steps=5, watch=lambda *pair: seen.append(pair))
    assert len(seen) == 5 and torch.equal(seen[-1][0], x)
    assert all(expected.abs().max() <= 0.5 for _, expected in seen)


def test_times_are_told_on_the_scale_of_1000() -> None:
    told: list[Tensor] = []

    def denoise(x: Tensor, t: Tensor) -> Tensor:
        told.append(t)
        return x

    DDPMConfig(times=100, learned_sigma=False).build().sample(denoise, (1, 2, 2), seeds=[0], steps=2)
    assert [t.tolist() for t in told] == [[990.0], [0.0]]


def test_a_denoiser_of_other_channels_is_refused_in_one_line() -> None:
    with pytest.raises(zoo.ConfigError, match=r"\(2, 2, 4, 4\).*learned_sigma"):
        DDPMConfig().build().loss(odd, normal(2, 1, 4, 4))
    with pytest.raises(zoo.ConfigError, match="'linear' or 'cosine'"):
        DDPMConfig(schedule="sigmoid")
