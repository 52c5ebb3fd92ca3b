"""Text sets of the Hub, from local files with the schemas of the real ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import datasets.config
import pytest
import yaml
from datasets import ClassLabel, Dataset, Features, Translation, Value

from recipes.data import load_kinds
from zoo.registry import ConfigError, decode

load_kinds()


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))


def configured(root: Path, name: str, **changes: Any) -> Any:
    """The config of configs/data/NAME.yaml, with changes."""
    return decode("data", yaml.safe_load((root / f"configs/data/{name}.yaml").read_text()) | changes)


def write(folder: Path, features: Features | None = None, **splits: dict[str, list[Any]]) -> str:
    """Parquet files named as the Hub names them."""
    folder.mkdir()
    for split, columns in splits.items():
        Dataset.from_dict(columns, features=features).to_parquet(folder / f"{split}-00000-of-00001.parquet")
    return str(folder)


def test_every_config_of_text_is_sound(root: Path) -> None:
    names = ["kjv", "cmudict", "cmudict_words", "stdlib_code", "wikitext", "tinystories", "sst2", "imdb", "wmt14"]
    for name in [*names, "xsum", "text_files"]:
        text = (root / f"configs/data/{name}.yaml").read_text()
        assert text.startswith("# ")  # what --help prints
        configured(root, name)


def test_wikitext_lines_become_articles(tmp_path: Path, root: Path) -> None:
    lines = ["", " = One = \n", "", " First . \n", " = = Part = = \n", " More . \n", "", " = Two = \n", " Last . \n"]
    path = write(tmp_path / "a", train={"text": lines}, validation={"text": lines[1:4]}, test={"text": lines[7:]})
    data = configured(root, "wikitext", path=path).load()
    assert data.train == (" = One = \n First . \n = = Part = = \n More . \n", " = Two = \n Last . \n")
    assert data.val == (" = One = \n First . \n",)
    assert data.test == (" = Two = \n Last . \n",)


def test_tinystories_hold_validation_out_of_training(tmp_path: Path, root: Path) -> None:
    stories = [f"Once there was {number}." for number in range(400)]
    path = write(tmp_path / "a", train={"text": stories}, validation={"text": ["The end."]})
    data = configured(root, "tinystories", path=path, held_out=0.1).load()
    assert data.test == ("The end.",)
    assert sorted((*data.train, *data.val)) == sorted(stories)
    assert 20 <= len(data.val) <= 60
    again = configured(root, "tinystories", path=path, held_out=0.1, limit=50).load(seed=3)
    assert (again.val, again.train) == (data.val, data.train[:50])
    more = write(tmp_path / "b", train={"text": ["New one."] * 3 + stories}, validation={"text": ["The end."]})
    assert set(configured(root, "tinystories", path=more, held_out=0.1).load().val) - {"New one."} == set(data.val)


@pytest.mark.parametrize("kind", ["jsonl", "csv", "tsv", "parquet"])
def test_tables_of_any_kind_and_column(kind: str, tmp_path: Path) -> None:
    texts = [f'line "{number}", ü' for number in range(60)]
    path = tmp_path / f"mine.{kind}"
    table = Dataset.from_dict({"body": texts, "other": list(range(60))})
    if kind == "jsonl":
        path.write_text("".join(json.dumps({"body": text, "other": 1}) + "\n" for text in texts))
    elif kind == "parquet":
        table.to_parquet(path)
    else:
        table.to_csv(path, sep="\t" if kind == "tsv" else ",")
    config = {"name": "hub_text", "path": str(path), "columns": {"text": "body"}, "splits": {"val": None, "test": None}}
    data = decode("data", config | {"held_out": 0.15}).load()
    assert sorted((*data.train, *data.val, *data.test)) == sorted(texts)
    assert not set(data.train) & set(data.test)


def test_plain_text_files(tmp_path: Path, root: Path) -> None:
    book = "\n\n".join(f"Paragraph {number},\nof two lines." for number in range(80))
    (tmp_path / "book.txt").write_text(book, encoding="utf-8")
    data = configured(root, "text_files", path=str(tmp_path / "book.txt")).load()
    assert sorted((*data.train, *data.val, *data.test)) == sorted(book.split("\n\n"))
    assert data.val and data.test
    lines = configured(root, "text_files", path=str(tmp_path / "*.txt"), unit="line").load()
    assert len(lines.train) + len(lines.val) + len(lines.test) >= 81
    for split in ("train", "val"):
        (tmp_path / "corpus" / split).mkdir(parents=True)
        (tmp_path / "corpus" / split / "a.md").write_text(f"whole {split}\n\nfile\n")
    (tmp_path / "corpus" / "test.txt").write_text("tested\n")
    splits = {"train": "train", "val": "val", "test": "test"}
    named = decode("data", {"name": "hub_text", "path": str(tmp_path / "corpus"), "splits": splits}).load()
    assert (named.train, named.val, named.test) == (("whole train\n\nfile\n",), ("whole val\n\nfile\n",), ("tested\n",))


def test_wmt14_translations(tmp_path: Path, root: Path) -> None:
    rows = [{"de": f"Satz {number}", "en": f"sentence {number}"} for number in range(6)]
    features = Features({"translation": Translation(languages=["de", "en"])})
    parts = {split: {"translation": rows[:size]} for split, size in (("train", 6), ("validation", 2), ("test", 3))}
    data = configured(root, "wmt14", path=write(tmp_path / "a", features, **parts)).load()
    assert [len(split) for split in (data.train, data.val, data.test)] == [6, 2, 3]
    assert (data.train[4].source, data.train[4].target) == ("Satz 4", "sentence 4")
    assert data.train[4].references == ("sentence 4",)


def test_xsum_and_held_out_pairs(tmp_path: Path, root: Path) -> None:
    rows = {"document": [f"Long {n}" for n in range(200)], "summary": ["Short", ""] * 100, "id": list("ab") * 100}
    path = write(tmp_path / "a", train=rows, validation=rows, test=rows)
    assert len(configured(root, "xsum", path=path).load().train) == 100  # pairs with an empty side are left out
    data = configured(root, "xsum", path=path, splits={"val": None, "test": None}).load()
    sources = [{pair.source for pair in split} for split in (data.train, data.val, data.test)]
    assert sum(map(len, sources)) == 100 and len(set().union(*sources)) == 100
    assert all(sources)


def test_sst2_labels_and_their_cap(tmp_path: Path, root: Path) -> None:
    features = Features(
        {"sentence": Value("string"), "label": ClassLabel(names=["negative", "positive"]), "idx": Value("int32")}
    )

    def rows(count: int, label: int | None = None) -> dict[str, list[Any]]:
        labels = [number % 2 if label is None else label for number in range(count)]
        return {"sentence": [f"film {n}" for n in range(count)], "label": labels, "idx": list(range(count))}

    path = write(tmp_path / "a", features, train=rows(300), validation=rows(20), test=rows(5, -1))
    data = configured(root, "sst2", path=path, labels=40).load()
    assert data.classes == ("negative", "positive")
    assert (len(data.labelled_train), len(data.labelled_test)) == (40, 20)
    assert len(data.train) + len(data.val) == 300 and len(data.labelled_val) == len(data.val) > 0
    assert all(label == int(text.split()[1]) % 2 for text, label in data.labelled_train)
    assert {text for text, _ in data.labelled_train} <= set(data.train)
    larger = configured(root, "sst2", path=path, labels=80).load()
    assert larger.labelled_train[:40] == data.labelled_train
    with pytest.raises(ConfigError, match=r"^data\.splits: 5 of 5 rows of .*split test have no known label"):
        configured(root, "sst2", path=path, splits={"val": None, "test": "test"}).load()


def test_string_labels_are_classes(tmp_path: Path, root: Path) -> None:
    rows = {"text": [f"news {n}" for n in range(90)], "label": ["sport", "world", "business"] * 30}
    data = configured(root, "imdb", path=write(tmp_path / "a", train=rows, test=rows)).load()
    assert data.classes == ("business", "sport", "world")
    assert dict(data.labelled_test)["news 0"] == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"columns": {"text": "txt"}}, r"data\.columns\.text: 'txt' is not a column of .*, did you mean 'text'\?"),
        ({"columns": {"text": "number"}}, r"data\.columns\.text: column 'number' of .* should hold text, got int"),
        ({"columns": {"text": "text.en"}}, r"data\.columns\.text: 'text\.en' is not a column of .*; choices: "),
        ({"splits": {"val": "vaildation"}}, r"data\.splits\.val: 'vaildation' is not a split of .*\(null: hold it out"),
        ({"splits": {"val": "train"}}, r"data\.splits: should be three different splits"),
        ({"path": "missing"}, r"data\.path: no such file or folder 'missing'"),
        ({"path": "missing.txt"}, r"data\.path: no such file or folder 'missing\.txt'"),
        ({"path": None}, r"data\.id: needs the id of a set on the Hub, or data\.path"),
        ({"path": None, "id": "nobody/nothing"}, r"data\.id: 'nobody/nothing' is not in the local cache .*data=kjv"),
        ({"held_out": 1e-9}, r"data: .* leaves nothing for the val split"),
    ],
)
def test_wrong_settings_end_in_one_line(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    rows = {"text": [f"t {n}" for n in range(30)], "number": list(range(30))}
    path = write(tmp_path / "a", train=rows, test=rows)
    config = {"name": "hub_text", "path": path, "splits": {"val": None}} | change
    with pytest.raises(ConfigError, match=f"^{message}") as caught:
        decode("data", config).load()
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read_are_named(tmp_path: Path, root: Path) -> None:
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    with pytest.raises(ConfigError, match=r"^data\.path: .*latin\.txt is not UTF-8 \(byte 3\)"):
        configured(root, "text_files", path=str(tmp_path)).load()
    (tmp_path / "b").mkdir()
    for name in ("train.jsonl", "test.csv"):
        (tmp_path / "b" / name).write_text("x")
    with pytest.raises(ConfigError, match=r"^data\.path: should hold files of one kind, found \.csv, \.jsonl"):
        configured(root, "tinystories", path=str(tmp_path / "b")).load()
    few = {"text": ["one", "two"]}
    with pytest.raises(ConfigError, match=r"leaves nothing for the .* split"):
        configured(root, "tinystories", path=write(tmp_path / "c", train=few, validation=few)).load()
