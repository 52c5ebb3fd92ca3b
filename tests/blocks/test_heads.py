"""Heads: pooling that never reads prefix or padding, and tied vocabularies that stay tied (known fault 21)."""

from __future__ import annotations

import copy
import pickle
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from zoo.blocks.api import Context
from zoo.blocks.embeddings import TokenEmbedding
from zoo.blocks.heads import ClassificationHead, HeadTransform, LanguageModelHead, pool_tokens
from zoo.registry import ConfigError


@pytest.mark.parametrize("pool", ["cls", "mean", "max", "sum"])
def test_pooling_never_reads_prefix_or_padding(pool: Any) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 8, 4, dtype=torch.float64)
    mask = torch.ones(2, 8, dtype=torch.bool)
    mask[0, 5:], mask[1, 3] = False, False
    got = pool_tokens(x, Context(token_mask=mask, prefix=2), pool)
    for b in range(2):
        real = x[b, 2:][mask[b, 2:]]
        want = {"cls": x[b, 0], "mean": real.mean(0), "max": real.amax(0), "sum": real.sum(0) / 8}[pool]
        torch.testing.assert_close(got[b], want, rtol=0, atol=1e-12)
    noisy = torch.where(mask[..., None], x, float("nan"))
    assert torch.equal(pool_tokens(noisy, Context(token_mask=mask, prefix=2), pool), got)
    full = torch.ones_like(mask)
    torch.testing.assert_close(
        pool_tokens(x, Context(prefix=2), pool), pool_tokens(x, Context(token_mask=full, prefix=2), pool)
    )


def test_the_class_token_is_found_behind_left_padding() -> None:
    x = torch.randn(2, 5, 4)
    mask = torch.arange(5) >= torch.tensor([[3], [0]])
    got = pool_tokens(x, Context(token_mask=mask), "cls")
    assert torch.equal(got, torch.stack((x[0, 3], x[1, 0])))


@pytest.mark.parametrize("pool", ["mean", "max", "sum"])
def test_a_row_without_real_tokens_gives_zeros(pool: Any) -> None:
    x = torch.randn(2, 5, 4, requires_grad=True)
    mask = torch.tensor([[False] * 5, [True] * 5])
    got = pool_tokens(x, Context(token_mask=mask), pool)
    assert torch.equal(got[0], torch.zeros(4))
    got.sum().backward()
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()
    assert torch.equal(x.grad[0], torch.zeros(5, 4))


def test_classification_head_pools_norms_and_maps() -> None:
    torch.manual_seed(0)
    head = ClassificationHead(8, 3, pool="mean", norm=nn.LayerNorm(8))
    x = torch.randn(2, 5, 8)
    want = head.linear(head.norm(x[:, 1:].mean(1)))
    torch.testing.assert_close(head(x, Context(prefix=1)), want)
    zero = ClassificationHead(8, 3, zero_init=True)
    assert torch.equal(zero(x, Context()), torch.zeros(2, 3))
    assert torch.equal(ClassificationHead(8, 0)(x, Context()), x[:, 0])
    wide = ClassificationHead(512, 512, init_std=0.02)
    assert cast(nn.Linear, wide.linear).weight.std().item() == pytest.approx(0.0176, rel=0.02)  # cut at two deviations
    with pytest.raises(ConfigError, match="pool"):
        ClassificationHead(8, 3, pool=cast(Any, "avg"))


def test_language_model_head_transforms_scales_and_caps() -> None:
    torch.manual_seed(0)
    transform = HeadTransform(8, nn.LayerNorm(8))
    head = LanguageModelHead(8, 11, bias=True, scale=0.5, soft_cap=2.0, transform=transform)
    assert head.bias is not None
    nn.init.normal_(head.bias)
    nn.init.normal_(head.weight, std=3.0)
    x = torch.randn(2, 5, 8)
    hidden = transform.norm(nn.functional.gelu(transform.dense(x))) * 0.5
    want = 2 * torch.tanh((hidden @ head.weight.T + head.bias) / 2)
    torch.testing.assert_close(head(x), want)
    assert head(x).abs().max() <= 2
    for choices in ({"soft_cap": 0.0}, {"embedding": TokenEmbedding(11, 9)}):
        with pytest.raises(ConfigError):
            LanguageModelHead(8, 11, **cast(Any, choices))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = TokenEmbedding(11, 8)
        self.head = LanguageModelHead(8, 11, embedding=self.embedding)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.embedding(ids))


