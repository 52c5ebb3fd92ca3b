"""Auxiliary losses and loads of experts: closed forms, padding, the bias, collection across families."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import zoo
from tests.parts import DIM, rows
from zoo import registry
from zoo.blocks.api import Context, Slot
from zoo.blocks.auxiliary import Auxiliary, collect
from zoo.blocks.ffn.balance import (
    balance_loss,
    expert_report,
    loads,
    sequence_balance_loss,
    update_biases,
    z_loss,
)
from zoo.blocks.ffn.moe import MoE

COEFFICIENTS = {"balance": 0.3, "sequence_balance": 0.2, "z_loss": 0.1}


def build(**choices: Any) -> MoE:
    torch.manual_seed(0)
    chosen = {"name": "moe", "experts": 4, "expert": {"name": "swiglu", "hidden": 6}, **COEFFICIENTS, **choices}
    moe: Any = registry.decode("ffn", chosen).build(Slot(dim=DIM, init_std=0.4, where="place"))
    return moe.double().train()


def said_of(moe: MoE, x: Tensor, mask: Tensor | None = None) -> Auxiliary:
    with collect() as said:
        moe(x, Context(token_mask=mask))
    return said


def test_losses_equal_their_formulas() -> None:
    """Oracle: numpy, from the papers; two rows of which the second has three real tokens."""
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 5, 4, generator=g, dtype=torch.float64)
    real = torch.tensor([[1] * 5, [0, 1, 1, 0, 1]], dtype=torch.bool)
    shares = logits.softmax(-1)
    wanted = shares.topk(2, -1).indices.masked_fill(~real[..., None], 4)
    raw, keep = logits.numpy(), real.numpy()
    p = np.exp(raw) / np.exp(raw).sum(-1, keepdims=True)
    each = []
    for who in ([0, 1], [0], [1]):  # the whole batch, then each row
        rows_p = np.concatenate([p[b][keep[b]] for b in who])
        chosen = np.argsort(-rows_p, -1)[:, :2].ravel()
        f = np.bincount(chosen, minlength=4) / chosen.size
        each.append(4 * float((f * rows_p.mean(0)).sum()))
    load = loads(wanted, 4)
    assert balance_loss(shares, load, real).item() == pytest.approx(each[0], abs=1e-12)
    assert sequence_balance_loss(shares, load, real).item() == pytest.approx((each[1] + each[2]) / 2, abs=1e-12)
    z = float((np.log(np.exp(raw).sum(-1)) ** 2)[keep].mean())
    assert z_loss(logits, real).item() == pytest.approx(z, abs=1e-12)


@pytest.mark.parametrize("k", [1, 2, 4])
@pytest.mark.parametrize("scores", ["softmax", "sigmoid"])
def test_a_uniform_router_costs_its_coefficient_whatever_k_is(k: int, scores: str) -> None:
    moe = build(top_k=k, scores=scores)
    with torch.no_grad():
        moe.router.weight.zero_()
    named = said_of(moe, rows()).named_losses()
    assert named["balance_loss"].item() == pytest.approx(0.3, abs=1e-12)
    assert named["sequence_loss"].item() == pytest.approx(0.2, abs=1e-12)
    assert named["z_loss"].item() == pytest.approx(0.1 * np.log(4) ** 2, abs=1e-12)


@pytest.mark.parametrize(
    "choices",
    [{}, {"scores": "sigmoid", "bias_rate": 1e-3}, {"capacity": 0.5}, {"groups": 2, "bias_rate": 1e-3}],
    ids=str,
)
def test_padding_counts_nowhere(choices: dict[str, Any]) -> None:
    """Known fault 8: 5 real tokens, then 0, 3 and 50 pads that all favour expert 0."""
    moe, x = build(**choices), rows(batch=1, length=5)
    pad = 20 * (moe.router.weight[0] / moe.router.weight[0].norm() ** 2).detach()
    found = []
    for count in (0, 3, 50):
        mask = torch.arange(5 + count)[None] < 5
        said = said_of(moe, torch.cat([x, pad.expand(1, count, DIM)], 1), mask)
        found.append(said)
        update_biases(moe, {})  # nothing said: nothing moved
    assert float(found[0].measures["place", "load"].sum()) == 10
    for other in found[1:]:
        for mine, theirs in ((found[0].losses, other.losses), (found[0].measures, other.measures)):
            assert mine.keys() == theirs.keys()
            for key, value in mine.items():
                torch.testing.assert_close(theirs[key], value, rtol=0, atol=1e-12, msg=str(key))
    gradients = [torch.autograd.grad(said.loss, moe.router.weight)[0] for said in found]
    torch.testing.assert_close(gradients[2], gradients[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("choices", [{}, {"router": "experts", "sequence_balance": 0.0}, {"capacity": 1.0}], ids=str)
def test_no_real_token_gives_zero_and_no_nan(choices: dict[str, Any]) -> None:
    moe, x = build(**choices), rows().requires_grad_()
    with collect() as said:
        y = moe(x, Context(token_mask=torch.zeros(2, 11, dtype=torch.bool)))
    assert said.loss == 0.0
    (said.loss + y.sum()).backward()
    assert x.grad is not None and x.grad.abs().max() == 0
    assert all(p.grad is None or p.grad.abs().max() == 0 for p in moe.parameters())
    assert all(value.isfinite() for value in expert_report(said.measures).values())


def test_nothing_is_said_in_evaluation_or_where_nobody_asks() -> None:
    moe = build()
    assert Context().aux is None
    moe(rows(), Context())
    assert said_of(moe.eval(), rows()).measures == {}  # type: ignore[arg-type]


def test_the_inner_collection_hears_and_the_outer_one_does_not() -> None:
    moe = build()
    with collect() as outer:
        inner = said_of(moe, rows())
    assert not outer.losses and len(inner.losses) == 3
    assert outer.loss == 0.0


def test_a_skewed_router_is_pulled_towards_equal_loads() -> None:
    moe, x = build(balance=1.0, sequence_balance=0.0, z_loss=0.0, top_k=1), rows(batch=8, length=16)
    with torch.no_grad():
        moe.router.weight[0] += 2.0 * x.mean((0, 1)) / x.mean((0, 1)).norm() ** 2
    before = said_of(moe, x)
    for _ in range(60):
        loss = said_of(moe, x).loss
        moe.zero_grad()
        loss.backward()  # type: ignore[union-attr]
        with torch.no_grad():
            moe.router.weight -= 0.5 * moe.router.weight.grad
    after = said_of(moe, x)
    worst = [float(expert_report(said.measures)["load_violation"]) for said in (before, after)]
    assert worst[0] > 1.0 and worst[1] <= worst[0] / 2
    assert float(after.loss) < 1.2 < float(before.loss)


def test_the_bias_evens_the_loads_without_a_loss() -> None:
    moe, x = build(balance=0.0, scores="sigmoid", bias_rate=0.02, top_k=1), rows(batch=8, length=16)
    with torch.no_grad():
        moe.router.weight[0] += 2.0 * x.mean((0, 1)) / x.mean((0, 1)).norm() ** 2
    weight = moe.router.weight.clone()
    worst = []
    for _ in range(80):
        said = said_of(moe, x)
        worst.append(float(expert_report(said.measures)["load_violation"]))
        update_biases(moe, said.measures)
    assert worst[0] > 1.0 and worst[-1] < 0.5
    assert torch.equal(weight, moe.router.weight)


def test_a_step_of_the_bias_has_the_sign_of_the_lack_of_load() -> None:
    moe = build(bias_rate=0.25)
    update_biases(moe, {("place", "load"): torch.tensor([5.0, 1.0, 3.0, 3.0])})
    assert moe.router.bias is not None and moe.router.bias.tolist() == [-0.25, 0.25, 0.0, 0.0]
    assert "router.bias" in moe.state_dict() and "bias" not in dict(moe.router.named_parameters())


def test_a_forward_pass_never_moves_the_bias() -> None:
    moe = build(bias_rate=0.25)
    said_of(moe, rows())
    assert moe.router.bias is not None and moe.router.bias.abs().max() == 0


def test_the_report_is_of_all_layers() -> None:
    measures = {
        ("a", "load"): torch.tensor([6.0, 2.0, 0.0, 0.0]),
        ("b", "load"): torch.tensor([2.0, 2.0, 2.0, 2.0]),
        ("a", "entropy"): torch.tensor(8.0),
        ("b", "entropy"): torch.tensor(4.0),
        ("a", "tokens"): torch.tensor(8.0),
        ("b", "tokens"): torch.tensor(8.0),
        ("a", "dropped"): torch.tensor(4.0),
        ("b", "dropped"): torch.tensor(0.0),
    }
    report = {name: float(value) for name, value in expert_report(measures).items()}
    assert report == {"router_entropy": 0.75, "load_violation": 1.0, "dead_experts": 2.0, "dropped_share": 0.25}
    assert expert_report({}) == {}


def test_dropped_choices_are_reported() -> None:
    said = said_of(build(capacity=0.25), rows())
    assert 0.5 < float(expert_report(said.measures)["dropped_share"]) < 1


# -- families

SIZES: dict[str, Any] = {"dim": 16, "depth": 2, "heads": 2, "ffn": {"name": "moe", "experts": 4, **COEFFICIENTS}}


def model_and_call(family: str, **choices: Any) -> tuple[Any, Any]:
    torch.manual_seed(0)
    if family == "vit":
        model = zoo.create_model("vit", image_size=8, patch_size=4, channels=1, num_classes=3, **SIZES, **choices)
        return model, lambda: model(torch.ones(2, 1, 8, 8))
    model = zoo.create_model(family, vocab_size=11, max_len=16, **SIZES, **choices)
    ids = torch.arange(14).view(2, 7) % 11
    if family == "electra":
        labels = torch.full_like(ids, -100)
        labels[:, 2] = 3
        return model, lambda: model(model.replace(ids, labels).ids)
    return model, (lambda: model(ids, ids)) if family in ("t5", "transformer") else (lambda: model(ids))


@pytest.mark.parametrize("family", ["gpt", "bert", "electra", "t5", "transformer", "vit"])
def test_every_layer_of_every_family_speaks(family: str) -> None:
    model, call = model_and_call(family)
    with collect() as said:
        call()
    expected = {module.where for module in model.modules() if isinstance(module, MoE)}
    assert {place for place, _ in said.losses} == expected
    assert len(expected) == (4 if family in ("electra", "t5", "transformer") else 2)
    assert isinstance(said.loss, Tensor)
    said.loss.backward()
    for name, parameter in model.named_parameters():
        if name.endswith("router.weight"):
            assert parameter.grad is not None and parameter.grad.abs().max() > 0, name


def test_recomputation_says_the_same_once() -> None:
    found = []
    for checkpointing in (False, True):
        model, call = model_and_call("gpt", checkpointing=checkpointing)
        with collect() as said:
            y = call()
        loss = (y.square().mean() + said.loss).double()
        loss.backward()
        grads = {name: parameter.grad for name, parameter in model.named_parameters()}
        found.append((loss.detach(), said.named_losses(), said.measures, grads))
    plain, recomputed = found
    torch.testing.assert_close(plain, recomputed, rtol=1e-5, atol=1e-6)


def test_a_compiled_model_is_one_graph_and_speaks() -> None:
    model, call = model_and_call("gpt")
    ids = torch.arange(14).view(2, 7) % 11
    with collect() as said:
        y = call()
    traced = torch.compile(model, backend="eager", fullgraph=True)
    with collect() as again:
        torch.testing.assert_close(traced(ids), y, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(again.named_losses(), said.named_losses())
