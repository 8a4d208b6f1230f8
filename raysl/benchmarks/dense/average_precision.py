"""Average precision by the rules of Pascal VOC (Everingham et al., IJCV 2010, section 4.2)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchvision.ops import box_iou

from raysl.benchmarks.dense.boxes import Objects

THRESHOLDS = tuple(0.5 + 0.05 * step for step in range(10))
"""Overlaps that COCO averages over."""


@dataclass(frozen=True)
class Detected:
    """Detections in one image, in any order.

    Args:
        boxes: float32 [D, 4], edges in pixels as `Objects.boxes`.
        scores: float32 [D].
        labels: int64 [D], places among the classes.
        masks: run lengths of pycocotools, one of each; empty where there are none.
    """

    boxes: np.ndarray
    scores: np.ndarray
    labels: np.ndarray
    masks: tuple[dict[str, Any], ...] = ()

    def tensors(self, size: tuple[int, int]) -> dict[str, Tensor]:
        """Return the same as tensors, in which images follow each other, see `parse_detections`."""
        counts = [mask["counts"] for mask in self.masks]
        return {
            "sizes": torch.tensor([size]),
            "nums": torch.tensor([len(self.scores)]),
            "boxes": torch.from_numpy(self.boxes),
            "scores": torch.from_numpy(self.scores),
            "labels": torch.from_numpy(self.labels),
            "mask_lengths": torch.tensor([len(run) for run in counts], dtype=torch.int64),
            "masks": torch.from_numpy(np.frombuffer(b"".join(counts), np.uint8).copy()),
        }


def parse_detections(tensors: Mapping[str, Tensor]) -> tuple[list[Detected], list[tuple[int, int]]]:
    """Return the detections in each image, and its height and width, from concatenated `Detected.tensors`."""
    sizes = [(int(height), int(width)) for height, width in tensors["sizes"].tolist()]
    nums = tensors["nums"].tolist()
    runs = [part.numpy().tobytes() for part in torch.split(tensors["masks"], tensors["mask_lengths"].tolist())]
    has_masks = len(runs) == sum(nums)
    rows = [torch.split(tensors[name], nums) for name in ("boxes", "scores", "labels")]
    detections, first = [], 0
    for size, num, boxes, scores, labels in zip(sizes, nums, *rows, strict=True):
        counts = runs[first : first + num] if has_masks else []
        masks = tuple({"size": list(size), "counts": run} for run in counts)
        detections.append(Detected(boxes.numpy(), scores.numpy(), labels.numpy(), masks))
        first += num
    return detections, sizes


def precisions_by_class(
    detections: Sequence[Detected],
    objects_by_image: Sequence[Objects],
    num_classes: int,
    thresholds: Sequence[float] = THRESHOLDS,
    eleven_points: bool = True,
) -> np.ndarray:
    """Compute the average precision of each class.

    A detection is of the object of its class and image that it overlaps most. It is right where the overlap (of areas,
    intersection over union) reaches the threshold and no better scored one has the object; it does not count where the
    object stands apart, and is wrong else.

    Args:
        detections, objects_by_image: lists, one for each image, in the same order.
        thresholds: T overlaps.
        eleven_points: the mean of the best precision at recalls 0, 0.1, ..., 1 or more, as VOC has it up to 2009; else
            the area below that curve.

    Returns:
        Shares float64 [T, K]; NaN of a class without objects.
    """
    matches = [_matched(*pair) for pair in zip(detections, objects_by_image, strict=True)]
    scores = np.concatenate([image.scores for image in detections])
    labels = np.concatenate([image.labels for image in detections])
    overlaps = np.concatenate([overlap for overlap, _ in matches])
    apart = np.concatenate([image.is_apart for image in objects_by_image])
    owners = np.concatenate([image.labels for image in objects_by_image])
    firsts = np.cumsum([0, *(len(image) for image in objects_by_image)])[:-1]
    # numbers among the objects of all images
    object_numbers = np.concatenate([first + number for first, (_, number) in zip(firsts, matches, strict=True)])
    apart_or_none = np.append(apart, False)  # images behind the last object have detections of no object
    precisions = np.full((len(thresholds), num_classes), math.nan)
    for label in range(num_classes):
        num_objects = int((~apart[owners == label]).sum())
        if not num_objects:
            continue
        rows = np.flatnonzero(labels == label)
        rows = rows[np.argsort(-scores[rows], kind="stable")]
        for number, threshold in enumerate(thresholds):
            reaches = overlaps[rows] >= threshold
            counts = ~(reaches & apart_or_none[object_numbers[rows]])
            is_right = _first_of_each(object_numbers[rows], reaches)[counts]
            precisions[number, label] = _average(is_right, num_objects, eleven_points)
    return precisions


def _matched(detected: Detected, objects: Objects) -> tuple[np.ndarray, np.ndarray]:
    """Return the largest overlap of each detection with an object of its class, and that object's number [D]; 0 and 0
    without one."""
    if not len(objects) or not len(detected.scores):
        return np.zeros(len(detected.scores)), np.zeros(len(detected.scores), np.int64)
    overlaps = box_iou(torch.from_numpy(detected.boxes).double(), torch.from_numpy(objects.boxes).double()).numpy()
    overlaps = np.where(detected.labels[:, None] == objects.labels, overlaps, 0.0)  # [D, M]
    best = overlaps.argmax(axis=1)
    return overlaps[np.arange(len(best)), best], best


def _first_of_each(objects: np.ndarray, reaches: np.ndarray) -> np.ndarray:
    """Return a mask of the detections, which are sorted by score, that are the first to reach their object."""
    is_first = np.zeros(len(objects), bool)
    rows = np.flatnonzero(reaches)
    # unique returns the first position of each object, which is that of its best detection
    is_first[rows[np.unique(objects[rows], return_index=True)[1]]] = True
    return is_first


def _average(is_right: np.ndarray, num_objects: int, eleven_points: bool) -> float:
    """Compute the average precision from hits, sorted by score."""
    right = np.cumsum(is_right)
    recall = right / num_objects
    precision = right / np.arange(1, len(right) + 1)
    best = np.maximum.accumulate(precision[::-1])[::-1]  # at this recall or more
    if eleven_points:
        points = np.searchsorted(recall, np.arange(11) / 10 - 1e-12)
        return float(np.append(best, 0.0)[points].mean())
    return float((np.diff(recall, prepend=0.0) * best).sum())
