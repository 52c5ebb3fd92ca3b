"""The parts that recipes from one sequence to another share: vocabulary, loss, figures, phases, answers."""

from __future__ import annotations

import io
import random
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from recipes.data.loader import EpochLoader
from recipes.data.text.bucketing import Bucketed
from recipes.data.text.corpora import Pair
from recipes.data.text.pairs import PairExamples
from recipes.data.text.sequences import Sequences
from recipes.data.text.tokenizer_kinds import Bpe, Characters, Words
from recipes.seq2seq.base import Answering, Seq2SeqRecipe, features
from recipes.seq2seq.baselines import aligned_symbols
from recipes.seq2seq.generation import answer_examples, answer_texts
from recipes.seq2seq.metrics import best_reference, edit_distance, symbol_errors, text_overlap
from recipes.seq2seq.phases import Phases
from recipes.seq2seq.vocabulary import PairVocabulary
from tests.recipes.pairs import corpus, pair_settings, write_pairs
from zoo.registry import ConfigError


def vocabulary() -> PairVocabulary:
    return PairVocabulary(
        Characters(special=("pad", "eos", "mask"), sentinels=4).train(["abc"]), Words(special=("unk",)).train(["A B C"])
    )


def test_a_common_vocabulary_keeps_both_sides_apart_and_reads_targets_back(tmp_path: Path) -> None:
    both = vocabulary()
    sources, targets = both.sources(["cab"])[0], both.targets(["C A B"])[0]
    assert both.vocab_size == both.source.vocab_size + 4
    assert sources.max() < both.shift <= targets.min()
    assert both.text([*targets.tolist(), both.eos_id, int(targets[0])]) == "C A B"
    assert both.text([both.pad_id, int(sources[0]), int(targets[1]), both.sentinel_ids[0]]) == "A"
    assert [both.name(i) for i in (both.pad_id, int(sources[0]), int(targets[0]))] == ["<pad>", "c", "C"]
    assert both.text(both.targets(["C Z"])[0].tolist()).split()[0] == "C"  # a symbol never met is unk, not a crash
    both.save(tmp_path)
    again = PairVocabulary.load(tmp_path)
    assert again.targets(["C A B"])[0].tolist() == targets.tolist()
    assert (again.vocab_size, again.shift, again.start_id) == (both.vocab_size, both.shift, both.pad_id)


@pytest.mark.parametrize(
    "text", ["", " a", "b  c ", "tab\tnew\nline", "\x00", "日本 🙂", "".join(map(chr, range(256)))]
)
def test_a_shared_vocabulary_gives_back_every_text(text: str, tmp_path: Path) -> None:
    """huggingface/tokenizers#608: on both sides, and from disk."""
    one = PairVocabulary(Bpe(vocab_size=300, special=("pad", "bos", "eos")).train(["a text", "Text"]))
    one.save(tmp_path)
    for each in (one, PairVocabulary.load(tmp_path)):
        ids = each.targets([text])[0].tolist()
        assert ids == each.sources([text])[0].tolist()
        assert each.text([*ids, each.eos_id]) == text
    assert one.start_id == one.source.bos_id


def test_a_tokenizer_without_an_end_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"task.tokenizer.special: needs 'eos'"):
        PairVocabulary(Characters(special=("pad",)).train(["a"]))


def test_edit_distances_are_those_of_a_kept_library() -> None:
    import_module("recipes.lightning_import")  # as the recipe does it: without the packages torchmetrics looks for
    from torchmetrics.functional.text import edit_distance as theirs

    draw = random.Random(0)
    words = ["".join(draw.choice("ABC") for _ in range(draw.randint(0, 8))) for _ in range(300)]
    found = theirs(words[:-1], words[1:], reduction="none").tolist()
    assert [edit_distance(list(a), list(b)) for a, b in pairwise(words)] == found


