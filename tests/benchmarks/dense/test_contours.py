"""J and F of DAVIS beside loops over pixels."""

import math

import numpy as np
import pytest

from raysl.benchmarks.dense.overlap import contour, contour_accuracy, region_similarity


def slow_contour(mask: np.ndarray) -> list[tuple[int, int]]:
    """Pixels whose right, lower or lower right neighbour is of the other kind; those beyond the image are not there."""
    height, width = mask.shape
    return [
        (y, x)
        for y in range(height)
        for x in range(width)
        for dy, dx in ((0, 1), (1, 0), (1, 1))
        if y + dy < height and x + dx < width and mask[y, x] != mask[y + dy, x + dx]
    ]


def slow_f(predicted: np.ndarray, label: np.ndarray) -> float:
    """The F-measure by the distance of every pair of points."""
    bound = math.ceil(0.008 * math.sqrt(label.shape[0] ** 2 + label.shape[1] ** 2))
    drawn, wanted = set(slow_contour(predicted)), set(slow_contour(label))

    def share(points: set[tuple[int, int]], others: set[tuple[int, int]]) -> float:
        if not points:
            return 1.0
        near = [any((y - v) ** 2 + (x - u) ** 2 <= bound**2 for v, u in others) for y, x in points]
        return sum(near) / len(near)

    if not drawn or not wanted:
        precision, recall = (1.0, float(not wanted)) if not drawn else (0.0, 1.0)
    else:
        precision, recall = share(drawn, wanted), share(wanted, drawn)
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def blob(random: np.random.Generator, height: int, width: int) -> np.ndarray:
    """A disc that may reach beyond the image, with some noise."""
    y, x = np.mgrid[:height, :width]
    middle = random.integers(0, height), random.integers(0, width)
    mask: np.ndarray = (y - middle[0]) ** 2 + (x - middle[1]) ** 2 < random.integers(4, height) ** 2
    return mask ^ (random.random(mask.shape) < 0.02)


@pytest.mark.thorough
@pytest.mark.parametrize(("height", "width"), [(20, 31), (96, 170), (150, 130)])  # bounds of 1 and 2 pixels
def test_f_is_that_of_all_pairs_of_contour_points(height: int, width: int) -> None:
    random = np.random.default_rng(height)
    for _ in range(3):
        predicted, label = blob(random, height, width), blob(random, height, width)
        assert contour_accuracy(predicted, label) == pytest.approx(slow_f(predicted, label), abs=1e-12)
        shifted = np.roll(label, 1, axis=1)
        assert contour_accuracy(shifted, label) == pytest.approx(slow_f(shifted, label), abs=1e-12)


def test_a_contour_lies_half_a_pixel_towards_the_origin_and_ends_at_the_border() -> None:
    random = np.random.default_rng(0)
    for _ in range(5):
        mask = blob(random, 12, 17)
        assert {(int(y), int(x)) for y, x in np.argwhere(contour(mask))} == set(slow_contour(mask))
    square = np.zeros((6, 6), bool)
    square[2:4, 2:4] = True
    assert np.argwhere(contour(square)).min(axis=0).tolist() == [1, 1]
    assert not contour(np.ones((4, 4), bool)).any()


def test_contours_match_within_the_bound_of_davis_and_no_further() -> None:
    label = np.zeros((480, 854), bool)  # 0.008 of the diagonal are 7.8 pixels, so 8
    label[100:300, 100:400] = True
    near, far = (np.roll(label, shift, axis=1) for shift in (8, 9))
    assert contour_accuracy(near, label) == 1
    assert contour_accuracy(far, label) < 1


def test_empty_masks_follow_davis() -> None:
    empty, square = np.zeros((9, 9), bool), np.zeros((9, 9), bool)
    square[2:5, 2:5] = True
    assert (region_similarity(empty, empty), contour_accuracy(empty, empty)) == (1, 1)
    for pair in ((empty, square), (square, empty)):
        assert (region_similarity(*pair), contour_accuracy(*pair), slow_f(*pair)) == (0, 0, 0)


def test_j_is_intersection_over_union() -> None:
    first, second = np.zeros((4, 4), bool), np.zeros((4, 4), bool)
    first[:2], second[1:3, :3] = True, True
    assert region_similarity(first, second) == 3 / 11