def test_a_tied_head_stays_tied() -> None:
    """Fault 21: after copies, casts, meta and materialise, loading, a step, and a round trip through pickle."""

    def check(model: Tied) -> None:
        assert model.head.table.data_ptr() == model.embedding.weight.data_ptr()
        assert list(model.state_dict()) == ["embedding.weight"]
        assert len(list(model.parameters())) == 1
        ids = torch.tensor([[1, 5]])
        want = model.embedding.weight[ids] @ model.embedding.weight.T
        torch.testing.assert_close(model(ids), want)

    torch.manual_seed(0)
    model = Tied()
    check(model)
    other = copy.deepcopy(model)
    check(other)
    assert other.embedding.weight.data_ptr() != model.embedding.weight.data_ptr()
    check(copy.deepcopy(model).to(torch.bfloat16))
    check(pickle.loads(pickle.dumps(model)))
    with torch.device("meta"):
        built = Tied()
    built.to_empty(device="cpu")
    built.embedding.reset_parameters()
    check(built)
    built.load_state_dict(model.state_dict(), assign=True)
    check(built)
    assert torch.equal(built(torch.tensor([[1]])), model(torch.tensor([[1]])))
    model(torch.tensor([[1, 5]])).square().sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    check(model)
    ids = torch.tensor([[1, 5]])
    assert torch.equal(torch.export.export(model, (ids,)).module()(ids), model(ids))


def test_classification_head_exports_and_builds_on_meta() -> None:
    class Row(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = ClassificationHead(8, 3, pool="mean")

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            return self.head(x, Context(token_mask=mask, prefix=1))

    model, x, mask = Row(), torch.randn(2, 5, 8), torch.arange(5).expand(2, -1) < 4
    torch.manual_seed(0)
    model.head.reset_parameters()
    want = model(x, mask)
    assert torch.equal(torch.export.export(model, (x, mask)).module()(x, mask), want)
    with torch.device("meta"):
        built = Row()
    built.to_empty(device="cpu")
    torch.manual_seed(0)
    built.head.reset_parameters()
    assert torch.equal(built(x, mask), want)


def _every_head() -> dict[str, LanguageModelHead]:
    torch.manual_seed(0)
    heads = {
        "plain": LanguageModelHead(8, 11),
        "tied": LanguageModelHead(8, 11, embedding=TokenEmbedding(11, 8, init_std=1.0).double(), scale=0.5),
        "capped": LanguageModelHead(8, 11, bias=True, soft_cap=2.0, init_std=1.0),
        "transformed": LanguageModelHead(8, 11, bias=True, transform=HeadTransform(8, nn.LayerNorm(8)), init_std=1.0),
    }
    return {name: head.double() for name, head in heads.items()}


@pytest.mark.parametrize("name", ["plain", "tied", "capped", "transformed"])
@pytest.mark.parametrize("ignored", ["none", "some", "all"])
def test_the_loss_of_a_head_is_that_of_its_logits(name: str, ignored: str) -> None:
    head = _every_head()[name]
    x = torch.randn(2, 6, 8, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(0, 11, (2, 6))
    if ignored != "none":
        targets[0, 2:] = targets[1, :3] = -100
    if ignored == "all":
        targets.fill_(-100)
    logits = head(x).flatten(0, 1)
    leaves = [x, head.table, *head.parameters()]
    for smoothing in (0.0, 0.1):
        want = nn.functional.cross_entropy(logits, targets.flatten(), reduction="sum", label_smoothing=smoothing)
        got = head.loss(x, targets, label_smoothing=smoothing)
        assert got.dim() == 0
        torch.testing.assert_close(got, want, rtol=0, atol=1e-10)
        mine = torch.autograd.grad(got, leaves, allow_unused=True)
        for a, b in zip(mine, torch.autograd.grad(want, leaves, retain_graph=True), strict=True):
            torch.testing.assert_close(torch.zeros_like(b) if a is None else a, b, rtol=0, atol=1e-10)
    loss, correct = head.score(x, targets)
    torch.testing.assert_close(loss, head.loss(x, targets).detach())
    assert correct.item() == (logits.argmax(-1) == targets.flatten()).sum().item()


def test_the_loss_reads_only_tokens_that_have_a_target() -> None:
    head = _every_head()["transformed"]
    x, targets = torch.randn(2, 6, 8, dtype=torch.float64), torch.randint(0, 11, (2, 6))
    targets[0, :3] = -100
    want = head.loss(x, targets)
    rows: list[int] = []
    head.transform.register_forward_hook(lambda module, inputs, output: rows.append(inputs[0].shape[0]))
    noisy = torch.where((targets == -100)[..., None], float("nan"), x)
    assert torch.equal(head.loss(noisy, targets), want)
    assert rows == [9]


def test_a_loss_with_targets_of_another_shape_is_refused() -> None:
    head = LanguageModelHead(8, 11)
    with pytest.raises(ValueError, match="targets should be") as error:
        head.loss(torch.zeros(2, 6, 8), torch.zeros(2, 5, dtype=torch.long))
    assert "\n" not in str(error.value)