def test_error_rates_on_a_case_done_by_hand() -> None:
    answers = ["A B C", "A", "", "X Y Z W"]
    references = [("A B C",), ("B C", "A B"), ("A B",), ("X Y Z W V U", "X Z")]
    # 0 of 3; "A B" is nearer: 1 of 2; all 2 of 2 missing; 2 of 6 is better than 2 of 2
    assert [best_reference(*pair) for pair in zip(answers, references, strict=True)] == [(0, 3), (1, 2), (2, 2), (2, 6)]
    assert symbol_errors(answers, references) == {"per": 5 / 13, "wer": 3 / 4}


def test_overlap_of_texts_is_whole_for_equal_ones_and_none_for_others() -> None:
    same = text_overlap(["the cat sat down"], [("the cat sat down", "other")])
    assert same == pytest.approx({"exact_match": 1.0, "bleu": 1.0, "chrf": 1.0})
    assert text_overlap(["xyz"], [("the cat",)]) == {"exact_match": 0.0, "bleu": 0.0, "chrf": 0.0}


def test_the_letter_baseline_counts_places_of_equally_long_pairs() -> None:
    train = [Pair("ab", "X Y", ()), Pair("ba", "Y X", ()), Pair("aa", "Z X", ()), Pair("abc", "Q Q", ())]
    assert aligned_symbols(train, ["aba", "c"]) == ["X Y X", ""]


def recipe(tmp_path: Path, name: str = "transformer", **changes: Any) -> Any:
    from recipes.recipe import find_recipe

    return find_recipe(name)(pair_settings(write_pairs(tmp_path / "pairs"), name, **changes))


class Table(nn.Module):
    """An encoder-decoder whose logits are given: features are looked up, and the head is a plain map."""

    def __init__(self, size: int) -> None:
        super().__init__()
        from zoo.blocks.heads import LanguageModelHead

        self.rows = nn.Embedding(size, 6)
        self.head = LanguageModelHead(6, size, init_std=1.0)

    def encode(self, source: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        return self.rows(source)

    def features(self, target: torch.Tensor, context: Any) -> torch.Tensor:
        return self.rows(target)


def test_the_loss_equals_a_calculation_by_hand_and_counts_real_labels_only(tmp_path: Path) -> None:
    torch.manual_seed(0)
    made, model = recipe(tmp_path), Table(9).double()
    batch = {
        "source": torch.tensor([[3, 4], [5, 0]]),
        "source_mask": torch.tensor([[True, True], [True, False]]),
        "target": torch.tensor([[1, 3, 4], [1, 5, 0]]),
        "labels": torch.tensor([[3, 4, 2], [5, 2, -100]]),
    }
    loss, logs = made.loss(model.train(), batch)
    expected = torch.tensor(0.0, dtype=torch.float64)
    for row, column in [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]:
        logits = model.head.table @ model.rows.weight[batch["target"][row, column]]
        log_probs = logits - logits.exp().sum().log()
        expected += -0.9 * log_probs[batch["labels"][row, column]] - 0.1 / 9 * log_probs.sum()
    torch.testing.assert_close(loss, expected)
    assert logs == {}
    loss, logs = made.loss(model.eval(), batch)  # validation: without smoothing
    logits = model.head(model.rows(batch["target"]))
    torch.testing.assert_close(loss, F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), reduction="sum"))
    assert int(logs["token_accuracy"]) == int((logits.argmax(-1) == batch["labels"]).sum())


