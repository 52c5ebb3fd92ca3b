"""The operator against its naive twin: outputs and gradients in fp64, on every path."""

from __future__ import annotations

import pytest
import torch

from zoo.ops import attention as op
from zoo.ops.attention import attention, attention_maps, naive_attention
from zoo.ops.visibility import Visibility

B, H, G, T, K, V = 2, 2, 1, 7, 4, 4

VISIBILITY = {
    "full": {},
    "causal": {"causal": True},
    "causal_window": {"causal": True, "window": 3},
    "two_sided_window": {"window": 3},
    "window_with_sinks": {"causal": True, "window": 3, "sinks": 2},
    "causal_chunk": {"causal": True, "chunk": 3},
    "two_sided_chunk": {"chunk": 3},
    "chunk_and_window": {"causal": True, "chunk": 3, "window": 2},
}
OPTIONS = {
    "plain": {},
    "scale": {"scale": 1.0},
    "softcap": {"softcap": 2.0},
    "sink_logit": {"sink_logit": True},
    "bias": {"bias": True},
    "softcap_bias_sink": {"softcap": 2.0, "bias": True, "sink_logit": True},
    "bias_sink": {"bias": True, "sink_logit": True},
}


def tensors(value_dim: int = V, groups: int = G) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()

    return draw(B, H, T, K), draw(B, groups, T, K), draw(B, groups, T, value_dim)


def visibility(rules: dict, mask: torch.Tensor | None = None, documents: torch.Tensor | None = None) -> Visibility:
    index = Visibility.row_index(T, mask, 0, torch.device("cpu"))
    return Visibility(
        query_index=index,
        key_index=index,
        key_mask=mask,
        query_documents=documents,
        key_documents=documents,
        contiguous=mask is None,
        **rules,
    )


def allowed(visible: Visibility) -> torch.Tensor:
    mask = visible.mask()
    return torch.ones(B, T, T, dtype=torch.bool) if mask is None else mask.expand(B, 1, T, T)[:, 0]


def options(choices: dict) -> tuple[dict, dict, list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    fast, naive, leaves = dict(choices), dict(choices), []
    if choices.get("bias"):
        table = torch.randn(H, T, T, generator=generator, dtype=torch.float64).requires_grad_()
        fast["bias"], naive["bias"] = lambda rows, columns: table[:, rows, columns], table
        leaves.append(table)
    if choices.get("sink_logit"):
        sink = torch.randn(H, generator=generator, dtype=torch.float64).requires_grad_()
        fast["sink_logit"] = naive["sink_logit"] = sink
        leaves.append(sink)
    return fast, naive, leaves


def compare(q, k, v, visible, choices) -> None:
    fast, naive, leaves = options(choices)
    leaves = [q, k, v, *leaves]
    ours, theirs = attention(q, k, v, visible, **fast), naive_attention(q, k, v, allowed(visible), **naive)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)
    weight = torch.linspace(-1, 1, ours.numel(), dtype=torch.float64).view_as(ours)
    grads = torch.autograd.grad((ours * weight).sum(), leaves)
    expected = torch.autograd.grad((theirs * weight).sum(), leaves)
    for mine, other in zip(grads, expected, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-10)


@pytest.mark.parametrize("rules", VISIBILITY)
@pytest.mark.parametrize("choices", OPTIONS)
def test_outputs_and_gradients_equal_the_naive_twin(rules: str, choices: str) -> None:
    compare(*tensors(), visibility(VISIBILITY[rules]), OPTIONS[choices])


@pytest.mark.parametrize("rules", VISIBILITY)
@pytest.mark.parametrize("choices", OPTIONS)
@pytest.mark.parametrize("block", [2, 4])
def test_blocks_of_queries_equal_the_naive_twin(rules: str, choices: str, block: int, monkeypatch) -> None:
    monkeypatch.setattr(op, "BLOCK", block)
    monkeypatch.setattr(op, "DENSE_ENTRIES", 0)
    compare(*tensors(), visibility(VISIBILITY[rules]), OPTIONS[choices])


@pytest.mark.parametrize("rules", VISIBILITY)
@pytest.mark.parametrize("choices", ["plain", "softcap", "sink_logit", "bias"])
def test_padding_anywhere_and_rows_without_keys_equal_the_naive_twin(rules: str, choices: str) -> None:
    mask = torch.ones(B, T, dtype=torch.bool)
    mask[0, :3] = False  # left: under a causal mask the first queries see no key
    mask[1, 2:4] = False  # interior
    mask[1, -1:] = False  # right
    compare(*tensors(), visibility(VISIBILITY[rules], mask), OPTIONS[choices])


