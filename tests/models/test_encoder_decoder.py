"""Encoder-decoders of every form: what is padded is never read, and going on from a state equals one pass."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import zoo
from zoo.blocks.api import Context, Recorder
from zoo.generation import generate
from zoo.models.encoder_decoder import EncoderDecoder

fp64: dict[str, Any] = {"rtol": 0.0, "atol": 1e-10}  # sums of a few dozen terms of size 1

FORMS: dict[str, dict[str, Any]] = {
    "t5": {"family": "t5"},
    "t5 v1.1": {"family": "t5_v1_1_small", "dim": 16, "mixer": {"head_dim": 4}, "ffn": {"hidden": 24}},
    "transformer": {"family": "transformer"},
    "bart": {"family": "bart_base", "dim": 16},
    "marian": {"family": "marian_base", "dim": 16},
    "two tables": {"family": "transformer", "source_vocab_size": 13, "encoder_depth": 1},
    "rotary": {"family": "transformer", "position": "rope", "residual": "pre"},
    "alibi, window": {"family": "t5", "position": "alibi", "mixer": {"window": 3}},
}
MASK = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 0], [1, 0, 1, 0, 0, 0]]).bool()


def build(form: str) -> EncoderDecoder:
    torch.manual_seed(0)
    sizes = {"vocab_size": 13, "max_len": 16, "dim": 16, "depth": 2, "heads": 4, "start_id": 2}
    model = zoo.create_model({**sizes, "dropout": 0.0, **FORMS[form]}).double().eval()
    assert isinstance(model, EncoderDecoder)
    return model


@pytest.fixture(params=list(FORMS))
def model(request: pytest.FixtureRequest) -> EncoderDecoder:
    return build(request.param)


def rows(batch: int, length: int) -> torch.Tensor:
    return torch.randint(13, (batch, length), generator=torch.Generator().manual_seed(length))


def test_padding_anywhere_in_source_or_target_changes_nothing(model: EncoderDecoder) -> None:
    source, target = rows(3, 6), rows(3, 6)
    real = MASK[[2, 0, 1]]
    together = model(source, target, source_mask=MASK, target_mask=real)
    for row in range(3):
        alone = model(source[row : row + 1, MASK[row]], target[row : row + 1, real[row]])
        torch.testing.assert_close(together[row, real[row]], alone[0], **fp64)
    other = torch.where(MASK, source, (source + 5) % 13), torch.where(real, target, (target + 5) % 13)
    again = model(*other, source_mask=MASK, target_mask=real)
    assert torch.equal(again[real], together[real])


def test_a_target_padded_on_the_right_needs_no_mask(model: EncoderDecoder) -> None:
    source, target = rows(3, 6), rows(3, 6)
    longer = torch.cat((target, rows(3, 4)), dim=1)
    torch.testing.assert_close(model(source, longer)[:, :6], model(source, target), **fp64)


@pytest.mark.parametrize("split", [1, 4])
def test_any_split_into_calls_equals_one_pass(model: EncoderDecoder, split: int) -> None:
    source, target = rows(3, 6), rows(3, 7)
    memory = model.encode(source, MASK)
    whole = model.features(target, Context(memory=memory, memory_mask=MASK))
    state = model.init_state(3, 7)
    with torch.no_grad():
        parts = [model.features(target[:, :split], Context(memory=memory, memory_mask=MASK), state)]
        parts += [model.features(target[:, t : t + 1], Context(), state) for t in range(split, 7)]  # it is kept
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, **fp64)
    torch.testing.assert_close(model(source, target, source_mask=MASK), model.head(whole), **fp64)


@pytest.mark.parametrize("beams", [1, 3])
def test_generation_starts_as_the_config_says_and_needs_no_state(model: EncoderDecoder, beams: int) -> None:
    options: dict[str, Any] = {"source": rows(3, 6), "source_mask": MASK, "beams": beams}
    options |= {"max_new_tokens": 5, "eos_id": 1}
    cached, plain = generate(model, **options), generate(model, **options, use_state=False)
    assert [row.tolist() for row in cached.new] == [row.tolist() for row in plain.new]
    assert all(int(row[0]) == model.config.start_id == 2 for row in cached.sequences)


def test_what_the_decoder_reads_of_the_source_can_be_recorded(model: EncoderDecoder) -> None:
    recorder = Recorder("cross")
    model(rows(3, 6), rows(3, 4), source_mask=MASK, record=recorder)
    assert len(recorder.taps) == 2
    for weights in recorder.taps.values():
        assert weights.shape == (3, 4, 4, 6)
        assert not weights.masked_select(~MASK[:, None, None].expand_as(weights)).any()


def test_one_table_serves_source_target_and_head_unless_told_otherwise() -> None:
    """NVIDIA-NeMo/Automodel#2571."""
    for form, tables in {"t5": 1, "transformer": 1, "bart": 1, "t5 v1.1": 2, "two tables": 2}.items():
        made = build(form)
        held = {p.data_ptr() for p in made.parameters() if p.shape == (13, 16)}
        assert len(held) == tables, form
        ids = rows(2, 5)
        made(ids, ids).sum().backward()
        assert all(p.grad is not None for p in made.parameters()), form
