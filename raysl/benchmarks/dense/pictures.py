"""Batches of a detector from images and boxes: resized, mirrored and padded to one size."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import override

from raysl.benchmarks.dense.boxes import BoxSplit, Objects
from raysl.benchmarks.dense.coco_scores import tools
from raysl.benchmarks.dense.maps import padded_sides
from raysl.config.schema import DataConfig
from raysl.data.batch import Batch
from raysl.data.stream.targets import TargetRecipe
from raysl.transforms import SampleRandom, network_input
from raysl.transforms.functional import Interpolation, resize

IMAGES, SIZES, BOXES, LABELS, MASKS = "image", "image.size", "image.boxes", "image.labels", "image.masks"
"""Names in batches of a detector, see `Detector`."""


@dataclass(frozen=True)
class Picture:
    """An input of a detector, with its objects.

    Args:
        image: normalised [3, h, w].
        boxes: float32 [M, 4] in its pixels.
        labels: int64 [M].
        masks: uint8 [M, h, w]; None where there are none.
        scale: width and height as shares of those of the file.
    """

    image: Tensor
    boxes: Tensor
    labels: Tensor
    masks: Tensor | None
    scale: tuple[float, float]


@dataclass(frozen=True)
class DetectorInput(TargetRecipe):
    """Makes a detector's input of images and their objects.

    Args:
        short_sides: short sides in pixels, of which training draws one and measurement takes the largest.
        long_side: most pixels of the long side.
        multiple: sides of batches are multiples of it.
    """

    data: DataConfig
    short_sides: tuple[int, ...]
    long_side: int
    multiple: int
    has_masks: bool

    @override
    def example(self, split: BoxSplit, index: int, random: SampleRandom) -> Picture:
        side = self.short_sides[int(random.integers(0, len(self.short_sides))[0])]
        picture = self._seen(split.image(index), split.objects[index], side, self.has_masks)
        if not random.bernoulli(0.5)[0]:
            return picture
        x_start, top, x_end, bottom = picture.boxes.unbind(1)
        width = picture.image.shape[2]
        return Picture(
            picture.image.flip(2),
            torch.stack([width - x_end, top, width - x_start, bottom], dim=1),
            picture.labels,
            None if picture.masks is None else picture.masks.flip(2),
            picture.scale,
        )

    def for_measuring(self, image: Tensor) -> Picture:
        """Resize an image uint8 [3, H, W] to the largest size, without objects."""
        none = Objects(np.zeros((0, 4), np.float32), np.zeros(0, np.int64), np.zeros(0, bool), np.zeros(0, np.float32))
        return self._seen(image, none, max(self.short_sides), False, self.data.eval_interpolation)

    def _seen(
        self, image: Tensor, objects: Objects, side: int, has_masks: bool, interpolation: Interpolation = "bilinear"
    ) -> Picture:
        height, width = image.shape[1:]
        factor = min(side / min(height, width), self.long_side / max(height, width))
        new_height, new_width = max(1, round(height * factor)), max(1, round(width * factor))
        resized = resize(image, new_height, new_width, interpolation)
        normal = network_input(resized, self.data.mean, self.data.std, self.data.channels)
        scale = new_width / width, new_height / height
        boxes = torch.from_numpy(objects.boxes) * torch.tensor([*scale, *scale])
        masks = None
        if has_masks:
            drawn = [drawn_mask(segment, height, width, (new_height, new_width)) for segment in objects.segments]
            masks = torch.stack(drawn)
        return Picture(normal, boxes, torch.from_numpy(objects.labels), masks, scale)

    @override
    def collate(self, examples: Sequence[Picture], index: Tensor) -> Batch:
        sizes = torch.tensor([picture.image.shape[1:] for picture in examples])  # [B, 2]
        height, width = padded_sides(int(sizes[:, 0].max()), int(sizes[:, 1].max()), self.multiple)
        most = max(1, *(len(picture.labels) for picture in examples))
        images = [_filled(picture.image, height, width) for picture in examples]
        extras = {
            SIZES: sizes,
            BOXES: torch.stack([_rows(picture.boxes, most, 0) for picture in examples]),
            LABELS: torch.stack([_rows(picture.labels, most, -1) for picture in examples]),
        }
        if all(picture.masks is not None for picture in examples):
            masks = [_filled(picture.masks, height, width) for picture in examples if picture.masks is not None]
            extras[MASKS] = torch.stack([_rows(one, most, 0) for one in masks])
        return Batch({IMAGES: torch.stack(images)[:, None]}, index, torch.full((len(index),), -1), extras=extras)


def drawn_mask(segment: Any, height: int, width: int, size: tuple[int, int]) -> Tensor:
    """Draw a mask of COCO at another size, uint8 of that size.

    Args:
        segment: polygons [[x, y, x, y, ...], ...] or run lengths, in pixels of the file.
    """
    masks = tools().mask
    if isinstance(segment, list):
        scale = np.array([size[1] / width, size[0] / height])
        polygons = [(np.reshape(polygon, (-1, 2)) * scale).flatten().tolist() for polygon in segment]
        return torch.from_numpy(masks.decode(masks.merge(masks.frPyObjects(polygons, *size))))
    # run lengths that are a list of numbers must be compressed before they are decoded
    runs = masks.frPyObjects(segment, height, width) if isinstance(segment["counts"], list) else segment
    mask = torch.from_numpy(masks.decode(runs))
    return F.interpolate(mask[None, None], size=size, mode="nearest-exact")[0, 0]


def _filled(values: Tensor, height: int, width: int) -> Tensor:
    """Pad planes [C, h, w] with zeros on the right and at the bottom to [C, height, width]."""
    return F.pad(values, (0, width - values.shape[2], 0, height - values.shape[1]))


def _rows(values: Tensor, num: int, fill: int) -> Tensor:
    """Pad rows [M, ...] to [num, ...]."""
    return torch.cat([values, values.new_full((num - len(values), *values.shape[1:]), fill)])
