"""ELECTRA: what counts as replaced, where gradients go, what its two parts share, and the draws of its generator."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import zoo
from zoo.registry import ConfigError

SIZES: dict[str, Any] = {"vocab_size": 30, "max_len": 16, "dim": 16, "depth": 2, "heads": 2, "generator_share": 0.5}


def small(**choices: Any) -> Any:
    torch.manual_seed(0)
    return zoo.create_model("electra", **{**SIZES, "init_std": 0.3, **choices}).double()


def masked() -> tuple[Tensor, Tensor]:
    """Masked ids (3 is the mask token) and labels."""
    draw = torch.Generator().manual_seed(1)
    original = torch.randint(4, 30, (3, 8), generator=draw)
    places = torch.rand(3, 8, generator=draw) < 0.4
    return torch.where(places, 3, original), torch.where(places, original, -100)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_only_masked_places_are_filled_and_a_sample_equal_to_the_original_counts_as_original() -> None:
    model = small()
    ids, labels = masked()
    places = labels != -100
    made = model.replace(ids, labels, generator=generator())
    assert torch.equal(made.ids[~places], ids[~places])
    assert torch.equal(made.replaced, places & (made.ids != labels))
    with torch.no_grad():  # a generator that always tells the label of the first place
        right = int(labels[places][0])
        model.generator.head.bias[right] = 1e4
    made = model.replace(ids, labels, generator=generator())
    assert (made.ids[places] == right).all()
    assert not made.replaced[places & (labels == right)].any()
    assert made.replaced[places & (labels != right)].all()


def test_the_generators_loss_is_the_cross_entropy_of_the_masked_places() -> None:
    model = small()
    ids, labels = masked()
    found = model.replace(ids, labels, generator=generator()).generator_loss
    logits = model.generator(ids).log_softmax(-1)
    expected = -sum(logits[b, t, labels[b, t]] for b, t in (labels != -100).nonzero().tolist())
    torch.testing.assert_close(found, expected)


def test_no_gradient_of_the_discriminator_passes_the_sampling() -> None:
    model = small()
    ids, labels = masked()
    made = model.replace(ids, labels, generator=generator())
    model(made.ids).sum().backward()
    shared = {id(model.discriminator.embed.weight), id(model.discriminator.types.weight)}
    shared.add(id(model.discriminator.stack.position.weight))
    own = {name: p for name, p in model.generator.named_parameters() if id(p) not in shared}
    assert own
    assert all(parameter.grad is None for parameter in own.values())
    assert all(parameter.grad is not None for name, parameter in model.discriminator.named_parameters())


def test_both_parts_train_the_same_embeddings() -> None:
    model = small()
    names = [name for name, _ in model.named_parameters() if "embed" in name or "types" in name]
    assert names == ["discriminator.embed.weight", "discriminator.types.weight"]
    ids, labels = masked()
    model.replace(ids, labels, generator=generator()).generator_loss.backward()
    assert model.discriminator.embed.weight.grad.abs().sum() > 0
    assert model.generator.config.dim == 8
    assert model.generator.embed.weight.shape == (30, 16)


def test_samples_follow_their_own_random_stream_alone() -> None:
    model = small()
    ids, labels = masked()
    first = model.replace(ids, labels, generator=generator(5)).ids
    torch.manual_seed(99)
    assert torch.equal(model.replace(ids, labels, generator=generator(5)).ids, first)
    others = [model.replace(ids, labels, generator=generator(seed)).ids for seed in range(6, 12)]
    assert any(not torch.equal(other, first) for other in others)
    state = torch.get_rng_state()
    model.replace(ids, labels, generator=generator(5))
    assert torch.equal(torch.get_rng_state(), state)


def test_a_temperature_of_almost_nothing_takes_the_likeliest_token() -> None:
    model = small()
    ids, labels = masked()
    made = model.replace(ids, labels, temperature=1e-6, generator=generator())
    places = labels != -100
    assert torch.equal(made.ids[places], model.generator(ids).argmax(-1)[places])


def test_padding_changes_neither_part_and_a_batch_without_masks_is_no_loss() -> None:
    model = small()
    ids, labels = masked()
    wide = torch.cat([ids, torch.full((3, 3), 9)], 1)
    mask = (torch.arange(11) < 8).expand(3, 11)
    more = torch.cat([labels, torch.full((3, 3), -100)], 1)
    plain = model.replace(ids, labels, generator=generator())
    padded = model.replace(wide, more, token_mask=mask, generator=generator())
    assert torch.equal(padded.ids[:, :8], plain.ids)
    torch.testing.assert_close(padded.generator_loss, plain.generator_loss, rtol=0, atol=1e-10)
    torch.testing.assert_close(model(padded.ids, token_mask=mask)[:, :8], model(plain.ids), rtol=0, atol=1e-10)
    none = model.replace(ids, torch.full_like(ids, -100), generator=generator())
    assert none.generator_loss == 0
    assert not none.replaced.any()


def test_a_share_that_does_not_divide_is_told_in_one_line() -> None:
    with pytest.raises(ConfigError, match=r"generator_share 0.7 gives width 11 and 3 heads, which do not divide"):
        small(heads=4, generator_share=0.7)
