"""Losses of pre-training against sums done by hand, and their scale over the micro-batches of a step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

import zoo
from recipes.data.text.bucketing import Bucketed
from recipes.data.text.masked import MaskedExamples
from recipes.data.text.tokenizer_kinds import Characters
from recipes.masked.loader import WindowLoader
from recipes.masked.losses import electra_loss, masked_lm_loss
from recipes.masked.sentence_pairs import SentencePairs

WORDS = ["abcd", "bcdea", "cab", "deadbe", "eba", "abba", "cedca", "bead", "dab", "acedbce", "ebbd", "caddba"]
TOKENIZER = Characters(special=("pad", "cls", "sep", "mask")).train(WORDS)
SIZES: dict[str, Any] = {"vocab_size": TOKENIZER.vocab_size, "max_len": 32, "dim": 16, "depth": 1, "heads": 2}


def model_of(family: str = "bert", **choices: Any) -> Any:
    torch.manual_seed(0)
    return zoo.create_model(family, **{**SIZES, "init_std": 0.3, **choices}).double()


def loader(*, pairs: bool = False, size: int = 4, accumulate: int = 1, **options: Any) -> WindowLoader:
    ids = TOKENIZER.sequences(WORDS)
    made = SentencePairs(ids, TOKENIZER, 0.4, limit=16) if pairs else MaskedExamples(ids, TOKENIZER, 0.4)
    return WindowLoader(Bucketed(made), size, shuffle=True, seed=0, accumulate=accumulate, **options)


def test_the_masked_loss_is_the_sum_over_masked_tokens_alone() -> None:
    model, batch = model_of().train(), next(iter(loader()))
    logits = model(batch["ids"], token_mask=batch.get("token_mask")).log_softmax(-1)
    places = (batch["labels"] != -100).nonzero().tolist()
    expected = -sum(logits[row, place, batch["labels"][row, place]] for row, place in places)
    torch.testing.assert_close(masked_lm_loss(model, batch)[0], expected)
    assert len(places) == batch["window_targets"]
    loss, logs = masked_lm_loss(model.eval(), batch)
    hits = sum(int(logits[row, place].argmax()) == int(batch["labels"][row, place]) for row, place in places)
    assert int(logs["accuracy"]) == hits
    torch.testing.assert_close(loss, expected)


def step_gradient(model: Any, loss: Any, batches: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss and gradient of an optimizer step, as the loop takes them: sums divided by the step's masked tokens."""
    model.zero_grad()
    total = torch.stack([loss(model, batch)[0] / batch["window_targets"] for batch in batches]).sum()
    total.backward()
    return total.detach(), torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def test_next_sentence_and_masked_tokens_are_means_over_their_own_targets_in_any_micro_batches() -> None:
    """Lightning-AI/pytorch-lightning#20350, with two kinds of targets."""
    model = model_of(next_sentence=True).train()
    parts = list(loader(pairs=True, size=5, accumulate=4))
    assert len(parts) == 3  # 12 rows: the last micro-batch is short, and so is the window
    masked = sentence = torch.zeros((), dtype=torch.float64)
    for batch in parts:
        options = {"token_mask": batch.get("token_mask"), "token_types": batch["token_types"]}
        logits = model(batch["ids"], **options)
        masked = masked + F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), reduction="sum")
        context = zoo.Context(token_mask=options["token_mask"])
        x = model.features(batch["ids"], context, batch["token_types"])
        sentence = sentence + F.cross_entropy(model.sentence_logits(x, context), batch["next"], reduction="sum")
    targets = sum(int((batch["labels"] != -100).sum()) for batch in parts)
    loss, gradient = step_gradient(model, masked_lm_loss, parts)
    expected = masked / targets + sentence / 12
    torch.testing.assert_close(loss, expected.detach(), rtol=0, atol=1e-10)
    model.zero_grad()
    expected.backward()
    theirs = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    torch.testing.assert_close(gradient, theirs, rtol=0, atol=1e-10)


def test_electra_adds_fifty_times_the_mean_over_all_real_tokens() -> None:
    model = model_of("electra", generator_share=0.5).train()
    parts = list(loader(size=5, accumulate=4))
    assert any("token_mask" in batch for batch in parts)
    generated = discriminated = torch.zeros((), dtype=torch.float64)
    tokens = 0
    for batch in parts:
        mask = batch.get("token_mask")
        draw = torch.Generator().manual_seed(int(batch["draw"]))
        made = model.replace(batch["ids"], batch["labels"], token_mask=mask, generator=draw)
        generated = generated + made.generator_loss
        real = torch.ones_like(batch["ids"], dtype=torch.bool) if mask is None else mask
        logits = model(made.ids, token_mask=mask)[real]
        right = torch.where(made.replaced[real], logits.sigmoid(), 1 - logits.sigmoid())
        discriminated, tokens = discriminated - right.log().sum(), tokens + int(real.sum())
    targets = parts[0]["window_targets"]
    assert tokens == sum(len(word) + 2 for word in WORDS) == int(parts[0]["window_tokens"])
    loss, _ = step_gradient(model, electra_loss, parts)
    torch.testing.assert_close(loss, (generated / targets + 50 * discriminated / tokens).detach(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("family", ["bert", "electra"])
def test_what_stands_under_padding_changes_no_loss(family: str) -> None:
    model = model_of(family).train()
    loss = electra_loss if family == "electra" else masked_lm_loss
    batch = next(batch for batch in loader(size=12) if "token_mask" in batch)
    first = loss(model, batch)[0]
    other = torch.where(batch["token_mask"], batch["ids"], TOKENIZER.vocab_size - 1)
    torch.testing.assert_close(loss(model, {**batch, "ids": other})[0], first, rtol=0, atol=1e-10)


def test_draws_differ_between_steps_and_come_back_after_a_resume() -> None:
    whole = [int(batch["draw"]) for batch in loader()]
    assert len(set(whole)) == len(whole)
    begun = loader()
    stream = iter(begun)
    assert int(next(stream)["draw"]) == whole[0]
    resumed = loader()
    resumed.load_state_dict(begun.state_dict())
    rest = list(resumed)
    assert [int(batch["draw"]) for batch in rest] == whole[1:]
    assert [batch["ids"].tolist() for batch in rest] == [batch["ids"].tolist() for batch in list(loader())[1:]]


def test_ranks_count_the_same_windows() -> None:
    alone = list(loader(size=6, accumulate=2))
    ranks = [list(loader(size=3, accumulate=2, rank=rank, world_size=2)) for rank in range(2)]
    for ours in ranks:
        for batch, whole in zip(ours, alone, strict=True):
            for name in ("window_targets", "window_rows", "window_tokens"):
                assert batch[name] == whole[name]
