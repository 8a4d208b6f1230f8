"""Average precision of boxes and masks against loops over detections."""

import numpy as np
import pytest

from raysl.benchmarks.dense.average_precision import THRESHOLDS, Detected, precisions_by_class
from raysl.benchmarks.dense.boxes import Objects
from raysl.benchmarks.dense.coco_scores import coco_precisions, tools

Box = tuple[float, float, float, float]


def overlap(one: Box, other: Box) -> float:
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    both = max(0.0, width) * max(0.0, height)
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
    return both / (sum(areas) - both)


def ranked(found: list[Detected], label: int) -> list[tuple[int, Box]]:
    """Image and box of each detection of a class, best first."""
    own = [
        (-float(one.scores[d]), image, d)
        for image, one in enumerate(found) for d in range(len(one.scores)) if one.labels[d] == label
    ]  # fmt: skip
    return [(image, tuple(found[image].boxes[d].tolist())) for _, image, d in sorted(own)]  # type: ignore[misc]


def curve(is_right: list[bool], num_there: int) -> list[tuple[float, float]]:
    """Recall and precision behind each detection."""
    points, right = [], 0
    for number, hit in enumerate(is_right, 1):
        right += hit
        points.append((right / num_there, right / number))
    return points


def slow_voc(found: list[Detected], there: list[Objects], label: int, threshold: float, eleven: bool) -> float:
    """By the rules of the VOC development kit, detection by detection."""
    taken = set()
    num_there = sum(int(((one.labels == label) & ~one.is_apart).sum()) for one in there)
    is_right = []
    for image, box in ranked(found, label):
        best, which = 0.0, None
        for place in range(len(there[image])):
            if there[image].labels[place] == label:
                value = overlap(box, tuple(there[image].boxes[place].tolist()))  # type: ignore[arg-type]
                if value > best:
                    best, which = value, place
        if which is not None and best >= threshold:
            if there[image].is_apart[which]:
                continue
            is_right.append((image, which) not in taken)
            taken.add((image, which))
        else:
            is_right.append(False)
    points = curve(is_right, num_there)
    if eleven:
        return sum(max([p for r, p in points if r >= t / 10 - 1e-9], default=0.0) for t in range(11)) / 11
    area, before = 0.0, 0.0
    for place, (recall, _) in enumerate(points):
        area += (recall - before) * max(p for _, p in points[place:])
        before = recall
    return area


def slow_coco(found: list[Detected], there: list[Objects], label: int, threshold: float) -> float:
    """By the rules of COCO: each detection, best first, takes the best object of its image that is left."""
    num_there = sum(int((one.labels == label).sum()) for one in there)
    taken, is_right = set(), []
    for image, box in ranked(found, label):
        best, which = threshold, None
        for place in range(len(there[image])):
            if there[image].labels[place] == label and (image, place) not in taken:
                value = overlap(box, tuple(there[image].boxes[place].tolist()))  # type: ignore[arg-type]
                if value >= best:
                    best, which = value, place
        taken.add((image, which))
        is_right.append(which is not None)
    points = curve(is_right, num_there)
    return sum(max([p for r, p in points if r >= t], default=0.0) for t in np.linspace(0, 1, 101)) / 101


def problem(num: int = 12, with_apart: bool = True) -> tuple[list[Detected], list[Objects]]:
    """Objects of 3 classes, and detections near them, twice, elsewhere, or of another class; one image has neither."""
    random = np.random.default_rng(0)
    found, there = [], []
    for image in range(num):
        number = 0 if image == 3 else int(random.integers(1, 6))
        corners = random.uniform(0, 60, (number, 2))
        boxes = np.concatenate([corners, corners + random.uniform(12, 40, (number, 2))], axis=1).astype(np.float32)
        labels = random.integers(0, 3, number)
        apart = random.random(number) < (0.25 if with_apart else 0)
        areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
        there.append(Objects(boxes, labels, apart, areas))
        near = np.concatenate([boxes + random.normal(0, spread, boxes.shape) for spread in (0.5, 2, 5)])
        near[:, 2:] = np.maximum(near[:, 2:], near[:, :2] + 1)
        own = np.concatenate([labels, labels, np.where(random.random(number) < 0.5, labels, 2)])
        found.append(Detected(near.astype(np.float32), random.random(len(near)).astype(np.float32), own))
    return found, there


