from typing import Literal

import pytest
import torch
from torch.nn import functional as F

from raysl.benchmarks import low_shot
from raysl.benchmarks.benchmark import FeatureSet, by_name
from raysl.benchmarks.low_shot import LowShot, draw_shots
from raysl.benchmarks.metric import bootstrap
from raysl.config.build import build_node
from raysl.errors import ConfigError
from tests.benchmarks.test_knn import digits, random_set


def slow_low_shot(train: FeatureSet, test: FeatureSet, picks: torch.Tensor, similarity: str) -> list[float]:
    """Accuracy of each draw, one test image after another."""
    mean = train.features.mean(dim=0)
    accuracies = []
    for draw in picks:
        means = [F.normalize(train.features[rows] - mean, dim=1).mean(dim=0) for rows in draw]
        hits = 0
        for feature, label in zip(test.features, test.labels, strict=True):
            query = F.normalize(feature - mean, dim=0)
            if similarity == "euclidean":
                distances = [(query - center).norm().item() for center in means]
            else:
                distances = [1 - torch.cosine_similarity(query, center, dim=0).item() for center in means]
            hits += distances.index(min(distances)) == int(label)
        accuracies.append(100 * hits / len(test.labels))
    return accuracies


@pytest.mark.parametrize("similarity", ["euclidean", "cosine"])
def test_low_shot_equals_a_slow_loop(
    similarity: Literal["euclidean", "cosine"], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(low_shot, "MEMORY", 100)  # one draw at a time
    monkeypatch.setattr(low_shot, "CHUNK_ROWS", 7)
    train, test = random_set(60, seed=0), random_set(30, seed=1)
    config = LowShot.Config(shots=(1, 3), draws=6, similarity=similarity)
    metrics = by_name(LowShot(config).run(train, test, num_classes=4, seed=5))
    for shots in (1, 3):
        picks = draw_shots(train.labels, 4, shots, 6, seed=5)
        slow = torch.tensor(slow_low_shot(train, test, picks, similarity))
        value, deviation = (pytest.approx(number.item(), rel=1e-5) for number in (slow.mean(), slow.std(correction=0)))
        found = metrics[f"{shots}_shot"]
        assert (found.value, found.deviation, found.title) == (value, deviation, f"Low-shot, {shots} per class")


def test_the_interval_is_over_test_images_of_their_means_over_the_draws() -> None:
    train, test = random_set(60, seed=0), random_set(30, seed=1)
    (found,) = LowShot(LowShot.Config(shots=(2,), draws=6)).run(train, test, num_classes=4, seed=5)
    assert found.per_image is not None
    assert set((found.per_image * 6 / 100).round().tolist()) <= {0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0}
    assert found.per_image.mean().item() == pytest.approx(found.value)
    assert found.interval == bootstrap(found.per_image, seed=5)


def unequal_spread(num: int, seed: int) -> FeatureSet:
    """Classes around unit vectors, each next one with images that lie further apart."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(num) % 8
    centers = F.normalize(torch.randn(8, 32, generator=torch.Generator().manual_seed(0)), dim=1)
    spread = torch.linspace(0.05, 0.4, 8)[labels, None]
    return FeatureSet(centers[labels] + spread * torch.randn(num, 32, generator=generator), labels)


def test_the_plain_mean_is_better_where_classes_differ_in_spread() -> None:
    train, test = unequal_spread(400, seed=1), unequal_spread(2000, seed=2)
    accuracy = {}
    for similarity in ("euclidean", "cosine"):
        config = LowShot.Config(draws=50, similarity=similarity)
        accuracy[similarity] = by_name(LowShot(config).run(train, test, num_classes=8, seed=0))
    euclidean, cosine = accuracy["euclidean"], accuracy["cosine"]
    assert euclidean["1_shot"].value == pytest.approx(cosine["1_shot"].value)  # of one image the mean has length 1
    assert euclidean["5_shot"].value > cosine["5_shot"].value + 1


def test_raw_digits_have_their_known_accuracy() -> None:
    train, test = digits()
    one, five = LowShot(LowShot.Config()).run(train, test, num_classes=10, seed=0)
    assert one.value == pytest.approx(65.4, abs=1)
    assert five.value == pytest.approx(83.2, abs=1)
    assert one.deviation is not None
    assert five.deviation is not None
    assert five.deviation < one.deviation < 8


def test_draws_hold_each_class_without_repeats() -> None:
    labels = random_set(60, seed=0).labels
    picks = draw_shots(labels, 4, 5, draws=50, seed=0)
    assert picks.shape == (50, 4, 5)
    assert torch.equal(labels[picks], torch.arange(4)[None, :, None].expand(50, 4, 5))
    assert all(len(set(draw.flatten().tolist())) == 20 for draw in picks)
    assert len({tuple(draw.flatten().tolist()) for draw in picks}) == 50
    assert set(picks.flatten().tolist()) == set(range(60))


def test_a_draw_is_a_function_of_seed_and_number() -> None:
    labels = random_set(60, seed=0).labels
    picks = draw_shots(labels, 4, 5, draws=8, seed=3)
    assert torch.equal(picks[:4], draw_shots(labels, 4, 5, draws=4, seed=3))
    assert torch.equal(picks[:, :, :2], draw_shots(labels, 4, 2, draws=8, seed=3))
    assert not torch.equal(picks, draw_shots(labels, 4, 5, draws=8, seed=4))


def test_a_class_with_too_few_images_is_named() -> None:
    labels = torch.tensor([0] * 6 + [1] * 3 + [2] * 6)
    with pytest.raises(ValueError, match="class 1 has 3 training images, 5 shots need 5"):
        draw_shots(labels, 3, 5, draws=2, seed=0)


def test_a_number_that_no_image_has_is_no_class() -> None:
    train, test = random_set(60, seed=0), random_set(30, seed=1)
    benchmark = LowShot(LowShot.Config(shots=(1, 5), draws=4))
    later = [FeatureSet(rows.features, rows.labels + 3) for rows in (train, test)]
    assert benchmark.run(*later, 7, seed=0) == benchmark.run(train, test, 4, seed=0)


def test_test_images_of_a_class_without_training_images_are_wrong_and_counted_in_a_note() -> None:
    train, test = random_set(60, seed=0), random_set(30, seed=1)
    (without,) = LowShot(LowShot.Config(shots=(1,), draws=4)).run(
        train, FeatureSet(test.features, test.labels.where(test.labels != 2, 4)), 5, seed=0
    )
    num = int((test.labels == 2).sum())
    assert without.note == f"{num} of 30 test images are of a class without a training image and counted as wrong"


@pytest.mark.parametrize("fields", [{"shots": []}, {"shots": [0]}, {"draws": 0}])
def test_impossible_settings_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"is out of range|is empty"):
        build_node(LowShot.Config, fields, "low_shot")
