"""Fine-tuning and the frozen probe: what they leave alone, and what they depend on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import zoo
from recipes.data.text.tokenizer_kinds import Characters
from recipes.masked.downstream import (
    DownstreamTask,
    accuracy,
    classifier_of,
    drawn,
    encoder_of,
    fine_tuned,
    labelled_examples,
    pooled_features,
    probe_accuracy,
)

ROWS = [("".join("ab"[(i >> bit) & 1] for bit in range(3 + i % 4)), i % 2) for i in range(24)]
ROWS = [(text + "cd"[label], label) for text, label in ROWS]
TOKENIZER = Characters(special=("pad", "cls", "sep", "mask")).train([text for text, _ in ROWS])
TASK = DownstreamTask(steps=30, batch_size=8, lr=1e-2, scratch_lr=1e-2)


def model_of(family: str = "bert", **choices: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"vocab_size": TOKENIZER.vocab_size, "max_len": 16, "dim": 16, "depth": 1, "heads": 2, "init_std": 0.2}
    return zoo.create_model(family, **{**sizes, **choices}).eval()


def examples() -> Any:
    return labelled_examples(ROWS, TOKENIZER, 16)


@pytest.mark.parametrize("family", ["bert", "electra"])
def test_fine_tuning_and_the_probe_leave_the_encoder_and_the_random_state_as_they_were(family: str) -> None:
    encoder = encoder_of(model_of(family))
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    state = torch.get_rng_state()
    features = pooled_features(encoder, examples())
    made = fine_tuned(encoder, examples(), 2, TASK, scratch=False)
    labels = examples().labels.numpy()
    splits = ("train", "val", "test")
    probe_accuracy(dict.fromkeys(splits, features), dict.fromkeys(splits, labels))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items())
    assert all(parameter.grad is None for parameter in encoder.parameters())
    assert accuracy(made, examples()) > 0.9
    assert not made.training


def test_a_classifier_starts_from_the_encoders_weights_and_from_scratch_does_not() -> None:
    encoder = model_of(next_sentence=True)
    made: Any = classifier_of(encoder, 3)
    ids = examples().batch([0], None)["ids"]
    assert torch.equal(made.eval().features(ids), encoder.features(ids))
    assert made(ids).shape == (1, 3)
    assert made.head is None
    assert made.pooler is None
    still = DownstreamTask(steps=0)
    kept = fine_tuned(encoder, examples(), 2, still, scratch=False)
    fresh = fine_tuned(encoder, examples(), 2, still, scratch=True)
    assert torch.equal(kept.embed.weight, encoder.embed.weight)
    assert not torch.equal(fresh.embed.weight, encoder.embed.weight)


def test_fine_tuning_is_the_same_whatever_was_drawn_before() -> None:
    encoder = model_of()
    torch.manual_seed(1)
    first = fine_tuned(encoder, examples(), 2, TASK, scratch=False)
    torch.manual_seed(2)
    again = fine_tuned(encoder, examples(), 2, TASK, scratch=False)
    assert all(torch.equal(a, b) for a, b in zip(first.state_dict().values(), again.state_dict().values(), strict=True))


def test_features_are_in_the_order_of_the_examples_and_do_not_see_padding() -> None:
    encoder = model_of()
    together = pooled_features(encoder, examples(), batch_size=7)
    for row in (0, 5, 11, 23):
        alone = pooled_features(encoder, labelled_examples([ROWS[row]], TOKENIZER, 16))
        np.testing.assert_allclose(together[row], alone[0], atol=1e-5)
    assert together.shape == (24, 4 * 16)


def test_draws_differ_hold_so_many_labels_and_are_always_the_same() -> None:
    first, second = drawn(ROWS, 8, 0), drawn(ROWS, 8, 1)
    assert len(first) == len(second) == 8
    assert first != second
    assert first == drawn(ROWS, 8, 0)
    assert drawn(ROWS, None, 0) == drawn(ROWS, 99, 5) == ROWS


def test_the_probe_takes_the_best_penalty_on_validation_and_survives_one_class() -> None:
    draw = np.random.default_rng(0)
    labels = draw.integers(0, 2, 60)
    features = labels[:, None] + 0.3 * draw.standard_normal((60, 4))
    found = probe_accuracy(
        dict.fromkeys(("train", "val", "test"), features), dict.fromkeys(("train", "val", "test"), labels)
    )
    assert found["test"] > 0.95
    ones = {"train": np.zeros(60, dtype=int), "val": labels, "test": labels}
    assert probe_accuracy(dict.fromkeys(ones, features), ones)["test"] == pytest.approx((labels == 0).mean())
