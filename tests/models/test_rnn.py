"""The LSTM encoder-decoder: padding never leaks, and going on from a state equals one pass."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import zoo
from zoo.blocks.api import Context, Recorder
from zoo.blocks.recurrent import masked_lstm
from zoo.generation import generate, state_bytes
from zoo.models.rnn import RNN

fp64: dict[str, Any] = {"rtol": 0.0, "atol": 1e-12}  # sums of a few dozen terms below 1

MASK = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 0], [1, 0, 1, 0, 0, 0], [0, 0, 0, 0, 0, 0]]).bool()


def model(**choices) -> RNN:
    torch.manual_seed(0)
    made = zoo.create_model("rnn", vocab_size=13, dim=8, **choices).double().eval()
    assert isinstance(made, RNN)
    return made


@pytest.fixture(params=[1, 2], ids=["depth 1", "depth 2"])
def rnn(request: pytest.FixtureRequest) -> RNN:
    return model(depth=request.param)


def rows(batch: int, length: int) -> torch.Tensor:
    return torch.randint(13, (batch, length), generator=torch.Generator().manual_seed(length))


def test_padding_anywhere_changes_nothing(rnn: RNN) -> None:
    source, target = rows(4, 6), rows(4, 5)
    together = rnn(source, target, source_mask=MASK)
    assert together.isfinite().all()  # also the row without a source
    for row in range(3):
        alone = rnn(source[row : row + 1, MASK[row]], target[row : row + 1])
        torch.testing.assert_close(together[row], alone[0], **fp64)
    other = torch.where(MASK, source, (source + 1) % 13)
    assert torch.equal(rnn(other, target, source_mask=MASK), together)


def test_masked_target_tokens_leave_the_state_as_it_is(rnn: RNN) -> None:
    source, target = rows(3, 6), rows(3, 6)
    memory, real = rnn.encode(source), MASK[:3]
    x = rnn.features(target, Context(memory=memory, token_mask=real))
    for row in range(3):
        alone = rnn.features(target[row : row + 1, real[row]], Context(memory=memory[row : row + 1]))
        torch.testing.assert_close(x[row, real[row]], alone[0], **fp64)


@pytest.mark.parametrize("split", [1, 3, 5])
def test_any_split_into_calls_equals_one_pass(rnn: RNN, split: int) -> None:
    source, target = rows(4, 6), rows(4, 6)
    context = Context(memory=rnn.encode(source, MASK), memory_mask=MASK)
    whole = rnn.features(target, context)
    state = rnn.init_state(4, 6)
    parts = [rnn.features(target[:, :split], context, state)]
    parts += [rnn.features(target[:, t : t + 1], Context(), state) for t in range(split, 6)]  # the memory is kept
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, **fp64)
    assert state.length.tolist() == [6] * 4


def test_a_state_is_forked_and_its_rows_are_moved(rnn: RNN) -> None:
    source, target = rows(2, 6), rows(2, 4)
    state = rnn.init_state(2, 4)
    rnn.features(target[:, :3], Context(memory=rnn.encode(source)), state)
    fork = state.clone()
    fork.reorder(torch.tensor([1, 1, 0]))
    last = target[:, 3:]
    moved = rnn.features(last[[1, 1, 0]], Context(), fork)
    torch.testing.assert_close(moved, rnn.features(last, Context(), state)[[1, 1, 0]], **fp64)
    assert not state.can_truncate(2)
    with pytest.raises(ValueError, match="cannot go back to 2 tokens"):
        state.truncate(2)


@pytest.mark.parametrize("beams", [1, 3])
def test_generation_with_a_state_gives_the_tokens_of_the_whole_row(rnn: RNN, beams: int) -> None:
    options: dict[str, Any] = {
        "source": rows(4, 6),
        "source_mask": MASK,
        "max_new_tokens": 6,
        "eos_id": 1,
        "beams": beams,
    }
    cached, plain = generate(rnn, **options), generate(rnn, **options, use_state=False)
    assert [row.tolist() for row in cached.new] == [row.tolist() for row in plain.new]


def test_state_bytes_are_those_of_the_state(rnn: RNN) -> None:
    state = rnn.init_state(2, 9)
    assert state.nbytes() == state_bytes(rnn, 2, 9) == 2 * rnn.config.depth * 2 * 8 * 8
    rnn.features(rows(2, 1), Context(memory=rnn.encode(rows(2, 5))), state)
    assert (
        state.nbytes() == state_bytes(rnn, 2, 9, source_len=5) == 2 * rnn.config.depth * 2 * 8 * 8 + 2 * 2 * 5 * 8 * 8
    )


def test_what_it_reads_can_be_recorded_and_is_nothing_that_is_masked() -> None:
    rnn, recorder = model(), Recorder("attention")
    rnn(rows(4, 6), rows(4, 5), source_mask=MASK, record=recorder)
    weights = recorder.taps["rnn.attention"]
    assert weights.shape == (4, 1, 5, 6)
    assert float(weights.masked_select(~MASK[:, None, None].expand_as(weights)).abs().sum()) == 0.0
    torch.testing.assert_close(weights[:3].sum(-1), torch.ones(3, 1, 5).double())


def test_a_masked_lstm_equals_one_that_reads_the_real_tokens_alone() -> None:
    torch.manual_seed(0)
    lstm = nn.LSTM(3, 2, 2, batch_first=True, bidirectional=True).double()
    x = torch.randn(4, 6, 3).double()
    y = masked_lstm(lstm, x, MASK)
    for row in range(3):
        torch.testing.assert_close(y[row, MASK[row]], lstm(x[row : row + 1, MASK[row]])[0][0], **fp64)
    assert not y[~MASK].any()


def test_every_parameter_gets_a_gradient_and_the_table_is_one() -> None:
    rnn = model(depth=2).train()
    rnn(rows(4, 6), rows(4, 5), source_mask=MASK).logsumexp(-1).sum().backward()
    assert all(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in rnn.parameters())
    assert rnn.head.table is rnn.embed.weight


def test_what_it_cannot_do_is_refused_in_one_line() -> None:
    rnn = model()
    with pytest.raises(ValueError, match="packed documents"):
        rnn.features(rows(1, 3), Context(memory=rnn.encode(rows(1, 2)), documents=torch.zeros(1, 3, dtype=torch.long)))
    with pytest.raises(ValueError, match=r"needs context.memory"):
        rnn.features(rows(1, 3), Context())
    with pytest.raises(zoo.ConfigError, match="should be even"):
        zoo.create_model("rnn", dim=7)
