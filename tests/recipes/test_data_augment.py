"""Augmentation and mixing: keyed, right in geometry, equal to timm where timm has the same."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import Tensor

from recipes.data.augment import Augment, Augmenter
from recipes.data.digits import Digits
from recipes.data.images import TensorImages
from recipes.data.loader import EpochLoader
from recipes.data.mixing import cutmix, mix, mixup
from recipes.data.preprocess import Preprocess
from zoo.registry import ConfigError

ALL = {"shift": 2, "rotation": 20, "scale": 0.2, "shear": 10, "flip": 0.5, "erase": 0.5}


def preprocess(channels: int = 1, size: tuple[int, int] = (12, 10)) -> Preprocess:
    mean, std = (0.4,) * channels, (0.3,) * channels
    return Preprocess(image_size=size, channels=channels, mean=mean, std=std, classes=("a", "b", "c"))


def examples(augment: Augment, count: int = 23, channels: int = 1, dtype: torch.dtype = torch.float32) -> TensorImages:
    prepare = preprocess(channels)
    images = torch.rand(count, channels, *prepare.image_size, generator=torch.Generator().manual_seed(0))
    if dtype == torch.uint8:
        images = (images * 255).round().byte()
    return TensorImages(images, torch.arange(count) % 3, list(range(count)), prepare, augment)


def by_index(loader: EpochLoader) -> dict[int, Tensor]:
    return {int(i): image for batch in loader for i, image in zip(batch["index"], batch["image"], strict=True)}


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("extra", [{}, {"crop": 0.5}, {"randaugment": "rand-m9-mstd0.5-inc1"}])
def test_pixels_depend_on_seed_epoch_and_index_alone(extra: dict, channels: int) -> None:
    data = examples(Augment(**ALL, **extra), channels=channels)
    first = by_index(EpochLoader(data, 7, shuffle=True, seed=3))
    for other in (
        EpochLoader(data, 23, shuffle=True, seed=3),
        EpochLoader(data, 1, shuffle=True, seed=3),
        EpochLoader(examples(Augment(**ALL, **extra), channels=channels), 4, shuffle=True, seed=3, workers=2),
    ):
        second = by_index(other)
        assert all(torch.equal(first[index], second[index]) for index in range(23))
    alone = data.batch([5], (3, 0))["image"][0]
    assert torch.equal(alone, first[5])
    assert not torch.equal(alone, data.batch([5], (3, 1))["image"][0])
    assert not torch.equal(alone, data.batch([5], (4, 0))["image"][0])


def test_draw_of_an_example_does_not_depend_on_the_size_of_the_set() -> None:
    large, small = examples(Augment(**ALL), count=40), examples(Augment(**ALL), count=23)
    small.images = large.images[:23]
    assert torch.equal(large.batch(range(23), (0, 4))["image"], small.batch(range(23), (0, 4))["image"])


@pytest.mark.parametrize("threads", [1, 2])
def test_pixels_do_not_depend_on_threads(threads: int) -> None:
    data = examples(Augment(**ALL), count=900)
    torch.set_num_threads(3 - threads)
    one = data.batch(range(900), (0, 0))["image"]
    torch.set_num_threads(threads)
    assert torch.equal(examples(Augment(**ALL), count=900).batch(range(900), (0, 0))["image"], one)


def test_augmentation_leaves_global_random_streams_alone() -> None:
    data = examples(Augment(**ALL, crop=0.5, randaugment="rand-m9", mixup=0.2), channels=3)
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()  # type: ignore[index]
    data.batch(range(6), (0, 0))
    assert random.getstate() == states[0]
    assert np.random.get_state()[1].tolist() == states[1]  # type: ignore[index]
    assert torch.equal(torch.get_rng_state(), states[2])


def test_no_key_no_augmentation() -> None:
    plain = examples(Augment()).batch(range(5), None)["image"]
    assert torch.equal(examples(Augment(**ALL, mixup=1)).batch(range(5), None)["image"], plain)


def test_off_by_default() -> None:
    data = examples(Augment())
    assert torch.equal(data.batch(range(5), (0, 0))["image"], data.batch(range(5), None)["image"])


def test_bytes_and_floats_are_augmented_alike() -> None:
    as_bytes = examples(Augment(**ALL), dtype=torch.uint8)
    as_floats = examples(Augment(**ALL), dtype=torch.uint8)
    as_bytes.images = (as_bytes.images * 255).round().byte()
    for key in (None, (0, 0)):
        assert torch.equal(as_bytes.batch(range(9), key)["image"], as_floats.batch(range(9), key)["image"])


def moved(augment: Augment, images: Tensor, epoch: int = 0) -> Tensor:
    augmenter = Augmenter(augment, preprocess(size=(images.shape[2], images.shape[3])), len(images))
    return augmenter.move(images, torch.arange(len(images)), (0, epoch))


def test_probability_leaves_a_share_of_the_images_sharp() -> None:
    images = torch.rand(1, 1, 8, 8).expand(400, -1, -1, -1)
    still = (moved(Augment(probability=0.7, rotation=20, shift=1), images) - images).abs().amax((1, 2, 3)) < 1e-5
    assert abs(still.double().mean() - 0.3) < 0.1  # 4 standard errors


def test_flip_mirrors_left_and_right_only() -> None:
    images = torch.rand(4, 1, 6, 9)
    torch.testing.assert_close(moved(Augment(flip=1), images), images.flip(3), rtol=0, atol=1e-5)
    many = torch.rand(1, 1, 6, 9).expand(400, -1, -1, -1)
    share = (moved(Augment(flip=0.3), many) - many.flip(3)).abs().amax((1, 2, 3)).lt(1e-5).double().mean()
    assert abs(share - 0.3) < 0.1  # 4 standard errors


def test_whole_pixel_shifts_are_rolls_and_all_come_equally_often() -> None:
    images = torch.zeros(900, 1, 9, 11)
    images[:, :, 4, 5] = 1
    after = moved(Augment(shift=1, whole_pixels=True), images)
    places = [divmod(int(image.argmax()), 11) for image in after]
    assert set(after.round(decimals=4).unique().tolist()) == {0.0, 1.0}
    counts = [places.count((row, column)) for row in (3, 4, 5) for column in (4, 5, 6)]
    assert sum(counts) == 900
    assert all(60 < count < 140 for count in counts)  # 100 on average, 4 standard errors


def test_shift_stays_in_range_and_brings_in_the_padding() -> None:
    images = torch.ones(200, 1, 8, 8)
    after = moved(Augment(shift=0.5), images)
    assert torch.equal(after[:, :, 1:-1, 1:-1].round(decimals=5), images[:, :, 1:-1, 1:-1])
    assert after[:, :, 0].min() >= 0.25 - 1e-5  # a corner that lost half a pixel on both sides
    assert after[:, :, 0].min() < 0.8
    assert moved(Augment(shift=3, padding="border"), images).min() > 1 - 1e-5


def test_rotation_turns_without_distorting_an_image_that_is_not_square() -> None:
    height, width = 31, 61
    y, x = torch.meshgrid(torch.arange(height) - 15.0, torch.arange(width) - 30.0, indexing="ij")
    blob = (-(x**2 + y**2) / 50).exp().expand(20, 1, -1, -1)
    torch.testing.assert_close(moved(Augment(rotation=180), blob), blob, rtol=0, atol=0.01)  # curvature / 8, both ways
    bar = ((y.abs() < 1.5) & (x.abs() < 12)).float().expand(200, 1, -1, -1)
    mass = moved(Augment(rotation=90), bar).sum((1, 2, 3))
    torch.testing.assert_close(mass, bar[0].sum().expand(200), rtol=0.1, atol=0)  # area is kept


def test_scale_changes_areas_within_its_range() -> None:
    y, x = torch.meshgrid(torch.arange(41) - 20.0, torch.arange(41) - 20.0, indexing="ij")
    disc = (x**2 + y**2 < 12**2).float().expand(300, 1, -1, -1)
    ratio = (moved(Augment(scale=0.25), disc).sum((1, 2, 3)) / disc[0].sum()).sqrt()
    assert 0.74 < ratio.min() < 0.8
    assert 1.2 < ratio.max() < 1.26


def test_erase_takes_one_rectangle_of_some_images() -> None:
    augmenter = Augmenter(Augment(erase=0.5), preprocess(size=(20, 30)), 400)
    after = augmenter.erase(torch.ones(400, 1, 20, 30), torch.arange(400), (0, 0))
    gone = after[:, 0] == 0
    share = (gone.flatten(1).any(1)).double().mean().item()
    assert abs(share - 0.5) < 0.1  # 4 standard errors
    for mask in gone[gone.flatten(1).any(1)]:
        rows, columns = mask.any(1).sum(), mask.any(0).sum()
        assert mask.sum() == rows * columns
        assert 0.01 < mask.double().mean() < 0.4


def test_unknown_policy_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match=r"data.augment.randaugment: is not a policy of timm"):
        examples(Augment(randaugment="wrong-m9"))


def test_amounts_out_of_range_are_refused() -> None:
    for value in ({"flip": 1.5}, {"shift": -1}, {"scale": 1.0}, {"padding": "wrap"}):
        with pytest.raises(ConfigError, match=next(iter(value))):
            Digits(augment=value)


def timm_mixed(images: Tensor, labels: Tensor, kind: str, seed: int) -> tuple[Tensor, Tensor]:
    from timm.data.mixup import Mixup

    np.random.seed(seed)
    mixup_alpha, cutmix_alpha = (0.4, 0.0) if kind == "mixup" else (0.0, 1.0)
    timm = Mixup(mixup_alpha=mixup_alpha, cutmix_alpha=cutmix_alpha, label_smoothing=0, num_classes=3)
    return timm(images.clone(), labels)


@pytest.mark.parametrize("seed", range(8))
def test_mixup_and_cutmix_equal_timms_for_the_same_draws(seed: int) -> None:
    images, labels = torch.rand(6, 3, 9, 14), torch.tensor([0, 1, 2, 2, 1, 1])
    mixed, soft = timm_mixed(images, labels, "mixup", seed)
    np.random.seed(seed)
    np.random.rand()
    share = np.random.beta(0.4, 0.4)
    torch.testing.assert_close(mixup(images, share), mixed)
    one_hot = torch.eye(3)[labels]
    torch.testing.assert_close(one_hot * share + one_hot.flip(0) * (1 - share), soft)

    mixed, soft = timm_mixed(images, labels, "cutmix", seed)
    np.random.seed(seed)
    np.random.rand()
    share = np.random.beta(1.0, 1.0)
    row, column = np.random.randint(9), np.random.randint(14)
    ours, share = cutmix(images, share, row, column)
    assert torch.equal(ours, mixed)
    torch.testing.assert_close(one_hot * share + one_hot.flip(0) * (1 - share), soft)


def test_mixing_follows_timms_law() -> None:
    from timm.data.mixup import Mixup

    images, labels = torch.zeros(2, 1, 16, 16), torch.tensor([0, 1])
    augment = Augment(mixup=0.4, cutmix=1.0, mix_probability=0.8)
    ours = [mix(images, labels, 2, augment, (0, step))[1][0, 0].item() for step in range(4000)]
    np.random.seed(0)
    timm = Mixup(mixup_alpha=0.4, cutmix_alpha=1.0, prob=0.8, label_smoothing=0, num_classes=2)
    theirs = [timm(images.clone(), labels)[1][0, 0].item() for _ in range(4000)]
    edges = np.linspace(0, 1, 11)[1:-1]
    gap = max(abs(np.mean(np.array(ours) <= edge) - np.mean(np.array(theirs) <= edge)) for edge in edges)
    assert gap < 0.044  # 1.95 * sqrt(2 / 4000): two samples of one law differ by more in 1 of 1,000 cases


def test_mixed_batches_carry_class_weights_and_depend_on_the_batch_alone() -> None:
    data = examples(Augment(mixup=0.4, cutmix=1.0), count=25)
    batches = list(EpochLoader(data, 5, shuffle=True, seed=0))
    again = EpochLoader(data, 5, shuffle=True, seed=0, workers=1)
    for batch, same in zip(batches, again, strict=True):
        assert torch.equal(batch["image"], same["image"])
        assert torch.equal(batch["soft_label"], same["soft_label"])
        assert batch["soft_label"].shape == (5, 3)
        torch.testing.assert_close(batch["soft_label"].sum(1), torch.ones(5))
        assert batch["label"].tolist() == (batch["index"] % 3).tolist()
    assert "soft_label" not in data.batch(range(5), None)
