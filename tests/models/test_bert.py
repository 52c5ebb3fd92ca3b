"""The BERT family: padding, segments, heads, pooling, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import zoo
from recipes.optim import undecayed_names
from zoo.blocks.api import Context
from zoo.registry import ConfigError

SIZES: dict[str, Any] = {"vocab_size": 30, "max_len": 16, "dim": 16, "depth": 2, "heads": 2, "init_std": 0.3}


def small(**choices: Any) -> Any:
    torch.manual_seed(0)
    return zoo.create_model("bert", **{**SIZES, **choices}).double().eval()


def ids_of(*shape: int) -> Tensor:
    return torch.randint(4, 30, shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("position", ["learned", "t5_bias", "rope", "sinusoidal", "alibi"])
def test_padding_on_any_side_and_in_between_changes_no_real_token(position: str) -> None:
    model, ids = small(position=position), ids_of(1, 5)
    alone = model(ids)
    for places in ([0, 1, 2, 3, 4], [4, 5, 6, 7, 8], [0, 2, 3, 6, 8]):
        row, mask = ids_of(1, 9), torch.zeros(1, 9, dtype=torch.bool)
        row[0, places], mask[0, places] = ids[0], True
        torch.testing.assert_close(model(row, token_mask=mask)[:, places], alone, rtol=0, atol=1e-10)


def test_padding_does_not_change_the_masked_loss_or_its_gradients() -> None:
    model, ids = small(), ids_of(2, 6)
    labels = torch.full_like(ids, -100)
    labels[0, 2], labels[1, 4] = 7, 9
    loss = model.head.loss(model.features(ids), labels)
    expected = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    wide, mask = ids_of(2, 9), torch.arange(9) < 6
    wide[:, :6] = ids
    padded = F.pad(labels, (0, 3), value=-100)
    found = model.head.loss(model.features(wide, Context(token_mask=mask.expand(2, 9))), padded)
    torch.testing.assert_close(found, loss)
    for ours, theirs in zip(
        torch.autograd.grad(found, list(model.parameters()), allow_unused=True), expected, strict=True
    ):
        if theirs is not None:
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


def test_the_segment_is_the_first_by_default_and_an_embedding_each() -> None:
    model, ids = small(), ids_of(2, 6)
    zeros = torch.zeros_like(ids)
    assert torch.equal(model.features(ids), model.features(ids, token_types=zeros))
    assert not torch.allclose(model.features(ids), model.features(ids, token_types=zeros + 1))
    assert small(token_types=0).types is None


def test_the_head_is_dense_gelu_norm_and_the_embeddings_own_table() -> None:
    model = small()
    x = torch.randn(3, 16, dtype=torch.float64)
    head = model.head
    dense, norm = head.transform.dense, head.transform.norm
    expected = norm(F.gelu(x @ dense.weight.T + dense.bias)) @ model.embed.weight.T + head.bias
    torch.testing.assert_close(head(x), expected)


@pytest.mark.parametrize("pool", ["cls", "mean", "max", "sum"])
def test_classes_and_next_sentence_read_the_pooled_token_whatever_the_padding(pool: str) -> None:
    model, ids = small(num_classes=3, next_sentence=True, pool=pool), ids_of(1, 5)
    row, mask = torch.cat([ids_of(1, 2), ids], 1), torch.tensor([[False] * 2 + [True] * 5])
    torch.testing.assert_close(model(row, token_mask=mask), model(ids), rtol=0, atol=1e-10)
    assert model(ids).shape == (1, 3)
    context = Context()
    x = model.features(ids)
    pooled = {"cls": x[:, 0], "mean": x.mean(1), "max": x.amax(1), "sum": x.sum(1) / 8}[pool]
    pooled = torch.tanh(model.pooler(pooled))
    torch.testing.assert_close(model.class_logits(x, context), model.classifier(pooled))
    torch.testing.assert_close(model.sentence_logits(x, context), model.sentence_head(pooled))


def test_what_does_not_fit_is_told_in_one_line() -> None:
    with pytest.raises(ConfigError, match="next_sentence reads the pooler"):
        small(next_sentence=True, pooler=False)
    with pytest.raises(ConfigError, match="no classes; build it with num_classes above 0"):
        small().class_logits(torch.zeros(1, 2, 16).double(), Context())
    with pytest.raises(ConfigError, match="build it with next_sentence=true"):
        small().sentence_logits(torch.zeros(1, 2, 16).double(), Context())


def test_norms_biases_positions_and_tables_are_not_decayed_but_matrices_are() -> None:
    model = small(next_sentence=True)
    kept = undecayed_names(model)
    decayed = {name for name, _ in model.named_parameters()} - kept
    assert {"stack.position.weight", "head.bias", "pooler.bias", "head.transform.norm.weight", "embed.weight"} <= kept
    assert {"pooler.weight", "head.transform.dense.weight", "stack.blocks.0.mixer.qkv.weight"} <= decayed
    assert all(dict(model.named_parameters())[name].ndim >= 2 for name in decayed)
