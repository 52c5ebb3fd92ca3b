"""The trunk of every family: layouts, positions, states and padding through several layers at once."""

from __future__ import annotations

import pytest
import torch

import zoo
from zoo import registry
from zoo.blocks import Capability, Context, Slot, Stack
from zoo.blocks.stack import LAYOUTS, TransformerConfig, entries

DIM, T = 16, 12
fp64 = {"rtol": 0.0, "atol": 1e-10}
POSITIONS = ["none", "learned", "sinusoidal", "rope", "alibi", "t5_bias"]


def stack(*, memory: bool = False, causal: bool = True, **choices) -> Stack:
    zoo.list_models()  # registers everything
    torch.manual_seed(0)
    config = TransformerConfig(dim=DIM, depth=3, heads=2, init_std=0.3, **choices)
    needs = Capability.CAUSAL | Capability.STEP if causal else Capability.BIDIRECTIONAL
    slot = Slot(
        dim=DIM, heads=2, max_len=32, causal=causal, memory_dim=DIM if memory else None, needs=needs, where="test"
    )
    return Stack(config, slot).double().eval()


def rows(length: int = T, batch: int = 2, seed: int = 1) -> torch.Tensor:
    return torch.randn(batch, length, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("mixer", [{}, {"window": 4, "sinks": 1}, {"kv_heads": 1}], ids=str)
def test_left_padded_prompts_and_their_steps_equal_each_prompt_alone(position: str, mixer: dict) -> None:
    """Known fault 3: padding must shift no position, in the forward pass and in the steps after it."""
    model, x = stack(position=position, mixer=mixer), rows()
    mask = torch.ones(2, 7, dtype=torch.bool)
    mask[0, :4] = False  # prompts of 3 and 7 tokens
    state = model.init_state(2, T, dtype=torch.float64)
    outputs = [model(x[:, :7], Context(token_mask=mask), state)]
    outputs += [model(x[:, t : t + 1], Context(), state) for t in range(7, T)]
    together = torch.cat(outputs, 1)
    assert state.length.tolist() == [8, 12]
    for row, start in ((0, 4), (1, 0)):
        alone = model(x[row : row + 1, start:], Context())
        torch.testing.assert_close(together[row, start:], alone[0], **fp64)


@pytest.mark.parametrize("position", POSITIONS)
def test_chunks_of_any_size_equal_one_pass(position: str) -> None:
    model, x = stack(position=position), rows(20)
    full = model(x, Context())
    state = model.init_state(2, 4, dtype=torch.float64)  # grows
    pieces = [model(piece, Context(), state) for piece in x.split([5, 1, 3, 1, 10], dim=1)]
    torch.testing.assert_close(torch.cat(pieces, 1), full, **fp64)


@pytest.mark.parametrize("position", POSITIONS)
def test_packed_documents_equal_each_alone(position: str) -> None:
    model, x = stack(position=position), rows()
    documents = torch.tensor([[0] * 5 + [1] * 7, [4] * 9 + [2] * 3])
    packed = model(x, Context(documents=documents))
    for row, cut in ((0, 5), (1, 9)):
        for part in (slice(0, cut), slice(cut, T)):
            torch.testing.assert_close(packed[row, part], model(x[row : row + 1, part], Context())[0], **fp64)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("residual", ["pre", "post", "sandwich", "deepnorm", "layerscale"])
def test_layouts_read_a_memory_and_step(layout: str, residual: str) -> None:
    model, x, memory = stack(memory=True, layout=layout, residual=residual), rows(), rows(6, seed=2)
    mask = torch.tensor([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]], dtype=torch.bool)
    full = model(x, Context(memory=memory, memory_mask=mask))
    state = model.init_state(2, T, dtype=torch.float64)
    pieces = [model(x[:, :5], Context(memory=memory, memory_mask=mask), state)]
    pieces += [model(x[:, t : t + 1], Context(), state) for t in range(5, T)]
    torch.testing.assert_close(torch.cat(pieces, 1), full, **fp64)
    other = memory.clone()
    other[:, 0] += 1.0
    assert (model(x, Context(memory=other, memory_mask=mask)) - full).abs().max() > 1e-8


