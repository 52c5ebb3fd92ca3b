"""Rows cut from documents, and pairs of segments for next-sentence prediction."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from recipes.data.text.corpora import LabelledText
from recipes.data.text.sequences import Sequences
from recipes.data.text.tokenizer_kinds import Characters
from recipes.masked.corpus import labelled_splits, pieces, rows_of
from recipes.masked.sentence_pairs import SentencePairs
from zoo.registry import ConfigError

TEXTS = ["abcdefghijkl", "mnopqrst", "uvwxyz012", "34", "5", "6789ABCDEFGHIJKLMNOP"]  # each letter is in one text
TOKENIZER = Characters(special=("pad", "cls", "sep", "mask")).train(TEXTS)


def pairs(**choices: Any) -> SentencePairs:
    return SentencePairs(TOKENIZER.sequences(TEXTS), TOKENIZER, 0.3, limit=11, **choices)


def test_documents_are_cut_into_rows_and_never_joined() -> None:
    rows = pieces(Sequences.of([[1, 2, 3, 4, 5], [], [6], [7, 8]]), 2)
    assert [row.tolist() for row in (rows[i] for i in range(len(rows)))] == [[1, 2], [3, 4], [5], [6], [7, 8]]
    assert len(pieces(Sequences.of([]), 3)) == 0


def test_every_token_of_a_corpus_is_in_one_row() -> None:
    corpus = LabelledText(tuple(TEXTS), ("abc",), ("xyz",), (), (), (), ("a", "b"), "here", "")
    rows = rows_of(corpus, TOKENIZER, 5)
    assert TOKENIZER.decode(rows["train"].flat.tolist()) == "".join(TEXTS)
    assert max(rows["train"].lengths) == 5
    assert labelled_splits(corpus) is None


def test_labels_without_a_test_split_are_refused() -> None:
    corpus = LabelledText(("a",), ("b",), ("c",), (("a", 0),), (("b", 1),), (), ("x", "y"), "here", "")
    with pytest.raises(ConfigError, match="data: has labelled texts to train on but none for test"):
        labelled_splits(corpus)


def unmasked(batch: dict[str, torch.Tensor]) -> np.ndarray:
    return torch.where(batch["labels"] == -100, batch["ids"], batch["labels"]).numpy()


def segments_of(row: np.ndarray) -> tuple[str, str]:
    cls, sep = TOKENIZER.cls_id, TOKENIZER.sep_id
    row = row[row != TOKENIZER.pad_id]
    assert row[0] == cls
    (first, last) = np.flatnonzero(row == sep)
    assert last == len(row) - 1
    return TOKENIZER.decode(row[1:first].tolist()), TOKENIZER.decode(row[first + 1 : last].tolist())


def test_a_next_segment_follows_in_its_document_and_any_other_is_from_another_one() -> None:
    examples = pairs()
    follows = 0
    for epoch in range(20):
        batch = examples.batch(range(len(examples)), (0, epoch))
        rows = unmasked(batch)
        for row, label in zip(rows, batch["next"].tolist(), strict=True):
            a, b = segments_of(row)
            (home,) = [text for text in TEXTS if a in text]
            assert (a + b in home) == (label == 0)
            assert (b in home) == (label == 0)
            follows += label == 0
        types = batch["token_types"].numpy()
        for row, kinds in zip(rows, types, strict=True):
            first = int(np.flatnonzero(row == TOKENIZER.sep_id)[0])
            assert (kinds[: first + 1] == 0).all()
            assert (kinds[first + 1 :] == 1).all()
    total = 20 * len(examples)
    assert abs(follows / total - 0.5) < 4 * (0.25 / total) ** 0.5  # 4 sigma of a fair coin


def test_a_pair_depends_on_seed_epoch_and_row_alone() -> None:
    examples = pairs()
    whole = examples.batch(range(len(examples)), (3, 1))
    for row in range(len(examples)):
        alone = examples.batch([row], (3, 1))
        width = alone["ids"].shape[1]
        for name in ("ids", "labels", "token_types"):
            assert torch.equal(alone[name][0], whole[name][row, :width])
        assert alone["next"][0] == whole["next"][row]
    again = examples.batch(range(len(examples)), (3, 2))
    assert not torch.equal(whole["next"], again["next"])
    fixed = examples.batch(range(len(examples)), None)
    assert torch.equal(fixed["ids"], examples.batch(range(len(examples)), None)["ids"])


def test_at_probability_one_every_token_of_text_is_a_target_and_no_special_one_or_padding_is() -> None:
    """huggingface/transformers#11155"""
    examples = SentencePairs(TOKENIZER.sequences(TEXTS), TOKENIZER, 1.0, mask=1.0, random=0.0, limit=11)
    batch = examples.batch(range(len(examples)), None)
    rows, labels = unmasked(batch), batch["labels"].numpy()
    assert ((labels != -100) == (rows >= TOKENIZER.first)).all()
    assert (batch["ids"].numpy()[labels != -100] == TOKENIZER.mask_id).all()
    assert examples.count_targets(range(len(examples)), None) == int((labels != -100).sum())


def test_segments_that_cannot_be_are_told_in_one_line() -> None:
    with pytest.raises(ConfigError, match=r"task.length: should be at least 5"):
        SentencePairs(TOKENIZER.sequences(TEXTS), TOKENIZER, limit=4)
    with pytest.raises(ConfigError, match="two documents"):
        SentencePairs(TOKENIZER.sequences(["abcdef", "g"]), TOKENIZER, limit=11)
