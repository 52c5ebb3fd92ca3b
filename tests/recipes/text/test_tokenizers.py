"""Tokenizers: nothing is lost, specials are no text, training is deterministic, files come back the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recipes.data import load_kinds
from recipes.data.text.tokenizers import Tokenizer
from zoo.registry import ConfigError, decode, names

load_kinds()

TEXTS = [
    "In the beginning God created the heaven and the earth.\nAnd the earth was without form, and void;",
    "the quick brown fox jumps over the lazy dog 1234 times -- don't you think?  Yes!\n",
    "def f(x):\n    return x + 1\n\tpass\n",
    "naïve café Æther ’twas",
] * 5
SPECIAL = ("pad", "bos", "eos", "unk", "cls", "sep", "mask")
LOSSLESS = {
    "bpe": {"vocab_size": 340},
    "wordpiece": {"vocab_size": 260},
    "unigram": {"vocab_size": 200},
    "characters": {},
    "bytes": {},
}


@cache
def made(name: str) -> Tokenizer:
    settings: dict[str, Any] = LOSSLESS.get(name, {})
    return decode("tokenizer", {"name": name, "special": SPECIAL, "sentinels": 3} | settings).train(TEXTS)


HARD = [
    "",
    " ",
    "  two  spaces  ",
    " leading",
    "trailing ",
    "\t\ttabs\t",
    "\n\nnew\r\nlines\n",
    "\0",
    "a\0b",
    "".join(map(chr, range(256))),
    "emoji 👩‍👩‍👧‍👦 🇫🇷 ☃",
    "日本語 العربية ελληνικά",
    "e\u0301 \u200b\u00a0\u2028\u3000",
    "▁ Ġ Ċ ## ##a #a Ā ģ",
    "<pad> [MASK] <mask> [CLS] <s> </s> <unk> <sentinel_0> <extra_id_0> <0x41> <0>",
    "\ue000 \U000f0000a \U000f0001 \U000ffffd \U0010ffff \ufffd \ufeff",
    "x" * 300,
    "The Earth 12345678901234567890 !!!???... dON'T",
]


def test_every_tokenizer_is_tried() -> None:
    assert set(names("tokenizer")) == {*LOSSLESS, "words"}


@pytest.mark.parametrize("name", LOSSLESS)
@pytest.mark.parametrize("text", HARD, ids=range(len(HARD)))
def test_round_trip_of_hard_strings(name: str, text: str) -> None:
    tokenizer = made(name)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert sum(tokenizer.bytes_of(ids)) == len(text.encode())
    assert sum(tokenizer.characters_of(ids)) == len(text)
    assert not tokenizer.is_special[ids].any()
    assert all(0 <= i < tokenizer.vocab_size for i in ids)


# Characters that tokenizers give a meaning of their own are drawn often.
STRINGS = st.text(st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from("the ▁Ġ#<>[]\n\t \U000f0000é")))


@pytest.mark.parametrize("name", LOSSLESS)
@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data())
def test_round_trip_of_random_strings(name: str, data: st.DataObject) -> None:
    texts = data.draw(st.lists(STRINGS, max_size=3))
    tokenizer = made(name)
    single = [tokenizer.encode(text) for text in texts]
    assert tokenizer.encode_batch(texts) == single
    assert [tokenizer.decode(ids) for ids in single] == texts
    assert [row.tolist() for row in map(tokenizer.sequences(texts).__getitem__, range(len(texts)))] == single


@pytest.mark.parametrize("name", LOSSLESS)
@pytest.mark.parametrize("text", ["naïve 日本 👩‍👧", "été\0☃", "plain words here"])
def test_truncation_splits_no_character(name: str, text: str) -> None:
    tokenizer = made(name)
    ids = tokenizer.encode(text)
    for length in range(len(ids) + 2):
        kept = tokenizer.truncate(ids, length)
        assert len(kept) <= length
        assert kept == ids[: len(kept)]
        assert text.startswith(tokenizer.decode(kept))
        longer = [tokenizer.decode(ids[:end]) for end in range(len(kept) + 1, min(length, len(ids)) + 1)]
        assert not any(text.startswith(part) for part in longer)  # no longer start would do
    assert tokenizer.truncate(ids, len(ids)) == ids


@pytest.mark.parametrize("name", LOSSLESS)
def test_a_lone_surrogate_is_refused(name: str) -> None:
    with pytest.raises(UnicodeEncodeError):
        made(name).encode("a\ud800b")
    with pytest.raises(UnicodeEncodeError):
        decode("tokenizer", {"name": name} | LOSSLESS[name]).train(["a\ud800b"])


def test_roles_come_first_and_are_added_only_when_asked_for() -> None:
    tokenizer = made("bpe")
    assert [getattr(tokenizer, f"{role}_id") for role in SPECIAL] == list(range(7))
    assert tokenizer.sentinel_ids == (7, 8, 9)
    assert tokenizer.is_special.tolist() == [True] * 10 + [False] * (tokenizer.vocab_size - 10)
    plain = tokenizer.encode("the earth")
    assert tokenizer.encode("the earth", special=True) == [tokenizer.cls_id, *plain, tokenizer.sep_id]
    assert tokenizer.decode([2, *plain, 7]) == "the earth"
    assert tokenizer.decode([2, *plain, 7], skip_special=False) == "<eos>the earth<sentinel_0>"
    bare = decode("tokenizer", {"name": "bytes", "special": ["eos"]}).train([])
    assert (bare.pad_id, bare.bos_id, bare.eos_id, bare.mask_id, bare.sentinel_ids) == (None, None, 0, None, ())
    assert bare.encode("a", special=True) == [98, 0]


@pytest.mark.parametrize("name", LOSSLESS)
def test_names_of_specials_in_the_training_text_are_text(name: str) -> None:
    texts = ["<pad> [MASK] <mask> <sentinel_0> [CLS]"] * 200
    config: dict[str, Any] = {"name": name, "special": SPECIAL, "sentinels": 2} | LOSSLESS[name]
    tokenizer = decode("tokenizer", config).train(texts)
    ids = tokenizer.encode(texts[0])
    assert not tokenizer.is_special[ids].any()
    assert tokenizer.decode(ids) == texts[0]


@pytest.mark.parametrize("name", LOSSLESS)
def test_random_ids_are_text_without_spelling_tokens(name: str) -> None:
    tokenizer = made(name)
    assert tokenizer.random_ids.dtype == torch.int64
    assert not tokenizer.is_special[tokenizer.random_ids].any()
    assert all(tokenizer.decode([int(i)]) != "" for i in tokenizer.random_ids)
    spelled = tokenizer.vocab_size - tokenizer.first - len(tokenizer.random_ids)
    assert spelled == (16 if name in ("wordpiece", "unigram", "characters") else 0)


@pytest.mark.parametrize("name", [*LOSSLESS, "words"])
def test_saved_and_loaded_it_is_the_same(name: str, tmp_path: Path) -> None:
    tokenizer = made(name)
    tokenizer.save(tmp_path / "here")
    loaded = Tokenizer.load(tmp_path / "here")
    assert loaded.vocab_size == tokenizer.vocab_size
    assert (loaded.special, loaded.sentinel_ids) == (tokenizer.special, tokenizer.sentinel_ids)
    for text in [*HARD[:-6], *TEXTS[:4]] if name != "words" else TEXTS[:4]:
        assert loaded.encode(text) == tokenizer.encode(text)
        assert loaded.decode(loaded.encode(text)) == tokenizer.decode(tokenizer.encode(text))


@pytest.mark.parametrize("name", LOSSLESS)
def test_training_ends_in_the_vocabulary_asked_for_and_survives_little_text(name: str) -> None:
    asked = LOSSLESS[name].get("vocab_size")
    assert asked is None or made(name).vocab_size <= asked
    for texts in ([], [""], ["a"], ["ab " * 3]):
        tokenizer = decode("tokenizer", {"name": name} | LOSSLESS[name]).train(texts)
        assert tokenizer.decode(tokenizer.encode("a b\nü ☃")) == "a b\nü ☃"


def test_training_gives_the_same_in_every_process(root: Path) -> None:
    code = (
        "import json\nfrom recipes.data import load_kinds\nload_kinds()\nfrom zoo.registry import decode\n"
        "texts = ['alpha beta gamma delta, epsilon zeta eta theta; iota kappa lambda mu nu xi omicron'] * 9\n"
        "texts += [' '.join(f'{chr(97 + i % 26)}{chr(97 + i * 7 % 26)}{i % 10}' for i in range(200))]\n"
        "configs = [{'name': name, 'vocab_size': 420} for name in ('bpe', 'wordpiece', 'unigram')]\n"
        "made = [decode('tokenizer', config).train(texts) for config in configs]\n"
        "print(json.dumps([[t.name(i) for i in range(t.vocab_size)] for t in made]))\n"
    )
    options: dict[str, Any] = {"capture_output": True, "text": True, "check": True, "cwd": root}
    options["env"] = os.environ | {"PYTHONHASHSEED": "random"}
    runs = [subprocess.run([sys.executable, "-c", code], **options) for _ in range(2)]
    first, second = (json.loads(run.stdout) for run in runs)
    assert first == second


def test_wordpiece_takes_the_longest_piece() -> None:
    tokenizer = made("wordpiece")
    pieces = {tokenizer.name(i) for i in tokenizer.random_ids.tolist()}
    assert " the" in pieces
    parts = [tokenizer.name(i) for i in tokenizer.encode(" the earth")]
    assert parts[0] == " the"
    assert "".join(parts) == " the earth"


def test_word_starts() -> None:
    for name in LOSSLESS:
        tokenizer = made(name)
        ids = [tokenizer.cls_id, *tokenizer.encode("the earth, naïve 12 "), tokenizer.sep_id]
        starts = tokenizer.word_starts(ids)
        words: list[list[int]] = []
        for i, begins in zip(ids, starts, strict=True):
            if begins:
                words.append([])
            words[-1].append(i)
        texts = [tokenizer.decode(word) for word in words]
        assert texts[0] == texts[-1] == ""  # the special tokens
        for text in ("the", "earth", "naïve", "12"):
            # White space may be a token of its own where tokens are single characters.
            assert any(part.strip() == text for part in texts), (name, texts)


def test_words_keep_symbols_and_say_which_are_unknown() -> None:
    phonemes = ["HH AH L OW", "W ER L D"]
    tokenizer = decode("tokenizer", "words").train(phonemes)
    assert tokenizer.vocab_size == 3 + 7
    for text in ["HH AH L OW", "L", "", "W W W"]:
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.word_starts(tokenizer.encode("L OW")) == [True, True]
    with pytest.raises(ValueError, match=r"'ZH' is not one of the 7 symbols, and the tokenizer has no 'unk'"):
        tokenizer.encode("L ZH")
    unknown = decode("tokenizer", {"name": "words", "special": ["unk"], "limit": 2}).train(phonemes)
    assert unknown.vocab_size == 3
    assert unknown.encode("ZH L") == [0, unknown.encode("L")[0]]


def test_decode_of_what_no_text_gives() -> None:
    tokenizer = made("characters")
    half, letter = tokenizer.first + 14, tokenizer.encode("a")[0]
    assert tokenizer.decode([half, letter]) == "\ufffda"
    assert tokenizer.decode([letter, half]) == "a\ufffd"
    assert made("bytes").decode([made("bytes").first + 0xE9]) == "\ufffd"
    with pytest.raises(ValueError, match=f"id should be below the vocabulary of {tokenizer.vocab_size}, got 9999"):
        tokenizer.decode([9999])
    assert tokenizer.word_starts([]) == []
    assert made("bpe").starts_words(np.zeros(0, dtype=np.int64)).tolist() == []


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"name": "bpe", "special": ["pda"]},
            r"special: 'pda' is not a special token, did you mean 'pad'\?; choices: ",
        ),
        ({"name": "bpe", "special": ["pad", "pad"]}, r"special: should name each special token once"),
        ({"name": "bpe", "vocab_size": 100}, r"vocab_size: should be at least 259, .*, got 100"),
        ({"name": "unigram", "vocab_size": 20}, r"vocab_size: should be at least \d+"),
        ({"name": "wordpiece", "vocab_size": 60}, r"vocab_size: should be at least \d+"),
        ({"name": "bytez"}, r"unknown tokenizer 'bytez', did you mean 'bytes'"),
    ],
)
def test_wrong_settings_end_in_one_line(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        decode("tokenizer", config).train(TEXTS)
    assert "\n" not in str(caught.value)


def test_missing_and_damaged_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds no tokenizer: .*tokenizer_roles\.json is missing"):
        Tokenizer.load(tmp_path)
    made("bpe").save(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ConfigError, match="cannot read the tokenizer"):
        Tokenizer.load(tmp_path)
