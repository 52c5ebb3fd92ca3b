"""BART's noise: what each kind changes and keeps."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest

from recipes.data import load_kinds
from recipes.data.text.denoising import (
    Denoising,
    DenoisingExamples,
    delete,
    infill,
    mask_tokens,
    permute_sentences,
    rotate,
)
from recipes.data.text.sequences import Sequences
from zoo.registry import ConfigError, decode

load_kinds()
MASK = 3


def draw(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("length", [0, 1, 2, 7, 40])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_masking_and_deletion_take_the_share_and_keep_the_order(length: int, share: float) -> None:
    ids = np.arange(10, 10 + length)
    masked = mask_tokens(ids, share, MASK, draw())
    assert len(masked) == length
    assert (masked == MASK).sum() == round(share * length)
    assert (masked[masked != MASK] == ids[masked != MASK]).all()
    kept = delete(ids, share, draw())
    assert len(kept) == max(length - round(share * length), min(length, 1))
    assert (np.diff(kept) > 0).all()


@pytest.mark.parametrize("length", [0, 1, 2, 5, 12, 60])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 0.9])
@pytest.mark.parametrize("mean", [0.0, 1.0, 3.0])
def test_infilling_takes_the_share_out_and_keeps_the_rest_in_order(length: int, share: float, mean: float) -> None:
    ids = np.arange(10, 10 + length)
    for seed in range(20):
        made = infill(ids, share, mean, MASK, draw(seed))
        kept = made[made != MASK]
        assert len(kept) == length - round(share * length)
        assert (np.diff(kept) > 0).all()
        at = np.flatnonzero(made == MASK)
        assert (np.diff(at) > 1).all()  # no two masks side by side
        assert len(at) == 0 if round(share * length) == 0 else len(at) >= 1
        # What is missing between two kept tokens has a mask there.
        filled = np.concatenate([[9], made, [10 + length]])
        for left, right in itertools.pairwise(filled):
            assert MASK in (left, right) or right == left + 1


def test_infilling_spans_have_the_poisson_mean() -> None:
    ids = np.arange(10, 2010)
    masks = sum(int((infill(ids, 0.3, 3.0, MASK, draw(seed)) == MASK).sum()) for seed in range(20))
    assert 600 * 20 / masks == pytest.approx(3.0, rel=0.05)


def test_sentences_change_places_whole() -> None:
    ids = np.array([11, 12, 0, 21, 0, 31, 32, 33, 0, 41])
    sentences = [(11, 12, 0), (21, 0), (31, 32, 33, 0), (41,)]
    orders = set()
    for seed in range(40):
        made = permute_sentences(ids, ids == 0, 1.0, draw(seed)).tolist()
        order = tuple(sorted(range(4), key=lambda number: made.index(sentences[number][0])))
        assert made == [i for number in order for i in sentences[number]]
        orders.add(order)
    assert len(orders) > 10
    assert permute_sentences(ids, ids == 0, 0.0, draw()).tolist() == ids.tolist()


def test_rotation_is_a_rotation() -> None:
    ids = np.arange(10, 15)
    made = {tuple(rotate(ids, draw(seed)).tolist()) for seed in range(60)}
    assert made == {tuple(np.roll(ids, -k).tolist()) for k in range(5)}
    assert len(rotate(ids[:0], draw())) == 0


def test_the_decoder_writes_the_row_and_counts_are_right() -> None:
    config = {"name": "bytes", "special": ["pad", "bos", "eos", "mask"]}
    tokenizer = decode("tokenizer", config).train([])
    texts = [f"This is sentence one of {k}. And here is two! Is {k * k} three? Yes.\nEnd" for k in range(12)]
    rows = tokenizer.sequences(texts)
    examples = DenoisingExamples(rows, tokenizer, Denoising(mask=0.1, delete=0.1, rotate=0.5), start=2, eos=2)
    batch = examples.batch(range(12), (0, 0))
    assert examples.targets(batch) == examples.count_targets(range(12), (0, 0))
    for row, text in enumerate(texts):
        labels = batch["labels"][row]
        written = labels[labels != -100].tolist()
        assert tokenizer.decode(written) == text and written[-1] == 2
        assert batch["target"][row, : len(written)].tolist() == [2, *written[:-1]]
        alone = examples.batch([row], (0, 0))["source"][0].tolist()
        assert batch["source"][row, : len(alone)].tolist() == alone
        assert MASK in alone
    assert examples.batch([3], (0, 1))["source"].tolist() != examples.batch([3], (0, 0))["source"].tolist()
    plain = DenoisingExamples(rows, tokenizer, Denoising(infill=0.0), start=2, eos=2)
    moved = plain.batch([5], (0, 0))["source"][0].tolist()
    assert Counter(moved) == Counter([*rows[5].tolist(), 2])
    assert tokenizer.decode(moved) != texts[5]


def test_a_tokenizer_without_mask_is_refused() -> None:
    tokenizer = decode("tokenizer", "bytes").train([])
    with pytest.raises(ConfigError, match="needs a tokenizer with 'mask'"):
        DenoisingExamples(Sequences.of([[5]]), tokenizer, Denoising(), start=1, eos=2)
