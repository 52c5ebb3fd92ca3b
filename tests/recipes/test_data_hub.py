"""Image sets of the Hub, from local files with the schemas of the real ones; and what happens without a network."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any

import datasets
import datasets.config
import numpy as np
import pytest
import torch
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value
from huggingface_hub import constants
from PIL import Image

from recipes.data.hub_images import HubImages
from recipes.data.images import TensorImages
from recipes.data.loader import EpochLoader
from zoo.registry import ConfigError


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))


def picture(label: int, number: int, size: tuple[int, int], mode: str) -> Image.Image:
    """A noise image whose brightness tells its class."""
    draw = np.random.default_rng(1000 * label + number)
    shape = (*size, 3) if mode == "RGB" else size
    return Image.fromarray((draw.integers(0, 60, shape) + 19 * label).astype(np.uint8))


def table(rows: int, image: str, label: str, size: tuple[int, int], mode: str, names: list[str] | None, offset: int):
    labels = [row % (len(names) if names else 10) for row in range(rows)]
    columns = {image: [picture(y, offset + row, size, mode) for row, y in enumerate(labels)], label: labels}
    kind = ClassLabel(names=names) if names else Value("int64")
    return Dataset.from_dict(columns, features=Features({image: datasets.Image(), label: kind}))


CIFAR = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def write(folder: Path, splits: dict[str, int], **schema: Any) -> Path:
    """Parquet files named as the Hub names them."""
    folder.mkdir(exist_ok=True)
    for place, (split, rows) in enumerate(splits.items()):
        table(rows, offset=100 * place, **schema).to_parquet(folder / f"{split}-00000-of-00001.parquet")
    return folder


def cifar10(folder: Path) -> Path:
    return write(folder, {"train": 60, "test": 20}, image="img", label="label", size=(32, 32), mode="RGB", names=CIFAR)


def mnist(folder: Path) -> Path:
    names = list("0123456789")
    return write(folder, {"train": 60, "test": 20}, image="image", label="label", size=(28, 28), mode="L", names=names)


def ids_of(*parts: Any) -> list[int]:
    return [row for part in parts for row in part.ids]


def test_cifar10_schema(tmp_path: Path) -> None:
    data = HubImages(path=str(cifar10(tmp_path / "a")), columns={"image": "img"}).load()
    assert data.classes == tuple(CIFAR)
    assert (len(data.train), len(data.val), len(data.test)) == (54, 6, 20)
    assert sorted(ids_of(data.train, data.val)) == list(range(60))
    batch = data.test.batch([0, 3, 19], None)
    assert batch["image"].shape == (3, 3, 32, 32)
    assert batch["image"].dtype == torch.float32
    assert batch["label"].tolist() == [0, 3, 9]
    expected = np.stack([np.asarray(picture(row % 10, 100 + row, (32, 32), "RGB")) for row in (0, 3, 19)]) / 255
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (data.preprocess.mean, data.preprocess.std))
    pixels = batch["image"] * std + mean
    torch.testing.assert_close(pixels, torch.from_numpy(expected).permute(0, 3, 1, 2).float(), rtol=0, atol=1e-6)
    train = data.train.batch(range(54), None)["image"].double()
    torch.testing.assert_close(train.mean((0, 2, 3)), torch.zeros(3, dtype=torch.float64), rtol=0, atol=1e-4)
    torch.testing.assert_close(
        train.std((0, 2, 3), correction=0), torch.ones(3, dtype=torch.float64), rtol=0, atol=1e-4
    )


def test_mnist_schema_is_grey(tmp_path: Path) -> None:
    data = HubImages(path=str(mnist(tmp_path / "a"))).load()
    assert data.preprocess.channels == 1
    assert data.preprocess.image_size == (28, 28)
    assert data.train.batch([0], None)["image"].shape == (1, 1, 28, 28)
    colour = HubImages(path=str(tmp_path / "a"), channels=3, image_size=(14, 20)).load()
    assert colour.train.batch([0], None)["image"].shape == (1, 3, 14, 20)


def imagenet(folder: Path) -> Path:
    """Photos of many sizes and modes in train and validation; a test split without labels."""
    names = ["tench, Tinca tinca", "goldfish", "great white shark"]
    folder.mkdir()
    for split, rows in {"train": 30, "validation": 9, "test": 5}.items():
        labels = [row % 3 if split != "test" else -1 for row in range(rows)]
        sizes = [(90 + 7 * row, 150 - 3 * row) for row in range(rows)]
        modes = ["L" if row % 4 == 1 else "RGB" for row in range(rows)]
        images = [picture(4, row, size, mode) for row, (size, mode) in enumerate(zip(sizes, modes, strict=True))]
        features = Features({"image": datasets.Image(), "label": ClassLabel(names=names)})
        made = Dataset.from_dict({"image": images, "label": labels}, features=features)
        made.to_parquet(folder / f"{split}-00000-of-00001.parquet")
    return folder


def test_imagenet_schema_is_decoded_image_by_image(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "path": str(imagenet(tmp_path / "a")),
        "splits": {"test": "validation"},
        "image_size": [32, 32],
        "channels": 3,
        "augment": {"crop": 0.3, "randaugment": "rand-m9-mstd0.5-inc1", "flip": 0.5, "mixup": 0.2},
    }
    data = HubImages(**settings).load()
    assert not isinstance(data.train, TensorImages)
    assert (len(data.train), len(data.val), len(data.test)) == (27, 3, 9)
    stream = list(EpochLoader(data.train, 6, shuffle=True, seed=1))
    again = EpochLoader(HubImages(**settings).load().train, 6, shuffle=True, seed=1, workers=2)
    for batch, same in zip(stream, again, strict=True):
        assert batch["image"].shape[1:] == (3, 32, 32)
        assert torch.equal(batch["image"], same["image"])
        assert torch.equal(batch["soft_label"], same["soft_label"])
    one = data.train.pixels(torch.tensor([5]), (1, 0))
    assert torch.equal(one, data.train.pixels(torch.tensor([2, 5, 9]), (1, 0))[1:2])
    assert not torch.equal(one, data.train.pixels(torch.tensor([5]), (1, 1)))
    evaluation = data.train.batch([5], None)["image"]
    assert torch.equal(evaluation, data.train.batch([4, 5], None)["image"][1:])


def test_memory_and_image_by_image_give_the_same_batches(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"path": str(mnist(tmp_path / "a")), "augment": {"shift": 2, "rotation": 10}}
    kept, decoded = (HubImages(in_memory=choice, **settings).load() for choice in (True, False))
    assert isinstance(kept.train, TensorImages)
    assert not isinstance(decoded.train, TensorImages)
    assert kept.preprocess == decoded.preprocess
    for key in (None, (0, 3)):
        assert torch.equal(kept.train.batch([1, 4, 7], key)["image"], decoded.train.batch([1, 4, 7], key)["image"])


def test_unlabelled_split_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^data\.splits: 5 of 5 rows of .*, split test have no known label"):
        HubImages(path=str(imagenet(tmp_path / "a")), image_size=(32, 32)).load()


def test_large_images_need_a_size(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^data\.image_size: is required .* first image is \d+ x \d+"):
        HubImages(path=str(imagenet(tmp_path / "a")), splits={"test": "validation"}).load()


def test_dotted_split_names(tmp_path: Path) -> None:
    names = ["a", "b"]
    splits = {"train.clean.100": 20, "validation.other": 8, "test.clean": 6}
    path = write(tmp_path / "a", splits, image="image", label="label", size=(8, 8), mode="L", names=names)
    chosen = {"train": "train.clean.100", "val": "validation.other", "test": "test.clean"}
    data = HubImages(path=str(path), splits=chosen).load()
    assert (len(data.train), len(data.val), len(data.test)) == (20, 8, 6)


def test_files_of_several_configs_need_one_named(tmp_path: Path) -> None:
    names = ["a", "b"]
    for rows, config in ((20, "small"), (40, "large")):
        for split in ("train", "test"):
            made = table(rows, "image", "label", (8, 8), "L", names, 0)
            (tmp_path / config / split).mkdir(parents=True)
            for shard in range(2):  # as in the Hub's parquet conversion
                made.shard(2, shard).to_parquet(tmp_path / config / split / f"000{shard}.parquet")
    assert len(HubImages(path=str(tmp_path), config="large").load().test) == 40
    with pytest.raises(
        ConfigError, match=r"^data\.config: should name one of the folders of .*: large, small; got None"
    ):
        HubImages(path=str(tmp_path)).load()


def test_set_without_a_test_split(tmp_path: Path) -> None:
    path = write(tmp_path / "a", {"train": 60}, image="image", label="y", size=(8, 8), mode="L", names=None)
    with pytest.raises(ConfigError, match=r"^data\.splits\.test: 'test' is not a split of .*; choices: train \(null"):
        HubImages(path=str(path), columns={"label": "y"}).load()
    data = HubImages(path=str(path), columns={"label": "y"}, splits={"test": None}).load()
    assert (len(data.train), len(data.val), len(data.test)) == (49, 5, 6)
    assert sorted(ids_of(data.train, data.val, data.test)) == list(range(60))
    assert data.classes == tuple("0123456789")
    assert HubImages(path=str(path), columns={"label": "y"}, splits={"test": None}).load(9).test.ids == data.test.ids


def test_file_pattern_saved_set_and_image_folder(tmp_path: Path) -> None:
    folder = mnist(tmp_path / "a")
    one = HubImages(path=str(folder / "train-00000-of-00001.parquet"), splits={"test": None}).load()
    many = HubImages(path=str(folder / "*.parquet"), splits={"test": None}).load()
    assert (len(one.train) + len(one.val) + len(one.test), len(many.train) + len(many.val) + len(many.test)) == (60, 80)

    names = list("0123456789")
    splits = {name: table(20, "image", "label", (28, 28), "L", names, 0) for name in ("train", "test")}
    DatasetDict(splits).save_to_disk(tmp_path / "saved")  # pyright: ignore[reportArgumentType, reportCallIssue]
    assert len(HubImages(path=str(tmp_path / "saved")).load().test) == 20

    for split in ("train", "test"):
        for label in range(2):
            (tmp_path / "pictures" / split / f"class{label}").mkdir(parents=True)
            for row in range(6):
                picture(label, row, (8, 8), "L").save(tmp_path / f"pictures/{split}/class{label}/{row}.png")
    data = HubImages(path=str(tmp_path / "pictures")).load()
    assert data.classes == ("class0", "class1")
    assert len(data.test) == 12


def test_string_labels_and_labels_from_one(tmp_path: Path) -> None:
    images = [picture(row % 3, row, (8, 8), "L") for row in range(30)]
    for values, classes in ((["cat", "ant", "bee"], ("ant", "bee", "cat")), ([1, 2, 3], ("1", "2", "3"))):
        columns = {"image": images, "label": [values[row % 3] for row in range(30)]}
        made = Dataset.from_dict(columns).cast_column("image", datasets.Image())
        made.to_parquet(tmp_path / "train.parquet")
        data = HubImages(path=str(tmp_path / "train.parquet"), splits={"test": None}).load()
        assert data.classes == classes
        assert [data.classes[i] for i in data.train.labels] == [str(values[row % 3]) for row in data.train.ids]


def test_broken_image_is_named_by_its_row(tmp_path: Path) -> None:
    encoded = []
    for row in range(12):
        picture(0, row, (8, 8), "L").save(tmp_path / "one.png")
        encoded.append({"bytes": (tmp_path / "one.png").read_bytes() if row != 7 else b"no image", "path": None})
    made = Dataset.from_dict({"image": encoded, "label": [row % 2 for row in range(12)]})
    made.cast_column("image", datasets.Image(decode=False)).to_parquet(tmp_path / "train.parquet")
    with pytest.raises(ConfigError, match=r"train\.parquet, split train, row 7: is not an image that can be read$"):
        HubImages(path=str(tmp_path / "train.parquet"), splits={"test": None}).load()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"columns": {"image": "image"}}, r"data\.columns\.image: 'image' is not a column of .*; choices: img, label"),
        ({"columns": {"image": "img", "label": "lable"}}, r"data\.columns\.label: .*did you mean 'label'"),
        ({"columns": {"image": "label"}}, r"data\.columns\.image: column 'label' holds no images"),
        ({"splits": {"train": "trian"}}, r"data\.splits\.train: 'trian' is not .*did you mean 'train'\?; choices: "),
        ({"splits": {"val": "test"}}, r"data\.splits: should be three different splits, got train, test, test"),
        ({"mean": [0.5]}, r"data\.mean: should have 3 values"),
        ({"path": "missing"}, r"data\.path: no such file or folder 'missing'"),
        ({"path": None}, r"data\.id: needs the id of a set on the Hub, or data\.path"),
    ],
)
def test_wrong_settings_end_in_one_line(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"path": str(cifar10(tmp_path / "a")), "columns": {"image": "img"}}
    with pytest.raises(ConfigError, match=f"^{message}") as caught:
        HubImages(**(settings | change)).load()
    assert "\n" not in str(caught.value)


def test_unreadable_copy_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"no parquet")
    with pytest.raises(ConfigError, match=r"^data\.path: cannot read '.*a\.parquet'") as caught:
        HubImages(path=str(tmp_path / "a.parquet")).load()
    assert "\n" not in str(caught.value)


def test_offline_mode_says_what_to_do() -> None:
    assert constants.HF_HUB_OFFLINE  # set for all tests
    with pytest.raises(ConfigError, match=r"^data\.id: 'ylecun/mnist' is not in the local cache .*offline mode is on"):
        HubImages(id="ylecun/mnist").load()


def test_unreachable_hub_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)

    def refuse(*_: Any) -> socket.socket:
        raise OSError("no route")

    def never(seconds: float) -> None:
        raise AssertionError("waited before a retry")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(time, "sleep", never)
    with pytest.raises(ConfigError) as caught:
        HubImages(id="ylecun/mnist").load()
    message = str(caught.value)
    assert message.startswith("data.id: 'ylecun/mnist' is not in the local cache")
    assert "the Hub cannot be reached: run once with a connection, or give a local copy with data.path" in message
    assert "\n" not in message
    assert constants.HF_HUB_OFFLINE is False
    assert datasets.config.HF_HUB_OFFLINE is False
