"""Mixtures of experts: the formula, the law of chunks and steps, padding, capacity, experts that choose, upcycling."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import zoo
from tests.parts import DIM, rows
from zoo import registry
from zoo.blocks.api import Context, Recorder, Slot
from zoo.blocks.ffn.moe import MoE
from zoo.blocks.ffn.router import best_groups, capacity_drop, row_capacity
from zoo.blocks.ffn.upcycle import upcycle
from zoo.blocks.stack import Block
from zoo.inspection import count
from zoo.ops.experts import naive_experts

fp64 = {"rtol": 0.0, "atol": 1e-10}
SMALL: dict[str, Any] = {"experts": 4, "expert": {"name": "swiglu", "hidden": 12}}


def build(seed: int = 0, dtype: torch.dtype = torch.float64, **choices: Any) -> MoE:
    torch.manual_seed(seed)
    config = registry.decode("ffn", {"name": "moe", **SMALL, **choices})
    moe: Any = config.build(Slot(dim=DIM, init_std=0.4, where="place")).to(dtype).eval()
    with torch.no_grad():
        for name, parameter in moe.named_parameters():
            if name.endswith("bias"):
                parameter.normal_()
        if moe.router.bias is not None:
            moe.router.bias.uniform_(-0.3, 0.3)
    return moe


def dense_experts(moe: Any) -> list[nn.Module]:
    """Each expert as the plain feed-forward that it is."""
    made = []
    for e in range(moe.config.experts):
        ffn = moe.config.expert.build(Slot(dim=DIM)).to(moe.router.weight.dtype)
        ffn.load_state_dict({name: value[e] for name, value in moe.experts.state_dict().items()})
        made.append(ffn)
    return made


def naive(moe: Any, x: Tensor) -> Tensor:
    """The papers' formulas, token by token."""
    config, flat = moe.config, x.flatten(0, 1)  # (N, D)
    logits = flat @ moe.router.weight.T
    scores = logits.softmax(-1) if config.scores == "softmax" else 1 / (1 + (-logits).exp())
    chosen = []
    for row in scores.detach():
        worth = row if moe.router.bias is None else row + moe.router.bias
        size = config.experts // config.groups
        best = [worth[g * size : (g + 1) * size].sort(descending=True).values[:2].sum() for g in range(config.groups)]
        groups = torch.stack(best).argsort(descending=True)[: config.top_groups].tolist()
        able = [e for e in range(config.experts) if e // size in groups]
        chosen.append(sorted(able, key=lambda e: -float(worth[e]))[: config.top_k])
    experts = torch.tensor(chosen)
    weights = scores.gather(-1, experts)
    if config.renormalises:
        weights = weights / weights.sum(-1, keepdim=True)
    weights = weights * config.scale
    functions = [lambda h, ffn=ffn: ffn(h[None, None], Context())[0, 0] for ffn in dense_experts(moe)]
    if config.weigh == "input":
        y = sum(
            torch.stack(
                [functions[e](w * h) for h, w, e in zip(flat, weights[:, j], experts[:, j].tolist(), strict=True)]
            )
            for j in range(config.top_k)
        )
    else:
        y = naive_experts(flat, experts, weights, functions)
    if moe.shared is not None:
        gate = 1.0 if moe.shared_gate is None else torch.sigmoid(moe.shared_gate(flat))
        y = y + moe.shared(flat[None], Context())[0] * gate
    return y.view_as(x)  # type: ignore[union-attr]


VARIANTS: list[dict[str, Any]] = [
    {},
    {"top_k": 1},
    {"top_k": 4, "normalise": False},
    {"scores": "sigmoid", "scale": 2.5, "bias_rate": 1e-3},
    {"scores": "sigmoid", "top_k": 1, "weigh": "input", "shared": {"name": "swiglu", "hidden": 5}},
    {"weigh": "input"},
    {"shared": {"name": "mlp", "hidden": 7}, "shared_gate": True},
    {"experts": 6, "groups": 3, "top_groups": 2, "top_k": 3, "bias_rate": 1e-3},
    {"expert": {"name": "mlp", "hidden": 9}},
    {"expert": {"name": "geglu", "hidden": 9, "bias": True}, "top_k": 3},
    {"experts": 1, "top_k": 1},
]


@pytest.mark.parametrize("choices", VARIANTS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_a_mixture_equals_its_formula_in_value_and_gradients(choices: dict[str, Any], dtype: torch.dtype) -> None:
    moe, x = build(dtype=dtype, **choices), rows(length=7, dtype=dtype).requires_grad_()
    ours, theirs = moe(x, Context()), naive(moe, x)
    atol = 1e-10 if dtype == torch.float64 else 2e-5  # outputs are of size 1 to 10
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=atol)
    inputs = [x, moe.router.weight]
    out = rows(length=7, dtype=dtype, seed=9)
    for a, b in zip(
        torch.autograd.grad((ours * out).sum(), inputs), torch.autograd.grad((theirs * out).sum(), inputs), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=10 * atol)


@pytest.mark.parametrize("choices", VARIANTS, ids=str)
def test_full_is_chunked_is_token_by_token(choices: dict[str, Any]) -> None:
    moe, x = build(**choices), rows()
    assert moe.pointwise
    full = moe(x, Context())
    for cuts in ([4, 7], [1, 1, 9], [1] * 11):
        torch.testing.assert_close(torch.cat([moe(part, Context()) for part in x.split(cuts, 1)], 1), full, **fp64)
    step = moe.step(None)
    assert step is not None
    with torch.no_grad():
        torch.testing.assert_close(torch.stack([step(x[:, t], Context()) for t in range(11)], 1), full, **fp64)
        one = torch.stack([step(x[:1, t], Context()) for t in range(11)], 1)
        torch.testing.assert_close(one, full[:1], **fp64)


@torch.no_grad()
def test_a_step_draws_no_random_number_and_goes_on_exactly_when_its_experts_are_warm() -> None:
    moe, x = build(expert={"name": "swiglu", "hidden": 40}), rows(length=40)[:1]
    before, step = torch.get_rng_state(), moe.step(None)
    assert step is not None
    ours = torch.stack([step(x[:, t], Context()) for t in range(40)], 1)  # by columns after a few calls of an expert
    assert torch.equal(torch.get_rng_state(), before)
    torch.testing.assert_close(ours, moe(x, Context()), **fp64)


MASKS = {"left": [0, 0, 0, 1, 1, 1, 1], "right": [1, 1, 1, 1, 0, 0, 0], "inside": [1, 0, 1, 1, 0, 1, 1]}


@pytest.mark.parametrize("where", MASKS)
@pytest.mark.parametrize("field", ["token_mask", "counted"])
def test_padding_changes_no_bit(where: str, field: str) -> None:
    moe, x = build(shared={"name": "swiglu", "hidden": 5}), rows(length=7)
    mask = torch.tensor([MASKS[where], [1] * 7], dtype=torch.bool)
    context = Context(**{field: mask})
    y = moe(x, context)
    noisy = torch.where(mask[..., None], x, 50 * rows(length=7, seed=3))
    assert torch.equal(moe(noisy, context)[mask], y[mask])
    bare, plain = build(), Context(**{field: mask})
    assert bare(x, plain)[~mask].abs().max() == 0  # padding is served by nobody
    packed = x[mask][None]  # the same tokens without the padding
    assert torch.equal(bare(packed, Context())[0], bare(x, plain)[mask])
    longer = torch.cat([x, 9 * rows(length=50, seed=4)], 1)
    more = torch.cat([mask, torch.zeros(2, 50, dtype=torch.bool)], 1)
    assert torch.equal(bare(longer, Context(**{field: more}))[:, :7][mask], bare(x, plain)[mask])


def test_the_last_column_alone_takes_the_last_column_of_the_mask() -> None:
    moe, x = build(), rows(length=7)
    mask = torch.tensor([[1] * 6 + [0], [1] * 7], dtype=torch.bool)
    last = moe(x[:, -1:], Context(token_mask=mask, last_only=True))
    torch.testing.assert_close(last, moe(x, Context(token_mask=mask))[:, -1:], **fp64)


@pytest.mark.parametrize("choices", [{}, {"top_k": 1}, {"capacity": 1.0}, {"router": "experts"}], ids=str)
def test_a_row_of_padding_only_gives_zeros_and_finite_gradients(choices: dict[str, Any]) -> None:
    moe, x = build(**choices).train(), rows(length=5).requires_grad_()
    y = moe(x, Context(token_mask=torch.zeros(2, 5, dtype=torch.bool)))
    assert y.abs().max() == 0
    y.sum().backward()
    assert all(p.grad is None or p.grad.abs().max() == 0 for p in [*moe.parameters(), x])


# -- the router


def test_one_expert_a_token_still_teaches_the_router() -> None:
    """Known fault 19: renormalised, the router's gradient is exactly 0."""
    moe, x = build(top_k=1, balance=0.0), rows()
    (moe(x, Context()) * rows(seed=5)).sum().backward()
    assert moe.router.weight.grad is not None and moe.router.weight.grad.norm() > 1e-6
    for scores in ("softmax", "sigmoid"):
        with pytest.raises(zoo.ConfigError, match=r"place: normalise .*top_k 2"):
            build(top_k=1, normalise=True, scores=scores)


def test_renormalised_weights_sum_to_one() -> None:
    routing = build(top_k=2).router(rows(), None)
    sums = torch.zeros(22, dtype=torch.float64).index_add(0, routing.pairs.token, routing.weights[:, 0])
    torch.testing.assert_close(sums, torch.ones_like(sums), **fp64)


@pytest.mark.parametrize("half", ["autocast", "cast"])
def test_half_precision_flips_no_near_tie(half: str) -> None:
    moe = build(dtype=torch.float32, top_k=1)
    x = rows(length=40, dtype=torch.bfloat16)  # exact in both precisions
    with torch.no_grad():  # expert 1 is better than expert 0 by less than bfloat16 can tell
        moe.router.weight[1:] = moe.router.weight[0] * (1 + 1e-4)
        moe.router.weight[2:] -= 5 * x.float().mean((0, 1))
        wanted = moe.router(x.float(), None).wanted
        if half == "cast":
            moe.to(torch.bfloat16)
            assert moe.router.weight.dtype == torch.float32 and moe.experts.up.weight.dtype == torch.bfloat16
            assert moe(x, Context()).dtype == torch.bfloat16
        with torch.autocast("cpu", torch.bfloat16, enabled=half == "autocast"):
            routing = moe.router(x, None)
            assert moe(x.float() if half == "autocast" else x, Context()).isfinite().all()
    assert routing.logits.dtype == routing.scores.dtype == torch.float32
    assert wanted is not None and routing.wanted is not None and torch.equal(wanted, routing.wanted)
    assert len(wanted.unique()) > 1


def test_the_bias_chooses_and_does_not_weigh() -> None:
    moe, x = build(bias_rate=1e-3, top_k=1, scores="sigmoid"), rows()
    assert moe.router.bias is not None
    moe.router.bias[:] = torch.tensor([0.0, 0.0, 9.0, 0.0])
    routing = moe.router(x, None)
    assert routing.wanted is not None and (routing.wanted == 2).all()
    torch.testing.assert_close(routing.weights[:, 0], torch.sigmoid(x @ moe.router.weight[2]).flatten(), **fp64)


def test_the_best_groups_are_those_with_the_best_two_experts() -> None:
    worth = torch.tensor([[9.0, 0.0, 0.0, 5.0, 5.0, 0.0, 4.0, 4.5, 0.0]])  # sums of two: 9, 10, 8.5
    assert best_groups(worth, 3, 2).tolist() == [[True] * 6 + [False] * 3]


# -- capacity


def naive_drop(wanted: Tensor, factor: float, experts: int, k: int, real: Tensor) -> Tensor:
    served = wanted.clone()
    for b, row in enumerate(wanted.tolist()):
        limit, taken = math.ceil(round(factor * k * int(real[b].sum()) / experts, 6)), [0] * (experts + 1)
        for t, chosen in enumerate(row):
            for j, e in enumerate(chosen):
                taken[e] += 1
                if e < experts and taken[e] > limit:
                    served[b, t, j] = experts
    return served


@settings(deadline=None, max_examples=30)
@given(
    factor=st.sampled_from([0.25, 0.5, 1.0, 1.1, 1.25, 2.0]),
    length=st.integers(1, 10),
    k=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_capacity_drops_what_the_loop_drops(factor: float, length: int, k: int, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    wanted = torch.rand(3, length, 4, generator=g).argsort(-1)[..., :k]
    real = torch.rand(3, length, generator=g) < 0.7
    wanted = wanted.masked_fill(~real[..., None], 4)
    limit = row_capacity(real, length, factor * k / 4)
    assert torch.equal(capacity_drop(wanted, limit, 4), naive_drop(wanted, factor, 4, k, real))
    whole = torch.ones_like(real)
    assert (row_capacity(whole, length, factor * k / 4) == row_capacity(None, length, factor * k / 4)).all()


def test_a_dropped_token_passes_by_and_only_while_training() -> None:
    moe, x = build(capacity=0.25, top_k=1), rows(batch=1, length=16)
    assert not moe.pointwise and moe.step(None) is None
    full, kept = moe(x, Context()), moe.train()(x, Context())
    dropped = (kept == 0).all(-1)
    assert 0 < dropped.sum() < 16
    torch.testing.assert_close(kept[~dropped], full[~dropped], **fp64)


def test_a_larger_capacity_drops_less_and_padding_takes_none_of_it() -> None:
    x = rows(batch=4, length=24)
    shares = []
    for factor in (0.5, 1.0, 1.5, 4.0):
        moe = build(eval_capacity=factor)
        routing = moe.router(x, None)
        assert routing.served is not None
        shares.append(float((routing.served == 4).double().mean()))
        padded = torch.cat([50 * rows(4, 9, seed=7), x], 1)
        mask = torch.ones(4, 33, dtype=torch.bool)
        mask[:, :9] = False
        torch.testing.assert_close(moe(padded, Context(token_mask=mask))[:, 9:], moe(x, Context()), **fp64)
    assert shares[0] > shares[1] > shares[2] >= shares[3] == 0


@pytest.mark.parametrize("choices", [{}, {"eval_capacity": 0.5}, {"eval_capacity": 1.0, "top_k": 1}], ids=str)
def test_no_later_token_decides_over_an_earlier_one(choices: dict[str, Any]) -> None:
    x = rows(length=12)
    other = torch.cat([x[:, :6], 3 * rows(length=6, seed=8)], 1)
    moe = build(**choices)
    torch.testing.assert_close(moe(other, Context())[:, :6], moe(x, Context())[:, :6], **fp64)


# -- experts that choose


def test_experts_choose_equal_loads_by_their_scores() -> None:
    moe, x = build(router="experts", top_k=2), rows(length=10)
    scores = (x @ moe.router.weight.T).softmax(-1)  # (B, T, E)
    expected = torch.zeros_like(x)
    for b in range(2):
        for e, ffn in enumerate(dense_experts(moe)):
            for t in scores[b, :, e].argsort(descending=True)[:5].tolist():  # 2 * 10 / 4 tokens
                expected[b, t] += scores[b, t, e] * ffn(x[b : b + 1, t : t + 1], Context())[0, 0]
    torch.testing.assert_close(moe(x, Context()), expected, **fp64)


def test_experts_never_choose_padding_nor_take_more_because_of_it() -> None:
    moe, x = build(router="experts"), rows(length=6)
    mask = torch.ones(2, 13, dtype=torch.bool)
    mask[:, 2:9] = False
    padded = torch.cat([x[:, :2], 50 * rows(length=7, seed=3), x[:, 2:]], 1)
    torch.testing.assert_close(moe(padded, Context(token_mask=mask))[mask].view(2, 6, DIM), moe(x, Context()), **fp64)
    alone = torch.cat([moe(row[None], Context()) for row in x])
    torch.testing.assert_close(alone, moe(x, Context()), **fp64)  # rows do not see each other


@pytest.mark.parametrize("family", ["gpt", "t5", "transformer"])
def test_experts_that_choose_are_refused_where_later_tokens_must_stay_hidden(family: str) -> None:
    with pytest.raises(zoo.ConfigError, match=r"\.0\.ffn: router 'experts' compares a token with later ones"):
        zoo.create_model(family, dim=16, depth=1, heads=2, vocab_size=9, ffn={"name": "moe", "router": "experts"})


# -- choices that do not go together


@pytest.mark.parametrize(
    ("choices", "told"),
    [
        ({"top_k": 5}, "top_k 5 should be at most experts 4"),
        ({"shared_gate": True}, "set shared too"),
        ({"router": "experts", "bias_rate": 0.1}, "bias_rate has no meaning"),
        ({"router": "experts", "capacity": 1.0}, "capacity has no meaning"),
        ({"groups": 3}, "3 equal groups"),
        ({"groups": 4, "top_k": 1}, "groups of two or more"),
        ({"groups": 2, "top_groups": 3}, "at most groups 2"),
        ({"groups": 2, "top_k": 3}, "fewer than top_k 3"),
        ({"expert": "moe"}, r"place.expert: 'moe' has no stacked form; choices: mlp, swiglu, geglu"),
    ],
    ids=str,
)
def test_choices_that_do_not_go_together_are_refused_in_one_line(choices: dict[str, Any], told: str) -> None:
    with pytest.raises(zoo.ConfigError, match=told) as refusal:
        build(**choices)
    assert "\n" not in str(refusal.value)


# -- in models


def tiny(family: str, **choices: Any) -> nn.Module:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"dim": 16, "depth": 3, "heads": 2, **choices}
    if family == "vit":
        return zoo.create_model("vit", image_size=8, patch_size=4, channels=1, num_classes=3, **sizes)
    return zoo.create_model(family, vocab_size=11, max_len=16, **sizes)


def called(family: str, model: nn.Module) -> Tensor:
    g = torch.Generator().manual_seed(1)
    if family == "vit":
        return model(torch.randn(2, 1, 8, 8, generator=g).to(next(model.parameters()).dtype))
    ids = torch.randint(11, (2, 7), generator=g)
    return model(ids, ids) if family in ("t5", "transformer") else model(ids)


def test_a_model_goes_on_token_by_token_as_in_one_pass() -> None:
    model: Any = tiny("gpt", ffn={"name": "moe", **SMALL}).double().eval()
    ids = torch.randint(11, (2, 9))
    with torch.no_grad():
        full = model(ids)
        state = model.init_state(2, 16)
        parts = [model(ids[:, :4], state=state), *(model(ids[:, t : t + 1], state=state) for t in range(4, 9))]
        torch.testing.assert_close(torch.cat(parts, 1), full, **fp64)
        new = zoo.generate(model, ids, max_new_tokens=5).new
        seen = ids
        for _ in range(5):
            seen = torch.cat([seen, model(seen)[:, -1].argmax(-1, keepdim=True)], 1)
    assert torch.equal(torch.stack(list(new)), seen[:, 9:])


def test_every_second_layer_after_the_first_ones() -> None:
    ffn = {"name": "hybrid", "first": ["mlp"], "pattern": ["swiglu", {"name": "moe", **SMALL}], "offset": 1}
    model: Any = tiny("gpt", depth=5, ffn=ffn)
    assert [type(block.ffn).__name__ for block in model.stack.blocks] == ["MLP", "MoE", "GLU", "MoE", "GLU"]
    assert registry.decode("ffn", registry.encode(model.config.ffn)) == model.config.ffn


def test_electras_generator_has_experts_of_its_own_width() -> None:
    expert = {"name": "swiglu", "hidden": 16}
    pattern = [{"name": "moe", "experts": 4, "expert": expert, "shared": expert}]
    model: Any = tiny("electra", generator_share=0.5, ffn={"name": "hybrid", "pattern": pattern})
    widths = [
        (part.stack.blocks[0].ffn.experts.up.weight.shape[1], part.stack.blocks[0].ffn.shared.up.out_features)
        for part in (model.discriminator, model.generator)
    ]
    assert widths == [(16, 16), (8, 8)]


def test_a_model_is_saved_with_its_bias_and_loaded_again(tmp_path: Any) -> None:
    model: Any = tiny("gpt", ffn={"name": "moe", **SMALL, "bias_rate": 1e-3})
    model.stack.blocks[0].ffn.router.bias.uniform_(-1, 1)
    zoo.save_pretrained(model, tmp_path)
    loaded: Any = zoo.load_pretrained(tmp_path)
    assert torch.equal(loaded.stack.blocks[0].ffn.router.bias, model.stack.blocks[0].ffn.router.bias)
    torch.testing.assert_close(called("gpt", loaded), called("gpt", model.eval()), rtol=0, atol=0)


def test_experts_start_as_the_dense_feed_forward_does() -> None:
    slot = Slot(dim=64, branches=16)
    moe: Any = registry.decode("ffn", {"name": "moe", "experts": 4}).build(slot)
    dense: Any = registry.decode("ffn", "swiglu").build(slot)
    for name in ("gate", "up", "down"):
        stacked, plain = getattr(moe.experts, name).weight, getattr(dense, name).weight
        assert stacked.shape == (4, *plain.shape)
        for one in stacked:
            torch.testing.assert_close(one.std(), plain.std(), rtol=0.03, atol=0)  # 10,000 draws: known to 0.7 %
    assert not torch.equal(moe.experts.up.weight[0], moe.experts.up.weight[1])


def test_what_the_router_decides_can_be_recorded() -> None:
    record, moe, x = Recorder(), build(), rows()
    y = moe(x, Context(record=record))
    torch.testing.assert_close(record.taps["place.router"], (x @ moe.router.weight.T).softmax(-1), **fp64)
    assert torch.equal(y, moe(x, Context()))


def test_published_models_have_their_published_sizes() -> None:
    """Total and active parameters, tables counted: Mixtral 8x7B and Qwen3-235B-A22B."""
    common = {"norm": "rmsnorm", "position": "rope", "tie_embeddings": False}
    plain = {"bias": False, "out_bias": False, "head_dim": 128}
    mixtral = {"dim": 4096, "depth": 32, "heads": 32, "vocab_size": 32000, "mixer": {"kv_heads": 8, **plain}}
    mixtral["ffn"] = {"name": "moe", "expert": {"name": "swiglu", "hidden": 14336}}
    attention = {"kv_heads": 4, "qk_norm": "rmsnorm", **plain}
    qwen = {"dim": 4096, "depth": 94, "heads": 64, "vocab_size": 151936, "mixer": attention}
    qwen["ffn"] = {"name": "moe", "experts": 128, "top_k": 8, "expert": {"name": "swiglu", "hidden": 1536}}
    published = {"mixtral": (46_702_792_704, 12_879_925_248), "qwen": (235_093_634_560, 22_190_763_520)}
    for name, choices in (("mixtral", mixtral), ("qwen", qwen)):
        with torch.device("meta"):
            counted = count(zoo.create_model("gpt", **common, **choices), torch.empty(1, 1, dtype=torch.long))
        assert (counted.params, counted.params_active) == published[name]
        tables = choices["dim"] * choices["vocab_size"]
        assert counted.params_active_non_embedding == counted.params_active - tables


def test_flops_are_those_of_the_chosen_experts() -> None:
    flops = {}
    for name, ffn in {
        "dense": {"name": "swiglu", "hidden": 24},
        "moe": {"name": "moe", "experts": 8, "expert": {"name": "swiglu", "hidden": 12}},
    }.items():
        flops[name] = count(tiny("gpt", ffn=ffn), torch.zeros(1, 9, dtype=torch.long)).flops_forward
    router = 3 * 2 * 9 * 16 * 8  # layers, a multiply-add, tokens, D, E
    assert flops["moe"] == flops["dense"] + router


def test_a_deep_copy_is_equal_and_independent() -> None:
    moe, x = build(bias_rate=1e-3), rows()
    twin = copy.deepcopy(moe)
    assert torch.equal(twin(x, Context()), moe(x, Context()))
    twin.router.move_bias(torch.tensor([9.0, 0.0, 0.0, 0.0]))
    assert not torch.equal(twin.router.bias, moe.router.bias)  # type: ignore[arg-type]


# -- upcycling


@pytest.mark.parametrize("family", ["gpt", "bert", "electra", "t5", "transformer", "vit"])
@pytest.mark.parametrize(
    "choices", [{"experts": 4}, {"experts": 3, "top_k": 3, "scores": "sigmoid", "every": 2}], ids=str
)
def test_an_upcycled_model_starts_as_the_dense_one(family: str, choices: dict[str, Any]) -> None:
    dense = tiny(family, ffn={"name": "swiglu" if family == "gpt" else "mlp", "ratio": 2.0}).double().eval()
    sparse = upcycle(dense, **choices)
    torch.testing.assert_close(called(family, sparse), called(family, dense), rtol=0, atol=1e-12)
    kinds = [isinstance(module.ffn, MoE) for module in sparse.modules() if isinstance(module, Block)]
    assert kinds[:3] == ([False, True, False] if "every" in choices else [True] * 3)
    assert not sparse.training and next(sparse.parameters()).dtype == torch.float64


REFUSED: dict[str, tuple[Any, str]] = {
    "top_k": (1, "single expert is weighed by the router's score"),
    "normalise": (False, "do not add up to 1"),
    "scale": (2.0, "add up to 2.0"),
    "weigh": ("input", "not w f"),
    "shared": ("mlp", "on top of the copies"),
    "capacity": (1.25, "in training a full expert drops tokens"),
    "eval_capacity": (1.25, "in evaluation a full expert drops tokens"),
    "router": ("experts", "some by none"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_upcycling_refuses_what_would_not_start_alike_and_says_why(name: str) -> None:
    value, why = REFUSED[name]
    with pytest.raises(zoo.ConfigError, match=f"{name}: .*changes what the model computes: .*{why}.*; choose "):
        upcycle(tiny("gpt"), **{name: value})


def test_upcycling_needs_a_dense_stack() -> None:
    with pytest.raises(zoo.ConfigError, match="no stacked form"):
        upcycle(tiny("gpt", ffn="moe"))
    with pytest.raises(zoo.ConfigError, match="Linear has no stack"):
        upcycle(nn.Linear(2, 2))
