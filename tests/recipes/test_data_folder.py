"""Folders of a user's own pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from recipes.data.image_folder import ImageFolder
from recipes.data.loader import EpochLoader
from zoo.registry import ConfigError


def fill(folder: Path, counts: dict[str, int], suffix: str = "png", size: tuple[int, int] = (10, 8)) -> None:
    """`counts` images of each class, of one brightness a class."""
    for place, (name, count) in enumerate(counts.items()):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            draw = np.random.default_rng(number)
            pixels = draw.integers(0, 50, (*size, 3)) + 60 * place
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{number}.{suffix}")


def ids(*parts: Any) -> list[str]:
    return [name for part in parts for name in part.ids]


def test_class_folders_are_split_by_path_and_stay_so(tmp_path: Path) -> None:
    fill(tmp_path / "a", {"cat": 100, "dog": 60})
    data = ImageFolder(path=str(tmp_path / "a")).load()
    assert data.classes == ("cat", "dog")
    everything = sorted(
        f"{name}/{number}.png" for name, count in (("cat", 100), ("dog", 60)) for number in range(count)
    )
    assert sorted(ids(data.train, data.val, data.test)) == everything
    assert 16 <= len(data.test) <= 48  # 32 on average, 3 standard errors
    assert [data.classes[i] for i in data.test.labels] == [name.split("/")[0] for name in data.test.ids]
    batch = data.train.batch([0, 1], None)
    assert batch["image"].shape == (2, 3, 10, 8)

    fill(tmp_path / "a", {"cat": 130})  # more images: none changes sides
    fill(tmp_path / "b", {"cat": 100, "dog": 60})  # elsewhere: the same
    later = ImageFolder(path=str(tmp_path / "a")).load(5)
    assert set(data.test.ids) <= set(later.test.ids)
    assert not set(data.test.ids) & set(ids(later.train, later.val))
    assert ImageFolder(path=str(tmp_path / "b")).load().test.ids == data.test.ids


def test_split_folders(tmp_path: Path) -> None:
    fill(tmp_path / "train", {"a": 10, "b": 10, "c": 10})
    fill(tmp_path / "test", {"a": 3, "c": 2}, "jpg")
    data = ImageFolder(path=str(tmp_path)).load()
    assert (len(data.train), len(data.val), len(data.test)) == (27, 3, 5)
    assert all(str(name).startswith("test/") for name in data.test.ids)
    assert data.test.labels.tolist() == [0, 0, 0, 2, 2]
    fill(tmp_path / "validation", {"a": 4, "b": 4})
    data = ImageFolder(path=str(tmp_path)).load()
    assert (len(data.train), len(data.val), len(data.test)) == (30, 8, 5)


def test_val_alone_is_the_test_split(tmp_path: Path) -> None:
    fill(tmp_path / "train", {"a": 20, "b": 20})
    fill(tmp_path / "val", {"a": 3, "b": 2})
    data = ImageFolder(path=str(tmp_path)).load()
    assert all(str(name).startswith("val/") for name in data.test.ids)
    assert (len(data.train), len(data.val)) == (36, 4)


def test_train_alone_gives_a_test_split_too(tmp_path: Path) -> None:
    fill(tmp_path / "train", {"a": 30, "b": 30})
    data = ImageFolder(path=str(tmp_path)).load()
    assert sorted(ids(data.train, data.val, data.test)) == sorted(f"train/{c}/{i}.png" for c in "ab" for i in range(30))
    assert len(data.test) > 0


def test_a_handful_of_images_is_still_split(tmp_path: Path) -> None:
    for count in (1, 2, 3):
        fill(tmp_path / str(count), {"a": count, "b": count})
        data = ImageFolder(path=str(tmp_path / str(count))).load()
        assert len(data.test) >= 1
        assert len(data.train) >= 1


def test_other_files_and_hidden_ones_are_left_out(tmp_path: Path) -> None:
    fill(tmp_path, {"a": 4, "b": 4})
    fill(tmp_path / "a", {"deeper": 2})
    fill(tmp_path, {".cache": 3, "empty": 0})
    (tmp_path / "a" / "notes.txt").write_text("hello")
    (tmp_path / "a" / ".hidden.png").write_text("hello")
    (tmp_path / "loose.png").write_text("hello")
    data = ImageFolder(path=str(tmp_path)).load()
    assert data.classes == ("a", "b")
    assert len(data.train) + len(data.val) + len(data.test) == 10


def test_mixed_sizes_and_modes_decode_alike_in_memory_and_one_by_one(tmp_path: Path) -> None:
    fill(tmp_path, {"a": 6, "b": 6}, size=(20, 30))
    for number, mode in enumerate(("L", "RGBA", "P", "LA")):
        Image.open(tmp_path / "a" / f"{number}.png").convert(mode).resize((17 + number, 40)).save(
            tmp_path / "a" / f"{number}.png"
        )
    settings: dict[str, Any] = {"path": str(tmp_path), "image_size": [16, 16], "channels": 3, "augment": {"flip": 0.5}}
    kept, decoded = (ImageFolder(in_memory=choice, **settings).load() for choice in (True, False))
    first = list(EpochLoader(kept.train, 4, shuffle=True, seed=0))
    for batch, same in zip(first, EpochLoader(decoded.train, 4, shuffle=True, seed=0, workers=2), strict=True):
        assert torch.equal(batch["image"], same["image"])


def test_broken_image_is_named(tmp_path: Path) -> None:
    fill(tmp_path, {"a": 8, "b": 8})
    (tmp_path / "b" / "3.png").write_bytes((tmp_path / "b" / "3.png").read_bytes()[:50])
    with pytest.raises(ConfigError, match=r"b/3\.png: is a broken image"):
        ImageFolder(path=str(tmp_path)).load()
    data = ImageFolder(path=str(tmp_path), in_memory=False, mean=(0.5,) * 3, std=(0.2,) * 3).load()
    hit = next(part for part in (data.train, data.val, data.test) if "b/3.png" in part.ids)
    loader = EpochLoader(hit, 4, shuffle=False, seed=0, workers=1)
    with pytest.raises(ConfigError, match=r"b/3\.png: is a broken image") as caught:
        list(loader)
    assert "\n" not in str(caught.value)


def test_wrong_folders_end_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^data\.path: no such folder 'missing'$"):
        ImageFolder(path="missing").load()
    with pytest.raises(ConfigError, match=r"^data\.path: .* should hold folders of images, one a class"):
        ImageFolder(path=str(tmp_path)).load()
    fill(tmp_path / "train", {"a": 4, "b": 4})
    fill(tmp_path / "test", {"a": 2, "z": 2})
    with pytest.raises(ConfigError, match=r"^data\.path: class 'z' has images outside train/ only; classes: a, b"):
        ImageFolder(path=str(tmp_path)).load()
    with pytest.raises(ConfigError, match=r"^path: is required$"):
        ImageFolder()  # pyright: ignore[reportCallIssue]


def test_settings_that_leave_nothing_to_train_on_are_refused(tmp_path: Path) -> None:
    fill(tmp_path, {"a": 1, "b": 1})
    with pytest.raises(ConfigError, match=r"^data\.validation: 0\.9 of 1 images leaves none to train on"):
        ImageFolder(path=str(tmp_path), validation=0.9).load()
