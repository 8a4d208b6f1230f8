import math

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score

from raysl.benchmarks import average_precision as module
from raysl.benchmarks.average_precision import (
    Kind,
    average_precision,
    average_precisions,
    map_interval,
    mean_average_precision,
)


def ranked(*labels: int) -> tuple[NDArray[np.float64], NDArray[np.int8]]:
    """Falling scores for images with these labels."""
    return -np.arange(len(labels), dtype=np.float64), np.array(labels, dtype=np.int8)


def of_the_devkit(scores: NDArray[np.float64], labels: NDArray[np.int8], kind: Kind) -> float:
    """Word by word, for scores without equals."""
    order = [place for place in np.argsort(-scores) if labels[place] >= 0]
    total = sum(labels[place] == 1 for place in order)
    recall, precision, found = [0.0], [0.0], 0
    for rank, place in enumerate(order, start=1):
        found += labels[place] == 1
        recall.append(found / total)
        precision.append(found / rank)
    if kind == "11point":
        tops = [
            max([p for p, r in zip(precision, recall, strict=True) if r >= t / 10 - 1e-9], default=0) for t in range(11)
        ]
        return sum(tops) / 11
    area = 0.0
    for step in range(1, len(recall)):
        area += (recall[step] - recall[step - 1]) * max(precision[step:])
    return area


def test_both_kinds_by_hand() -> None:
    scores, labels = ranked(
        1, 0, 1, 0, 0, 1
    )  # precision 1, 1/2, 2/3, 1/2, 2/5, 1/2 at recall 1/3, 1/3, 2/3, 2/3, 2/3, 1
    assert average_precision(scores, labels) == pytest.approx((1 + 2 / 3 + 1 / 2) / 3)
    assert average_precision(scores, labels, "11point") == pytest.approx((4 * 1 + 3 * 2 / 3 + 4 * 1 / 2) / 11)
    scores, labels = ranked(0, 1, 1)  # it rises from 1/2 to 2/3, so 2/3 holds at every recall
    assert average_precision(scores, labels) == pytest.approx(2 / 3)
    assert average_precision_score(labels, scores) == pytest.approx((1 / 2 + 2 / 3) / 2)


@pytest.mark.parametrize("kind", ["all", "11point"])
def test_it_is_that_of_the_development_kit(kind: Kind) -> None:
    random = np.random.default_rng(0)
    for num in (1, 2, 10, 60):
        for _ in range(20):
            scores, labels = random.permutation(num).astype(np.float64), random.integers(-1, 2, num).astype(np.int8)
            if (labels == 1).any() and (labels == 0).any():
                assert average_precision(scores, labels, kind) == pytest.approx(of_the_devkit(scores, labels, kind))


def test_it_is_that_of_scikit_learn_where_precision_falls_and_else_larger() -> None:
    random = np.random.default_rng(0)
    for _ in range(50):
        scores, labels = random.integers(0, 12, 40).astype(np.float64), random.integers(0, 2, 40).astype(np.int8)
        assert average_precision(scores, labels) >= average_precision_score(labels, scores) - 1e-12
    scores, labels = ranked(1, 1, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0)
    assert average_precision(scores, labels) == pytest.approx(average_precision_score(labels, scores))


def test_images_of_equal_score_are_found_together_in_any_order() -> None:
    labels = np.array([1, 0, 0, 1, 0, 0], dtype=np.int8)
    for order in (slice(None), slice(None, None, -1)):
        assert average_precision(np.zeros(6), labels[order]) == pytest.approx(2 / 6)
        assert average_precision(np.zeros(6), labels[order], "11point") == pytest.approx(2 / 6)


def test_ignored_images_do_not_count_and_a_class_on_no_image_or_on_all_has_none() -> None:
    scores, labels = ranked(-1, 1, -1, 0, 1, -1)
    kept = ranked(1, 0, 1)
    for kind in ("all", "11point"):
        assert average_precision(scores, labels, kind) == average_precision(*kept, kind)
        assert math.isnan(average_precision(*ranked(0, 0, -1), kind))
        assert math.isnan(average_precision(*ranked(-1, -1), kind))
        assert math.isnan(average_precision(*ranked(1, -1, 1), kind))


def test_a_perfect_order_is_1_and_a_random_one_the_share_of_the_class() -> None:
    labels = (np.arange(5000) < 1000).astype(np.int8)
    random = np.random.default_rng(0)
    for kind in ("all", "11point"):
        assert average_precision(labels.astype(np.float64), labels, kind) == 1
        assert average_precision(random.random(5000), labels, kind) == pytest.approx(0.2, abs=0.04)


def test_the_mean_is_over_classes_that_images_have() -> None:
    labels = np.array([[1, 0, 0], [0, 0, 1], [0, -1, 1]], dtype=np.int8)
    scores = np.array([[1.0, 1, 3], [2, 2, 2], [0, 3, 1]])
    areas = average_precisions(scores, labels)
    np.testing.assert_allclose(areas, [1 / 2, np.nan, 2 / 3])
    assert mean_average_precision(areas) == pytest.approx((1 / 2 + 2 / 3) / 2)
    assert math.isnan(mean_average_precision(areas[1:2]))


@pytest.mark.parametrize("kind", ["all", "11point"])
def test_an_interval_is_of_images_drawn_again(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    labels = random.integers(-1, 2, (40, 3)).astype(np.int8)
    scores = labels + random.normal(0, 1.5, (40, 3))
    monkeypatch.setattr(module, "RESAMPLES", 200)
    low, high = map_interval(scores, labels, kind, seed=7) or (0, 0)
    draws = np.random.default_rng(7).integers(0, 40, (200, 40))
    slow = [mean_average_precision(average_precisions(scores[rows], labels[rows], kind)) for rows in draws]
    assert (low, high) == pytest.approx(tuple(np.percentile(slow, (2.5, 97.5))))
    assert low < mean_average_precision(average_precisions(scores, labels, kind)) < high


def test_there_is_no_interval_of_too_little_or_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    scores, labels = ranked(1, 0, 1)
    assert map_interval(scores[:1, None], labels[:1, None]) is None
    assert map_interval(scores[:, None], 0 * labels[:, None]) is None
    low, high = map_interval(scores[:, None], labels[:, None]) or (math.nan, math.nan)
    assert 0 < low < high <= 1, "samples without the class are left out"
    assert map_interval(scores[:2, None], np.ones((2, 1), np.int8)) is None, "a class that each image has"
    monkeypatch.setattr(module, "MOST_VALUES", 2)
    assert map_interval(scores[:, None], labels[:, None]) is None