def test_layouts_place_the_sublayers_as_named() -> None:
    assert entries("sequential", cross=True) == ("mixer", "cross", "ffn")
    assert entries("macaron", cross=False) == ("ffn/2", "mixer", "ffn/2")
    block = stack(layout="macaron").blocks[0]
    assert list(block.sublayers()) == ["ffn", "mixer", "ffn_after"]
    assert block.residuals["ffn"].weight == 0.5
    parallel = stack(layout="parallel")
    x, block = rows(), parallel.blocks[0]
    normed = block.residuals["mixer_and_ffn"].norm(x)
    expected = x + block.mixer(normed, Context()) + block.ffn(normed, Context())
    torch.testing.assert_close(block(x, Context()), expected, **fp64)


def test_stochastic_depth_grows_linearly_and_branches_start_scaled() -> None:
    model = stack(drop_path=0.2)
    rates = [block.residuals["mixer"].drop[0].rate if block.residuals["mixer"].drop else 0.0 for block in model.blocks]
    assert rates == [0.0, pytest.approx(0.1), pytest.approx(0.2)]
    plain, scaled = stack(scale_branches=False), stack()
    ratio = scaled.blocks[0].mixer.out.weight.std() / plain.blocks[0].mixer.out.weight.std()
    torch.testing.assert_close(ratio.item(), 6**-0.5, rtol=1e-6, atol=0)  # three layers of two branches


def test_post_norm_ends_normalised_and_pre_norm_gets_a_final_norm() -> None:
    assert stack(residual="post").norm is None
    assert stack(residual="pre").norm is not None
    assert stack(residual="pre", final_norm=False).norm is None
    torch.testing.assert_close(
        stack(residual="post")(rows(), Context()).var(-1, unbiased=False), torch.ones(2, T).double(), rtol=0, atol=1e-4
    )


def test_position_bias_table_is_shared_by_all_layers() -> None:
    model = stack(position="t5_bias")
    tables = {id(block.mixer.bias.weight) for block in model.blocks}
    assert len(tables) == 1
    import copy

    again = copy.deepcopy(model)
    assert len({block.mixer.bias.weight.data_ptr() for block in again.blocks}) == 1


def test_a_mixer_that_cannot_is_refused_with_those_that_can() -> None:
    class Backwards(registry.describe("mixer", "attention").make):  # type: ignore[misc]
        """Sees the future only."""

        capabilities = Capability.BIDIRECTIONAL

    Backwards.registered_name = "backwards"
    with pytest.raises(zoo.ConfigError) as caught:
        stack(mixer=Backwards())
    told, _, fits = str(caught.value).partition(" Fits: ")
    assert told == (
        "test.0.mixer: 'backwards' cannot hide the future (needs CAUSAL) and cannot go on token by token (needs STEP)."
    )
    assert {"attention", "mamba2"} <= set(fits.split(", "))


def test_one_sublayer_of_a_checkpointed_stack_may_be_padded() -> None:
    """Activation checkpointing recomputes with the same context: gradients are those of the plain stack."""
    mask = torch.ones(2, T, dtype=torch.bool)
    mask[0, 5:8] = False
    grads = []
    for checkpointing in (False, True):
        model, x = stack(checkpointing=checkpointing, position="rope").train(), rows().requires_grad_()
        model(x, Context(token_mask=mask))[mask].square().sum().backward()
        grads.append(x.grad)
    torch.testing.assert_close(grads[1], grads[0], rtol=0, atol=0)


def test_a_stack_that_sees_the_whole_row_has_no_state() -> None:
    model = stack(causal=False)
    with pytest.raises(ValueError, match="keeps no state"):
        model(rows(), Context(), model.init_state(2, T))


def test_a_bias_table_alone_trains_through_a_state() -> None:
    model, x = stack(position="t5_bias"), rows()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    table = model.blocks[0].mixer.bias.weight.requires_grad_()
    state = model.init_state(2, T, dtype=torch.float64)
    pieces = [model(x[:, t : t + 1], Context(), state) for t in range(T)]
    (grad,) = torch.autograd.grad(torch.cat(pieces, 1).square().sum(), table)
    (expected,) = torch.autograd.grad(model(x, Context()).square().sum(), table)
    torch.testing.assert_close(grad, expected, rtol=0, atol=1e-8)
