"""Average precision of boxes and masks on COCO, by pycocotools."""

import io
from collections.abc import Sequence
from contextlib import redirect_stdout
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from raysl.benchmarks.dense.average_precision import Detected
from raysl.benchmarks.dense.boxes import Objects
from raysl.errors import ConfigError


def tools() -> Any:
    """Import pycocotools."""
    try:
        import pycocotools.coco
        import pycocotools.cocoeval
        import pycocotools.mask
    except ImportError as error:
        raise ConfigError("layout=coco needs pycocotools: pip install -e '.[detection]' in raysl's folder") from error
    return pycocotools


def coco_precisions(
    detections: Sequence[Detected],
    objects: Sequence[Objects],
    sizes: Sequence[tuple[int, int]],
    num_classes: int,
    kind: Literal["bbox", "segm"],
) -> np.ndarray:
    """Compute precision at 10 overlaps from 0.5 to 0.95 and 101 recalls for each class.

    Returns:
        Shares float64 [10, 101, K, 4], of objects of all sizes, small (below 32 x 32 pixels), medium and large (from
        96 x 96 on); NaN of a class without objects.
    """
    coco = tools()
    with redirect_stdout(io.StringIO()):  # it prints as it goes
        truth = coco.coco.COCO()
        truth.dataset = _dataset(objects, sizes, num_classes, kind)
        truth.createIndex()
        results = _results(detections, kind)
        # loadRes fails on an empty list
        evaluation = coco.cocoeval.COCOeval(truth, truth.loadRes(results) if results else coco.coco.COCO(), kind)
        evaluation.params.imgIds = list(range(len(objects)))
        evaluation.params.catIds = list(range(num_classes))
        evaluation.evaluate()
        evaluation.accumulate()
    precision = np.asarray(evaluation.eval["precision"], np.float64)[..., -1]  # at most 100 an image
    return np.where(precision < 0, np.nan, precision)


def _dataset(
    objects_by_image: Sequence[Objects], sizes: Sequence[tuple[int, int]], num_classes: int, kind: str
) -> dict[str, Any]:
    notes: list[dict[str, Any]] = []
    for image, objects in enumerate(objects_by_image):
        for number, box in enumerate(objects.boxes):
            note = {
                "id": len(notes) + 1,  # 0 stands for no object there
                "image_id": image,
                "category_id": int(objects.labels[number]),
                "bbox": _corner_and_size(box),
                "area": float(objects.areas[number]),
                "iscrowd": int(objects.is_apart[number]),
            }
            notes.append(note | ({"segmentation": objects.segments[number]} if kind == "segm" else {}))
    return {
        "images": [{"id": image, "height": height, "width": width} for image, (height, width) in enumerate(sizes)],
        "annotations": notes,
        "categories": [{"id": label, "name": str(label)} for label in range(num_classes)],
    }


def _results(detections: Sequence[Detected], kind: str) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = []
    for image, detected in enumerate(detections):
        for number, (score, label) in enumerate(zip(detected.scores, detected.labels, strict=True)):
            shape: dict[str, Any] = (
                {"segmentation": detected.masks[number]}
                if kind == "segm"
                else {"bbox": _corner_and_size(detected.boxes[number])}
            )
            results.append({"image_id": image, "category_id": int(label), "score": float(score), **shape})
    return results


def _corner_and_size(box: np.ndarray) -> list[float]:
    """Return a box of COCO, left, top, width and height, from its edges [4]."""
    x, y, x_end, y_end = box.tolist()
    return [x, y, x_end - x, y_end - y]


def run_lengths(masks: Tensor, boxes: Tensor, size: tuple[int, int]) -> tuple[dict[str, object], ...]:
    """Encode the masks of an image's objects for pycocotools.

    Args:
        masks: shares in [0, 1] inside the boxes [D, 1, m, m].
        boxes: [D, 4], edges in pixels.
    """
    encode = tools().mask.encode
    encoded = []
    for mask, box in zip(masks, boxes, strict=True):  # one after another: all of them are large
        whole = pasted(mask[0], box, size) > 0.5
        # pycocotools takes masks in column order, bytes of 0 and 1
        encoded.append(encode(np.asfortranarray(whole.to(torch.uint8).numpy())))
    return tuple(encoded)


def pasted(mask: Tensor, box: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize a mask bilinearly into its box at the centres of the pixels; 0 outside of the box.

    torchvision's own cuts the edges of boxes to whole pixels, which small objects lose much by.

    Args:
        mask: shares in [0, 1] inside the box [m, m].
        box: [4], edges in pixels.
    """
    x_start, y_start, x_end, y_end = box
    x = (torch.arange(size[1]) + 0.5 - x_start) / (x_end - x_start).clamp(min=1e-6) * 2 - 1  # -1 and 1 at the edges
    y = (torch.arange(size[0]) + 0.5 - y_start) / (y_end - y_start).clamp(min=1e-6) * 2 - 1
    points = torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1).to(mask.dtype)  # [H, W, 2]
    values: Tensor = F.grid_sample(mask[None, None], points[None], mode="bilinear", align_corners=False)
    return values[0, 0]
