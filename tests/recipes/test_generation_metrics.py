"""What generated images are measured by: distances against closed forms, baselines, a ruler without test images."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import torch

from recipes.data.augment import Augment
from recipes.data.digits import Digits
from recipes.data.images import ImageData, TensorImages
from recipes.generation.baselines import generation_baselines, simple_images
from recipes.generation.distances import Moments, frechet_distance, moments, nearest_distances
from recipes.generation.evaluation import Images, Ruler, images_of
from recipes.generation.features import train_classifier
from recipes.generation.sampling import spread_labels
from recipes.generation.scaling import centred


def features(count: int = 200, width: int = 5, seed: int = 0) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    mix = torch.randn(width, width, generator=draw)
    return torch.randn(count, width, generator=draw) @ mix + torch.randn(width, generator=draw)


def test_the_distance_is_that_of_the_matrix_root() -> None:
    ours, theirs = moments(features(seed=1)), moments(features(seed=2))
    one, other = ours.covariance.numpy(), theirs.covariance.numpy()
    root: Any = scipy.linalg.sqrtm(one @ other)
    apart = float((ours.mean - theirs.mean).square().sum())
    expected = apart + np.trace(one + other - 2 * root.real)
    assert frechet_distance(ours, theirs, ridge=0.0) == pytest.approx(expected, rel=1e-9)
    assert frechet_distance(theirs, ours) == pytest.approx(frechet_distance(ours, theirs), rel=1e-9)


def test_the_distance_of_independent_features_is_that_of_their_deviations() -> None:
    ours = Moments(torch.tensor([1.0, 2.0]).double(), torch.diag(torch.tensor([4.0, 9.0]).double()))
    theirs = Moments(torch.tensor([1.0, 0.0]).double(), torch.diag(torch.tensor([1.0, 1.0]).double()))
    assert frechet_distance(ours, theirs, ridge=0.0) == pytest.approx(2.0**2 + (2 - 1) ** 2 + (3 - 1) ** 2)


def test_equal_sets_are_at_0_and_shifted_ones_at_the_square_of_the_shift() -> None:
    made = features()
    assert frechet_distance(moments(made), moments(made.flip(0))) == pytest.approx(0, abs=1e-9)
    shift = torch.tensor([3.0, 0.0, 0.0, 4.0, 0.0])
    assert frechet_distance(moments(made + shift), moments(made)) == pytest.approx(25, rel=1e-5)


def test_dead_features_and_fewer_samples_than_features_give_a_finite_distance() -> None:
    dead = features().clone()
    dead[:, 2] = 0
    assert frechet_distance(moments(dead), moments(dead)) == pytest.approx(0, abs=1e-6)
    few = features(3, 8)
    assert frechet_distance(moments(few), moments(few)) == pytest.approx(0, abs=1e-6)
    assert 0 < frechet_distance(moments(few), moments(features(100, 8))) < 1e4


def test_nearest_distances_are_those_to_the_nearest_and_0_for_a_copy() -> None:
    known = torch.zeros(3, 1, 2, 2)
    known[1], known[2] = 1.0, -1.0
    asked = torch.stack((known[1], torch.full((1, 2, 2), 0.25), torch.full((1, 2, 2), 3.0)))
    assert nearest_distances(asked, known, chunk=2).tolist() == pytest.approx([0.0, 0.5, 4.0])
    assert nearest_distances(known[1:2], known)[0] == 0


@pytest.fixture(scope="module")
def data() -> ImageData:
    return centred(Digits(limit=200, augment=Augment()).load())


@pytest.fixture(scope="module")
def ruler(data: ImageData) -> Ruler:
    return Ruler(data, samples=400, steps=100)


def test_images_are_brought_to_minus_1_to_1(data: ImageData) -> None:
    for part in (data.train, data.val, data.test):
        images = images_of(part).images
        assert (float(images.min()), float(images.max())) == (-1.0, 1.0)
    plain = Digits(limit=200, augment=Augment()).load()
    expected = plain.train.pixels(torch.tensor([3]), None) * 2 - 1
    assert torch.equal(data.train.batch([3], None)["image"], expected)
    moved = centred(Digits(limit=20, augment=Augment(shift=1.0)).load()).train.batch(list(range(20)), (0, 0))["image"]
    assert moved.min() == -1.0  # what comes in from outside is black


def test_the_classifier_is_the_same_for_every_seed_and_never_sees_a_test_image(data: ImageData) -> None:
    class Untouchable(TensorImages):
        def batch(self, indices: Any, key: Any) -> Any:
            raise AssertionError("a held-out image was read")

    hidden = {
        split: Untouchable(part.images, part.labels, part.ids, part.preprocess, part.augment)
        for split in ("val", "test")
        if isinstance(part := getattr(data, split), TensorImages)
    }
    torch.manual_seed(1)
    first = train_classifier(replace(data, **hidden).train, steps=3)
    torch.manual_seed(2)
    state = torch.get_rng_state()
    again = train_classifier(data.train, steps=3)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in first.state_dict().items())
    assert not set(data.train.ids) & (set(data.val.ids) | set(data.test.ids))


def test_standardised_training_features_have_mean_0_and_deviation_1(ruler: Ruler) -> None:
    assert torch.allclose(ruler.moments.mean, torch.zeros(32).double(), atol=1e-5)
    assert torch.allclose(ruler.moments.covariance.diagonal(), torch.ones(32).double(), atol=1e-4)


def test_real_images_are_faithful_near_and_at_a_small_distance(ruler: Ruler) -> None:
    train = ruler.measure(ruler.known, "test")
    assert train["test/frechet_distance"] == pytest.approx(0, abs=1e-6)
    assert train["test/nearest_neighbour"] == 0
    assert train["test/class_fidelity"] > 0.98
    wrong = Images(ruler.known.images, (ruler.known.labels + 1) % 10)
    assert ruler.measure(wrong, "test")["test/class_fidelity"] < 0.02
    some = Images(ruler.known.images[:20], torch.full((20,), 3))
    expected = (ruler.classifier.look(some.images)[1] == 3).double().mean()
    assert ruler.measure(some, "test")["test/class_fidelity"] == expected


def test_as_many_samples_as_held_out_images_are_compared(ruler: Ruler) -> None:
    found = Images(ruler.known.images.repeat(3, 1, 1, 1)[:400], ruler.known.labels.repeat(3)[:400])
    metrics = ruler.measure(found, "test")
    assert (
        metrics["test/frechet_distance@360"]
        == ruler.measure(Images(found.images[:360], found.labels[:360]), "test")["test/frechet_distance"]
    )
    floor = ruler.measure(ruler.heldout["test"], "test")
    assert floor["test/frechet_distance@360"] == floor["test/frechet_distance"]
    assert "test/heldout_distance" not in floor


def test_the_baselines_stand_in_the_known_order(ruler: Ruler) -> None:
    labels = spread_labels(ruler.known.labels, 200)
    assert labels.bincount().tolist() == [20] * 10
    table = generation_baselines(ruler, labels)
    floor, noise, mean, pixel, full = (found["test/frechet_distance"] for found in table.values())
    assert next(iter(table)) == "held-out images (360)"
    assert floor < full < pixel < noise
    assert full < mean
    assert table["class mean"]["test/class_fidelity"] == 1
    assert table["uniform noise"]["test/class_fidelity"] < 0.5


def test_the_full_gaussian_has_the_mean_and_covariance_of_its_class() -> None:
    draw = torch.Generator().manual_seed(0)
    images = 0.1 * (torch.randn(50, 4, generator=draw) @ torch.randn(4, 4, generator=draw)).view(50, 1, 2, 2)
    known = Images(torch.cat((images, torch.full((5, 1, 2, 2), 0.5))), torch.tensor([0] * 50 + [1] * 5))
    made = simple_images(known, torch.tensor([0] * 20_000 + [1] * 3))["full Gaussian"]
    assert torch.allclose(made[-3:], torch.full((3, 1, 2, 2), 0.5))
    ours = images.flatten(1)
    assert torch.allclose(made[:-3].flatten(1).mean(0), ours.mean(0), atol=0.01)
    assert torch.allclose(made[:-3].flatten(1).T.cov(), ours.T.cov(correction=0), atol=0.005)


def test_the_common_number_is_the_smaller_of_made_and_held_out_images(data: ImageData, ruler: Ruler) -> None:
    assert ruler.common("test") == 360
    assert ruler.common("val") == len(data.val)
    few = Ruler.__new__(Ruler)
    few.samples, few.heldout = 20, ruler.heldout
    assert few.common("test") == 20
