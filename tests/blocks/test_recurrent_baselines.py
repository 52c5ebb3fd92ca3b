"""Convolution, LSTM and GRU as mixers: against their formulas, with padding, documents and states."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import zoo
from tests.parts import DIM, HEADS, rows
from zoo import registry
from zoo.blocks import Context, Slot
from zoo.blocks.mixers.conv import Conv, ConvConfig
from zoo.blocks.mixers.gru import GRU, GRUConfig
from zoo.blocks.mixers.lstm import LSTM, LSTMConfig
from zoo.inspection.count import count

T = 11
fp64 = {"rtol": 0.0, "atol": 1e-10}


def build(name: str, *, layer: int = 0, **choices):
    torch.manual_seed(0)
    config = registry.decode("mixer", {"name": name, **choices})
    slot = Slot(dim=DIM, heads=HEADS, causal=True, init_std=0.3, layer=layer, depth=12, where="test.mixer")
    return config.build(slot).double().eval()


def naive_conv(mixer: Conv, x: Tensor) -> Tensor:
    """Token by token, tap by tap."""
    parts = mixer.inputs(x).split(mixer.channels, -1)
    value = parts[0] * parts[-1] if mixer.config.input_gate else parts[0]
    gate = {"none": lambda g: 1.0, "linear": lambda g: g, "sigmoid": torch.sigmoid, "silu": F.silu}[mixer.config.gate]
    weight, bias, outputs = mixer.conv.weight, mixer.conv.bias, []
    for t in range(x.shape[1]):
        y = torch.zeros_like(value[:, 0]) if bias is None else bias
        for j in range(mixer.config.width):
            if t >= j * mixer.conv.dilation:
                y = y + weight[:, -1 - j] * value[:, t - j * mixer.conv.dilation]
        outputs.append(y * gate(parts[1][:, t] if len(parts) > 1 else y))
    return mixer.out(torch.stack(outputs, 1))


@pytest.mark.parametrize("choices", [{"gate": gate} for gate in ("none", "linear", "sigmoid", "silu")], ids=str)
@pytest.mark.parametrize(
    "extra", [{}, {"input_gate": True, "bias": False}, {"width": 3, "dilation": [1, 2, 3]}], ids=str
)
def test_a_convolution_equals_its_formula(choices: dict, extra: dict) -> None:
    for layer in (0, 2):
        mixer, x = build("conv", layer=layer, **choices, **extra), rows()
        torch.testing.assert_close(mixer(x, Context()), naive_conv(mixer, x), **fp64)


def test_dilations_double_as_in_wavenet_or_follow_a_list() -> None:
    assert [ConvConfig().dilation_of(layer) for layer in range(12)] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1, 2]
    config = registry.decode("mixer", {"name": "conv", "dilation": [1, 3]})
    assert [config.dilation_of(layer) for layer in range(5)] == [1, 3, 1, 3, 1]


def test_a_convolution_sees_its_taps_and_nothing_else() -> None:
    mixer, x = build("conv", layer=1, width=3), rows()
    other = x.clone()
    other[:, 4] += 1.0
    changed = (mixer(other, Context()) - mixer(x, Context())).abs().amax((0, 2)) > 1e-9
    assert changed.nonzero().flatten().tolist() == [4, 6, 8]


def naive_lstm(mixer: LSTM, x: Tensor) -> Tensor:
    rnn, outputs = mixer.rnn, []
    h = c = x.new_zeros(x.shape[0], mixer.hidden)
    for t in range(x.shape[1]):
        gates = x[:, t] @ rnn.weight_ih_l0.mT + rnn.bias_ih_l0 + h @ rnn.weight_hh_l0.mT + rnn.bias_hh_l0
        i, f, g, o = gates.chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        outputs.append(h)
    return mixer.out(torch.stack(outputs, 1))


def naive_gru(mixer: GRU, x: Tensor) -> Tensor:
    rnn, outputs = mixer.rnn, []
    h = x.new_zeros(x.shape[0], mixer.hidden)
    for t in range(x.shape[1]):
        r, z, n = (x[:, t] @ rnn.weight_ih_l0.mT + rnn.bias_ih_l0).chunk(3, -1)
        r_h, z_h, n_h = (h @ rnn.weight_hh_l0.mT + rnn.bias_hh_l0).chunk(3, -1)
        z = torch.sigmoid(z + z_h)
        h = (1 - z) * torch.tanh(n + torch.sigmoid(r + r_h) * n_h) + z * h
        outputs.append(h)
    return mixer.out(torch.stack(outputs, 1))


@pytest.mark.parametrize(("name", "formula"), [("lstm", naive_lstm), ("gru", naive_gru)])
@pytest.mark.parametrize("hidden", [None, 5])
def test_recurrences_equal_their_formulas(name: str, formula, hidden: int | None) -> None:
    mixer, x = build(name, hidden=hidden), rows()
    torch.testing.assert_close(mixer(x, Context()), formula(mixer, x), **fp64)


DOCUMENTS = torch.tensor([[0] * 4 + [1] * 3 + [2] * 4, [5] * 8 + [3] * 3])
MASK = torch.tensor([[0, 1, 1, 0, 1, 1, 0, 1, 1, 0, 0], [1, 1, 0, 1, 1, 1, 1, 1, 0, 1, 1]]).bool()


@pytest.mark.parametrize("name", ["lstm", "gru", "conv"])
@pytest.mark.parametrize("masked", [False, True])
def test_documents_of_any_length_start_afresh_and_go_on_between_calls(name: str, masked: bool) -> None:
    mixer, x = build(name), rows()
    mask = MASK if masked else torch.ones_like(MASK)
    state = mixer.init_state(2, T)
    pieces, finals = [], []
    for start, stop in ((0, 2), (2, 6), (6, T)):
        piece = slice(start, stop)
        context = Context(documents=DOCUMENTS[:, piece], token_mask=mask[:, piece] if masked else None)
        pieces.append(mixer(x[:, piece], context, state))
    whole = mixer(x, Context(documents=DOCUMENTS, token_mask=mask if masked else None))
    for row in range(2):
        for document in DOCUMENTS[row].unique():
            here = (DOCUMENTS[row] == document) & mask[row]
            alone_state = mixer.init_state(1, T)
            alone = mixer(x[row : row + 1, here], Context(), alone_state)[0]
            torch.testing.assert_close(whole[row, here], alone, **fp64)
            torch.testing.assert_close(torch.cat(pieces, 1)[row, here], alone, **fp64)
            if document == DOCUMENTS[row, -1]:
                finals.append(alone_state)
    for part in state.tensors:
        torch.testing.assert_close(state[part], torch.cat([final[part] for final in finals]), **fp64)


def test_a_row_without_tokens_keeps_its_state() -> None:
    for name in ("lstm", "gru"):
        mixer, x = build(name), rows()
        state = mixer.init_state(2, T)
        mixer(x[:, :5], Context(), state)
        before = state.clone()
        mask = torch.tensor([[False] * 6, [True] * 6])
        mixer(x[:, 5:], Context(token_mask=mask), state)
        assert torch.equal(state["hidden"][0], before["hidden"][0])
        assert not torch.equal(state["hidden"][1], before["hidden"][1])


def test_states_stay_fp32_under_autocast_and_in_half_precision() -> None:
    for name in ("lstm", "gru"):
        mixer = build(name).float()
        state = mixer.init_state(2, T)
        with torch.autocast("cpu", torch.bfloat16):
            mixer(rows(dtype=torch.float32), Context(), state)
        assert state["hidden"].dtype == torch.float32
        assert (state["hidden"] - state["hidden"].bfloat16()).abs().max() > 0, "was rounded to bf16 on the way"
        half = mixer.bfloat16()
        assert half.init_state(2, T)["hidden"].dtype == torch.float32


def test_a_new_lstm_remembers() -> None:
    """Forget gates start at sigmoid(1 + small), all other biases at 0."""
    mixer = build("lstm")
    i, f, g, o = mixer.rnn.bias_ih_l0.chunk(4)
    assert f.eq(1).all() and torch.cat([i, g, o]).eq(0).all() and mixer.rnn.bias_hh_l0.eq(0).all()
    assert build("gru").rnn.bias_ih_l0.eq(0).all()


def test_their_cost_is_counted() -> None:
    """The counter of a model sees the products of the recurrence: 4 or 3 gates, of x and of h, and the output."""
    for config, gates in ((LSTMConfig(), 4), (GRUConfig(), 3)):
        sizes = {"dim": 16, "depth": 1, "heads": 2, "vocab_size": 8, "max_len": 8, "layout": "mixer_only"}
        model = zoo.create_model("gpt", mixer=config, **sizes)
        flops = count(model, torch.zeros(1, 8, dtype=torch.long)).flops_forward
        head = 2 * 8 * 16 * 8
        assert flops - head == 2 * 8 * (gates * 2 * 16 * 16 + 16 * 16)
