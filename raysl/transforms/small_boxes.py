"""Antialiased bilinear resizing of boxes out of many small images, in one compiled loop.

For an image of 32 px the call of torch's function takes longer than its arithmetic: 27 microseconds a view where the
loop takes 5. The loop has the fixed-point arithmetic of torch for uint8 images, to the last bit: weights are rounded to
16 bits, each row is resized before the columns are, and both passes round to 8 bits.
"""

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raysl.transforms import functional
from raysl.transforms.programs import HAS_KERNELS

Pixels = NDArray[np.uint8]

LARGEST = 96
"""Largest side of images and results, in pixels, for which the loop is much faster than torch."""


def stack_small(images: Sequence[Tensor]) -> Pixels | None:
    """Return images uint8 [3, H, W] as [B, H, W, 3] if all have the same small size and the loop can resize them."""
    if not (HAS_KERNELS and images and images[0].shape[0] == 3 and max(images[0].shape) <= LARGEST):
        return None
    if any(image.shape != images[0].shape for image in images) or not equals_torch():
        return None
    stacked: Pixels = torch.stack([image.permute(1, 2, 0) for image in images]).numpy()
    return stacked


@cache
def equals_torch() -> bool:
    """Whether torch has the same result to the last bit for some boxes, on this processor and in this version."""
    from raysl.transforms import box_kernels

    random = np.random.default_rng(0)
    num = 24
    images = random.integers(0, 256, (num, LARGEST, LARGEST, 3), dtype=np.uint8)
    sides = random.integers(1, LARGEST + 1, (num, 2))
    sides[0] = LARGEST
    corners = random.integers(0, LARGEST + 1 - sides)
    boxes = np.concatenate([corners, sides], axis=1)
    for size in (7, 32, LARGEST):
        out = np.empty((num, 3, size, size), np.uint8)
        box_kernels.resize_boxes(images, boxes, out)
        for image, (y, x, height, width), view in zip(images, boxes.tolist(), out, strict=True):
            pixels = torch.from_numpy(image).permute(2, 0, 1)
            expected = functional.resized_crop(pixels, y, x, height, width, size)
            if not torch.equal(expected, torch.from_numpy(view)):
                return False
    return True
