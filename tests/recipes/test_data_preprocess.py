"""Users' image files: every kind is read, broken ones are named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from recipes.data.digits import Digits
from recipes.data.preprocess import Preprocess, open_image, to_image, to_tensor
from zoo.registry import ConfigError


def preprocess(
    channels: int = 3, size: tuple[int, int] = (8, 12), background: int = 255, fit: str = "crop"
) -> Preprocess:
    """Mean 0 and deviation 1, so that what comes out are pixels in 0..1."""
    values = {"mean": (0.0,) * channels, "std": (1.0,) * channels}
    return Preprocess(image_size=size, channels=channels, background=background, fit=fit, **values)


def ramp(height: int = 8, width: int = 12) -> np.ndarray:
    """(H, W) uint8, every row from 0 to 255."""
    return np.tile(np.linspace(0, 255, width).round().astype(np.uint8), (height, 1))


@pytest.mark.parametrize(
    ("mode", "suffix"),
    [
        ("1", "png"),
        ("L", "png"),
        ("L", "jpg"),
        ("LA", "png"),
        ("P", "png"),
        ("P", "gif"),
        ("RGB", "png"),
        ("RGB", "bmp"),
        ("RGB", "webp"),
        ("RGBA", "png"),
        ("RGBA", "webp"),
        ("CMYK", "jpg"),
        ("CMYK", "tif"),
        ("YCbCr", "jpg"),
        ("LAB", "tif"),
        ("I;16", "png"),
        ("I;16", "tif"),
        ("I", "tif"),
        ("F", "tif"),
    ],
)
@pytest.mark.parametrize("channels", [1, 3])
def test_every_mode_is_read(mode: str, suffix: str, channels: int, tmp_path: Path) -> None:
    grey = Image.fromarray(ramp())
    if mode in ("I;16", "I"):
        image = Image.fromarray(ramp().astype(np.uint16 if mode == "I;16" else np.int32) * 257)
    elif mode == "F":
        image = Image.fromarray(ramp().astype(np.float32) / 255)
    elif mode == "LAB":
        image = Image.merge("LAB", (grey, Image.new("L", grey.size, 128), Image.new("L", grey.size, 128)))
    else:
        image = grey.convert(mode) if mode == "P" else grey.convert("RGB").convert(mode)
    image.save(tmp_path / f"image.{suffix}")
    pixels = preprocess(channels).open(tmp_path / f"image.{suffix}")
    assert pixels.shape == (channels, 8, 12)
    assert pixels.dtype == torch.float32
    if mode == "1":
        assert set(pixels.unique().tolist()) == {0.0, 1.0}
        return
    expected = torch.from_numpy(ramp() / 255).float().expand(channels, -1, -1)
    # lossless kinds to the last bit of 8; LAB's lightness is not linear, and JPEG, WebP and CMYK round
    tolerance = 0.15 if mode == "LAB" else 0.03 if suffix in ("jpg", "webp") or mode == "CMYK" else 1e-6
    torch.testing.assert_close(pixels, expected, rtol=0, atol=tolerance)


def test_colours_and_their_order_are_kept(tmp_path: Path) -> None:
    colours = np.zeros((2, 3, 3), np.uint8)
    colours[0, 0], colours[0, 2], colours[1, 1] = (255, 0, 0), (0, 255, 0), (0, 0, 255)
    Image.fromarray(colours).save(tmp_path / "a.png")
    expected = torch.from_numpy(colours).permute(2, 0, 1)
    assert torch.equal(preprocess(3, (2, 3)).open(tmp_path / "a.png"), expected / 255)
    assert torch.equal(to_tensor(to_image(expected)), expected)


@pytest.mark.parametrize("background", [0, 100, 255])
@pytest.mark.parametrize("kind", ["RGBA", "LA", "palette", "key colour"])
def test_transparency_shows_the_background(kind: str, background: int, tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    if kind in ("RGBA", "LA"):
        alpha = Image.fromarray(np.repeat([[0, 128, 255]], 2, 0).astype(np.uint8))
        image = Image.new("RGB" if kind == "RGBA" else "L", (3, 2), "white")
        image.putalpha(alpha)
        image.save(path)
        shares = [0, 128 / 255, 1]
    else:
        image = Image.fromarray(np.repeat([[0, 1, 2]], 2, 0).astype(np.uint8), mode=None)
        if kind == "palette":
            image.putpalette([9, 9, 9, 255, 255, 255, 255, 255, 255])
            image.save(path, transparency=bytes([0, 128, 255]))
            shares = [0, 128 / 255, 1]
        else:
            image = image.point([7] + [255] * 255)
            image.save(path, transparency=7)
            shares = [0, 1, 1]
    for channels in (1, 3):
        pixels = preprocess(channels, (2, 3), background).open(path)
        expected = torch.tensor([share + (1 - share) * background / 255 for share in shares])
        torch.testing.assert_close(pixels, expected.expand(channels, 2, 3), rtol=0, atol=1.01 / 255)


def test_exif_orientation_is_applied(tmp_path: Path) -> None:
    upright = Image.fromarray(np.kron(np.array([[0, 80], [160, 255]], np.uint8), np.ones((16, 16), np.uint8)))
    expected = preprocess(1, (2, 2))(upright)
    turns = {
        1: None,
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        6: Image.Transpose.ROTATE_90,
        8: Image.Transpose.ROTATE_270,
    }
    for orientation, turn in turns.items():
        stored = upright if turn is None else upright.transpose(turn)
        exif = Image.Exif()
        exif[0x0112] = orientation
        stored.save(tmp_path / "a.jpg", exif=exif, quality=100)
        torch.testing.assert_close(preprocess(1, (2, 2)).open(tmp_path / "a.jpg"), expected, rtol=0, atol=0.03)


def test_first_frame_of_an_animation(tmp_path: Path) -> None:
    frames = [Image.new("L", (12, 8), value) for value in (50, 150, 250)]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    frames[0].save(tmp_path / "a.tif", save_all=True, append_images=frames[1:])
    for name in ("a.gif", "a.tif"):
        assert (preprocess(1).open(tmp_path / name) * 255).round().unique().tolist() == [50]


@pytest.mark.parametrize("size", [(1, 1), (1, 4000), (4000, 1), (2, 2), (3000, 2500), (8, 12)])
@pytest.mark.parametrize("fit", ["crop", "pad", "stretch"])
def test_any_size_becomes_the_models(size: tuple[int, int], fit: str) -> None:
    pixels = preprocess(3, fit=fit)(Image.new("RGB", (size[1], size[0]), (10, 20, 30)))
    assert pixels.shape == (3, 8, 12)
    assert pixels.isfinite().all()
    colours = (pixels * 255).round().flatten(1).T.unique(dim=0).tolist()
    assert colours == ([[10, 20, 30], [255, 255, 255]] if fit == "pad" and size != (8, 12) else [[10, 20, 30]])


def test_fit_decides_what_is_seen_of_another_shape() -> None:
    tall = Image.fromarray(np.repeat(np.array([[255]] * 8 + [[0]] * 16 + [[255]] * 8, np.uint8), 16, 1))  # 32 x 16
    crop = preprocess(1, (8, 8), fit="crop")(tall)
    pad = preprocess(1, (8, 8), background=100, fit="pad")(tall)
    stretch = preprocess(1, (8, 8), fit="stretch")(tall)
    assert crop.max() < 0.2  # the dark middle only
    assert (pad[0, :, [0, 1, 6, 7]] * 255).round().unique().tolist() == [100]
    torch.testing.assert_close(pad[0, :, 3], stretch[0, :, 3], rtol=0, atol=0.05)
    assert stretch[0, 0].min() > 0.9


def test_large_images_are_averaged_not_sampled() -> None:
    fine = np.indices((512, 512)).sum(0) % 2 * 255  # a chessboard of single pixels
    pixels = preprocess(1, (8, 8))(Image.fromarray(fine.astype(np.uint8)))
    torch.testing.assert_close(pixels, torch.full((1, 8, 8), 0.5), rtol=0, atol=0.02)


def broken_files(folder: Path) -> dict[str, str]:
    Image.fromarray(np.random.randint(0, 255, (64, 64, 3), dtype=np.uint8)).save(folder / "whole.png")
    Image.open(folder / "whole.png").save(folder / "whole.jpg")
    png, jpg = (folder / "whole.png").read_bytes(), (folder / "whole.jpg").read_bytes()
    bytes_of = {
        "empty.png": b"",
        "text.png": b"this is no image\n",
        "cut.png": png[: len(png) // 2],
        "cut.jpg": jpg[: len(jpg) // 2],
        "head.png": png[:20],
        "damaged.png": png[:100] + bytes(400) + png[500:],
        "page.html": b"<html></html>",
    }
    for name, content in bytes_of.items():
        (folder / name).write_bytes(content)
    (folder / "folder.png").mkdir()
    found = dict.fromkeys(bytes_of, "is ")
    return found | {"empty.png": "is empty", "missing.png": "no such file", "folder.png": "is a folder"}


def test_files_that_cannot_be_read_are_named_in_one_line(tmp_path: Path) -> None:
    for name, problem in broken_files(tmp_path).items():
        with pytest.raises(ConfigError) as caught:
            preprocess().open(tmp_path / name)
        message = str(caught.value)
        assert name in message
        assert problem in message.removeprefix(str(tmp_path))
        assert "\n" not in message


def test_image_larger_than_the_limit_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("L", (100, 100)).save(tmp_path / "big.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(ConfigError, match=r"big\.png: is too large"):
        open_image(tmp_path / "big.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 6000)  # only a warning of PIL
    assert open_image(tmp_path / "big.png").size == (100, 100)


def test_saved_preprocess_treats_a_file_as_training_treated_its_image(tmp_path: Path) -> None:
    data = Digits().load()
    data.preprocess.save(tmp_path / "preprocess.json")
    again = Preprocess.load(tmp_path / "preprocess.json")
    assert again == data.preprocess
    assert again.classes == tuple("0123456789")
    image = data.test.pixels(torch.tensor([3]), None)[0]
    to_image(image).save(tmp_path / "digit.png")
    expected = data.test.batch([3], None)["image"][0]
    torch.testing.assert_close(again.open(tmp_path / "digit.png"), expected, rtol=0, atol=0.51 / 255 / again.std[0])


def test_broken_preprocess_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{")
    (tmp_path / "b.json").write_text('{"name": "image", "image_size": [8, 8]}')
    for name in ("a.json", "b.json", "missing.json"):
        with pytest.raises(ConfigError, match=name):
            Preprocess.load(tmp_path / name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mean": (0.1, 0.2)}, "mean: should have 3 values"),
        ({"std": (0.1, 0.2, 0.0)}, "std: should be above 0"),
        ({"image_size": (0, 4)}, "image_size: should be at least 1 x 1"),
        ({"channels": 2}, "channels: "),
        ({"background": 300}, "background: "),
    ],
)
def test_impossible_settings_are_refused(change: dict, message: str) -> None:
    fine = {"image_size": (8, 8), "channels": 3, "mean": (0.0,) * 3, "std": (1.0,) * 3}
    with pytest.raises(ConfigError, match=message):
        Preprocess(**(fine | change))