@pytest.mark.parametrize("family", ["transformer", "t5", "rnn"])
def test_padding_changes_neither_loss_nor_gradient(family: str, tmp_path: Path) -> None:
    """Lightning-AI/pytorch-lightning#20350: the sum over one padded batch is that over its rows alone."""
    torch.manual_seed(0)
    choices = {"family": family, "dim": 16, "depth": 1} | ({} if family == "rnn" else {"heads": 2})
    made = recipe(tmp_path)
    made.settings["model"] = choices
    data = made.load()
    model = made.model_config(data).build().double().train()
    rows = [int(data.train.lengths[:, 0].argmin()), int(data.train.lengths[:, 0].argmax())]
    padded = data.train.batch(rows, None)
    assert "source_mask" in padded
    model.zero_grad()
    together = made.loss(model, padded)[0]
    together.backward()
    gradient = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    alone = [data.train.batch([row], None) for row in rows]
    assert all("source_mask" not in batch for batch in alone)  # no mask where nothing is padded
    apart = made.loss(model, alone[0])[0] + made.loss(model, alone[1])[0]
    apart.backward()
    torch.testing.assert_close(together, apart, rtol=1e-10, atol=1e-10)
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.grad, gradient[name], rtol=1e-9, atol=1e-9)


def test_what_padding_holds_is_never_read(tmp_path: Path) -> None:
    torch.manual_seed(0)
    made = recipe(tmp_path)
    data = made.load()
    model = made.model_config(data).build().eval()
    batch = data.train.batch(list(range(8)), None)
    pad = ~batch["source_mask"]
    other = {**batch, "source": torch.where(pad, batch["source"] + 3, batch["source"])}
    kept = batch["labels"] != -100
    assert torch.equal(features(model, batch)[kept], features(model, other)[kept])


def sequences(count: int, seed: int) -> Any:
    draw = np.random.default_rng(seed)
    rows = Sequences.of([draw.integers(3, 9, draw.integers(1, 6)) for _ in range(count)])
    return Bucketed(PairExamples(rows, rows, start=1, eos=2), pool=3)


def stream(phases: Any, batches: int, **options: Any) -> list[list[list[int]]]:
    """The labels of the first batches."""
    loader = EpochLoader(phases, 4, shuffle=True, seed=7, **options)
    found: list[Any] = []
    while len(found) < batches:
        for batch in loader:
            real = (batch["labels"] != -100).sum()
            if options.get("accumulate", 1) == 1 and "world_size" not in options:
                assert float(batch["window_targets"]) == float(real)
            found.append(batch["source"].tolist())
            if len(found) == batches:
                break
    return found


def test_phases_come_one_after_the_other_and_each_goes_through_its_set() -> None:
    first, second = sequences(13, 0), sequences(21, 1)
    made = stream(Phases(first, second, steps=5, size=4, seed=7), 5 + 3 * 5)

    def rows(batches: list[Any]) -> list[tuple[int, ...]]:
        return sorted(tuple(token for token in row if token) for batch in batches for row in batch)

    def whole(examples: Any) -> list[tuple[int, ...]]:
        return [tuple(examples.source[i].tolist()) for i in range(len(examples))]

    assert all(row in whole(first) for row in rows(made[:5]))
    assert all(row in whole(second) for row in rows(made[5:]))
    for start, examples, size in ((0, first, 3), (5, second, 5), (10, second, 5)):  # an epoch of full batches
        seen = rows(made[start : start + size])
        assert len(seen) == size * 4
        left = whole(examples)
        for row in seen:
            left.remove(row)  # each row at most once
    assert made[5:10] != made[10:15]


def test_phases_go_on_where_they_were_and_do_not_depend_on_workers() -> None:
    made = lambda: Phases(sequences(13, 0), sequences(21, 1), steps=5, size=4, seed=7)  # noqa: E731
    whole = stream(made(), 17)
    for stop in (2, 5, 8, 10):
        loader, found = EpochLoader(made(), 4, shuffle=True, seed=7), []
        while len(found) < stop:
            for batch in loader:
                found.append(batch["source"].tolist())
                if len(found) == stop:
                    break
        again = EpochLoader(made(), 4, shuffle=True, seed=7)
        again.load_state_dict(loader.state_dict())
        while len(found) < 17:
            for batch in again:
                found.append(batch["source"].tolist())
                if len(found) == 17:
                    break
        assert found == whole
    assert stream(made(), 17, workers=1) == whole
    other = EpochLoader(Phases(sequences(13, 0), sequences(21, 1), steps=6, size=4, seed=7), 4, shuffle=True, seed=7)
    with pytest.raises(ConfigError, match="cannot resume"):
        other.load_state_dict(EpochLoader(made(), 4, shuffle=True, seed=7).state_dict())