def test_a_row_without_any_key_is_zero_with_finite_gradients() -> None:
    q, k, v = tensors()
    mask = torch.ones(B, T, dtype=torch.bool)
    mask[1] = False
    for choices in ({}, {"softcap": 2.0}):
        out = attention(q, k, v, visibility({}, mask), **choices)
        assert out[1].abs().max() == 0
        for grad in torch.autograd.grad(out.sum(), (q, k, v)):
            assert grad.isfinite().all()


@pytest.mark.parametrize("value_dim", [3, 9])
@pytest.mark.parametrize("groups", [1, 2])
def test_value_width_and_groups_equal_the_naive_twin(value_dim: int, groups: int) -> None:
    compare(*tensors(value_dim, groups), visibility({"causal": True}), {})


def test_documents_never_see_each_other() -> None:
    documents = torch.tensor([[0] * 3 + [1] * 4, [0] * 5 + [3] * 2])
    visible = visibility({"causal": True}, documents=documents)
    compare(*tensors(), visible, {})
    assert not allowed(visible)[0, 3:, :3].any()


def test_chunk_of_new_queries_sees_the_cached_keys_before_it() -> None:
    """Known fault 2: a causal flag anchored to the first key gives a chunk the wrong keys."""
    index = torch.arange(8)
    visible = Visibility(query_index=index[5:], key_index=index, causal=True)
    mask = visible.mask()
    assert mask is not None
    assert mask[0, 0].sum(-1).tolist() == [6, 7, 8]


def test_maps_are_the_weights_of_the_output() -> None:
    q, k, v = tensors(groups=H)
    visible = visibility({"causal": True, "window": 3})
    maps = attention_maps(q, k, visible)
    torch.testing.assert_close(maps @ v, attention(q, k, v, visible), rtol=0, atol=1e-10)
    torch.testing.assert_close(maps.sum(-1), torch.ones(B, H, T, dtype=torch.float64), rtol=0, atol=1e-12)


def test_worked_example_of_three_tokens() -> None:
    """Q = K = [[1,0],[0,1],[1,1]], V = [[10,0],[0,10],[5,5]]: exact values by hand."""
    q = torch.tensor([[1.0, 0], [0, 1], [1, 1]], dtype=torch.float64)[None, None]
    v = torch.tensor([[10.0, 0], [0, 10], [5, 5]], dtype=torch.float64)[None, None]
    index = torch.arange(3)
    full = Visibility(query_index=index, key_index=index, contiguous=True)
    causal = Visibility(query_index=index, key_index=index, contiguous=True, causal=True)
    expected = torch.tensor([[6.016681, 3.983319], [3.983319, 6.016681], [5, 5]], dtype=torch.float64)
    torch.testing.assert_close(attention(q, q, v, full)[0, 0], expected, rtol=0, atol=1e-6)
    expected = torch.tensor([[10, 0], [3.302385, 6.697615], [5, 5]], dtype=torch.float64)
    torch.testing.assert_close(attention(q, q, v, causal)[0, 0], expected, rtol=0, atol=1e-6)
    weights = torch.tensor([[0.401112, 0.197776, 0.401112]], dtype=torch.float64)
    torch.testing.assert_close(attention_maps(q, q, full)[0, 0, :1], weights, rtol=0, atol=1e-6)


def test_dropped_weights_keep_the_mean() -> None:
    torch.manual_seed(0)
    q, k, v = (x.detach() for x in tensors())
    visible = visibility({})
    many = [x[:1].repeat(4000, 1, 1, 1) for x in (q, k, v)]
    mean = attention(*many, visible, dropout=0.3).mean(0)
    # standard error of the mean of 4000 draws is below 0.02 for weights and values of unit size; 5 sigma
    torch.testing.assert_close(mean, attention(q, k, v, visible)[0], rtol=0, atol=0.1)


@pytest.mark.parametrize("limit", ["window", "chunk"])
def test_a_long_window_or_chunk_never_builds_the_square_mask(limit: str) -> None:
    """The banded path asks for blocks of the mask only."""
    t, asked = 4096, []
    index = torch.arange(t)
    visible = Visibility(query_index=index, key_index=index, causal=True, contiguous=True, **{limit: 64})
    q = torch.randn(1, 1, t, 8)

    class Spy(Visibility):
        def mask(self, rows=slice(None), columns=slice(None)):
            asked.append((rows.stop - rows.start) * (columns.stop - columns.start))
            return super().mask(rows, columns)

    out = attention(q, q, q, Spy(**{name: getattr(visible, name) for name in visible.__dataclass_fields__}))
    assert out.shape == q.shape
    assert max(asked) <= op.BLOCK * (op.BLOCK + 64)