@pytest.mark.parametrize("eleven", [True, False])
def test_vocs_precision_is_that_of_a_loop(eleven: bool) -> None:
    found, there = problem()
    precisions = precisions_by_class(found, there, 4, THRESHOLDS, eleven)
    assert precisions.shape == (10, 4)
    for number, threshold in enumerate(THRESHOLDS):
        for label in range(3):
            assert precisions[number, label] == pytest.approx(slow_voc(found, there, label, threshold, eleven))
    assert np.isnan(precisions[:, 3]).all()
    assert 0.2 < precisions[0, 0] < 0.999


def test_cocos_precision_is_that_of_a_loop() -> None:
    found, there = problem(with_apart=False)
    precisions = coco_precisions(found, there, [(120, 120)] * len(there), 4, "bbox")[..., 0].mean(axis=1)
    for number, threshold in enumerate(THRESHOLDS):
        for label in range(3):
            slow = slow_coco(found, there, label, threshold)
            assert precisions[number, label] == pytest.approx(slow, abs=1e-6)
    assert np.isnan(precisions[:, 3]).all()


def perfect(there: list[Objects]) -> list[Detected]:
    return [Detected(one.boxes, np.ones(len(one), np.float32), one.labels) for one in there]


def test_who_finds_all_and_nothing_else_has_1_by_all_rules() -> None:
    _, there = problem()
    assert precisions_by_class(perfect(there), there, 3) == pytest.approx(1)
    assert precisions_by_class(perfect(there), there, 3, eleven_points=False) == pytest.approx(1)
    _, there = problem(with_apart=False)
    precisions = coco_precisions(perfect(there), there, [(120, 120)] * len(there), 3, "bbox")
    assert precisions[..., 0] == pytest.approx(1)


def test_who_finds_nothing_has_0() -> None:
    _, there = problem()
    none = [Detected(np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros(0, np.int64)) for _ in there]
    assert (precisions_by_class(none, there, 3) == 0).all()
    assert (coco_precisions(none, there, [(120, 120)] * len(there), 3, "bbox")[..., 0] == 0).all()


def test_an_object_that_stands_apart_is_neither_found_nor_missed() -> None:
    box = np.array([[0, 0, 10, 10], [20, 20, 40, 40]], np.float32)
    there = [Objects(box, np.array([0, 0]), np.array([True, False]), np.array([100.0, 400.0], np.float32))]
    found = [Detected(box, np.array([0.9, 0.8], np.float32), np.array([0, 0]))]
    assert precisions_by_class(found, there, 1) == pytest.approx(1)
    assert precisions_by_class([Detected(box[:1], np.ones(1, np.float32), np.zeros(1, int))], there, 1).max() == 0


def test_a_second_detection_of_an_object_is_wrong() -> None:
    box = np.array([[0, 0, 10, 10]], np.float32)
    both = np.concatenate([box, box + 50])
    there = [Objects(both, np.array([0, 0]), np.zeros(2, bool), np.full(2, 100.0))]
    found = [Detected(np.repeat(box, 2, axis=0), np.array([0.9, 0.8], np.float32), np.array([0, 0]))]
    assert precisions_by_class(found, there, 1, eleven_points=False)[0, 0] == pytest.approx(0.5)
    assert precisions_by_class(found, there, 1)[0, 0] == pytest.approx(6 / 11)


def test_masks_are_compared_by_their_pixels() -> None:
    whole, half = np.zeros((2, 20, 30), np.uint8)
    whole[5:15, 5:25] = 1
    half[5:15, 5:19] = 1  # 0.7 of it
    encode = tools().mask.encode
    polygon = [[5, 5, 25, 5, 25, 15, 5, 15]]
    box = np.array([[5, 5, 25, 15]], np.float32)
    there = [Objects(box, np.array([0]), np.array([False]), np.array([200.0], np.float32), (polygon,))]
    for mask, num_reached in ((whole, 10), (half, 5)):
        found = [Detected(box, np.ones(1, np.float32), np.array([0]), (encode(np.asfortranarray(mask)),))]
        precisions = coco_precisions(found, there, [(20, 30)], 1, "segm")[:, :, 0, 0].mean(axis=1)
        assert precisions.tolist() == pytest.approx([1] * num_reached + [0] * (10 - num_reached))