def test_phases_count_the_targets_of_a_window_on_all_ranks() -> None:
    phases = Phases(sequences(30, 0), sequences(40, 1), steps=4, size=8, seed=7)
    ranks = [EpochLoader(phases, 4, shuffle=True, seed=7, accumulate=2, rank=rank, world_size=2) for rank in (0, 1)]
    for _ in range(3):
        epochs = [list(loader) for loader in ranks]
        for window in range(0, 4, 2):
            batches = [batch for epoch in epochs for batch in epoch[window : window + 2]]
            targets = sum(int((batch["labels"] != -100).sum()) for batch in batches)
            assert {float(batch["window_targets"]) for batch in batches} == {float(targets)}


def test_a_phase_smaller_than_a_batch_is_refused() -> None:
    with pytest.raises(ConfigError, match="3 pre-training examples are too few for a batch of 4"):
        Phases(sequences(3, 0), sequences(9, 1), steps=1, size=4, seed=0)


def test_answers_come_in_the_order_of_the_examples_whatever_their_lengths(tmp_path: Path) -> None:
    torch.manual_seed(0)
    made = recipe(tmp_path)
    data = made.load()
    model = made.model_config(data).build().eval()
    together = answer_examples(model, data.vocabulary, made.eval_batches(data.test), most=6)
    texts = [pair.source for pair in data.corpus.test]
    assert len(together) == len(texts)
    alone = [answer_texts(model, data.vocabulary, [text], most=6)[0] for text in texts[:10]]
    assert together[:10] == alone
    assert answer_texts(model, data.vocabulary, [texts[0], "", texts[1]], most=6) == [together[0], "", together[1]]


def test_every_example_of_a_split_is_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that knows all answers but those of two words."""
    made = recipe(tmp_path)
    data = made.load()
    right = [pair.target for pair in data.corpus.test]
    wrong = ["A", right[1] + " A", *right[2:]]
    monkeypatch.setattr(Seq2SeqRecipe, "_generated", lambda *_, **__: wrong)
    found = made.evaluate(made.model_config(data).build().eval(), data, "test")
    errors = edit_distance(["A"], right[0].split()) + 1
    assert found["test/per"] == pytest.approx(errors / sum(len(target.split()) for target in right))
    assert found["test/wer"] == pytest.approx(2 / len(right))


def test_tokenizers_see_the_training_split_alone(tmp_path: Path) -> None:
    made, whole = recipe(tmp_path), corpus(50)
    strange = Pair("xyz", "X Y Z", ("X Y Z",))
    split = type(whole)(whole.train, (strange,), (strange,), whole.source, whole.content_hash)
    held = made.make_vocabulary(split)
    assert not {"x", "y", "z", "X", "Y", "Z"} & {held.name(i) for i in range(held.vocab_size)}


def test_answers_to_piped_lines_stay_line_by_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from recipes.seq2seq import answer

    asked: dict[str, Any] = {}

    def answers(model: Any, vocabulary: Any, texts: list[str], **search: Any) -> list[str]:
        asked.update(search)
        return [f"<{text}>" if text else "" for text in texts]

    monkeypatch.setattr(answer, "answer_texts", answers)
    monkeypatch.setattr("sys.stdin", io.StringIO("abc\n\n  ABC é\n"))
    known = Answering(answer_tokens=4, max_tokens=9, lowercase=True, length_penalty=0.5)
    assert answer.answer(None, vocabulary(), known, ["One", "--input", "-", "--beams", "3"]) == 0
    assert capsys.readouterr().out.split("\n") == ["<one>", "<abc>", "", "<abc é>", ""]
    assert asked == {"limit": 9, "most": 4, "beams": 3, "length_penalty": 0.5}
