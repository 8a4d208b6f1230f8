"""Antialiased resizing of boxes out of images in compiled loops.

The loops have the fixed-point arithmetic of torch for uint8 images, to the last bit: weights are rounded to 16 bits,
each row is resized before the columns are, and both passes round to 8 bits. For an image of 32 px the call of torch's
function takes longer than its arithmetic: small images are resized many in one call; a box of a large image is
resized in vector instructions, in three fifths of torch's time.
"""

from collections.abc import Sequence
from functools import cache
from typing import get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raysl.transforms import functional
from raysl.transforms.functional import Interpolation
from raysl.transforms.programs import HAS_KERNELS, LINE

Pixels = NDArray[np.uint8]

LARGEST = 96
"""Largest side of images and results, in pixels, for which the loop over many images is much faster than torch."""


def stack_small(images: Sequence[Tensor]) -> Pixels | None:
    """Return images uint8 [3, H, W] as [B, H, W, 3] if all have the same small size and the loop can resize them."""
    if not (HAS_KERNELS and images and images[0].shape[0] == 3 and max(images[0].shape) <= LARGEST):
        return None
    if any(image.shape != images[0].shape for image in images) or not equals_torch():
        return None
    stacked: Pixels = torch.stack([image.permute(1, 2, 0) for image in images]).numpy()
    return stacked


def resize_into(
    image: Tensor, top: int, left: int, height: int, width: int, interpolation: Interpolation, out: Tensor
) -> None:
    """Resize a box of an image uint8 [C, H, W] into `out` [C, S, S], with the bits of `functional.resized_crop`."""
    pixels = image.permute(1, 2, 0)
    can_compile = HAS_KERNELS and pixels.shape[2] == 3 and pixels.is_contiguous() and out.is_contiguous()
    # the loops check no position, so a box that leaves the image is cut to it by torch
    is_inside = min(top, left) >= 0 and top + height <= image.shape[1] and left + width <= image.shape[2]
    is_resized = (height, width) != (out.shape[1],) * 2 and min(height, width, out.shape[1]) >= LINE
    if can_compile and is_inside and is_resized:
        from raysl.transforms import box_kernels

        if equals_torch():
            is_cubic = interpolation == "bicubic"
            box_kernels.resize_box(pixels.numpy(), top, left, height, width, is_cubic, out.numpy())
            return
    copy_crop(functional.resized_crop(image, top, left, height, width, out.shape[1], interpolation), out)


def copy_crop(crop: Tensor, out: Tensor) -> None:
    """Copy a crop [C, S, S] into a batch, where channels are planes."""
    if HAS_KERNELS and crop.permute(1, 2, 0).is_contiguous() and out.is_contiguous() and crop.shape[0] == 3:
        from raysl.transforms import box_kernels

        # A resized crop has its pixels in a row; torch takes five times as long to part the channels.
        box_kernels.split_channels(crop.permute(1, 2, 0).numpy().reshape(-1), out.numpy().reshape(3, -1))
    else:
        out.copy_(crop)


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

    def equals(view: Pixels, number: int, interpolation: Interpolation) -> bool:
        y, x, height, width = boxes[number].tolist()
        pixels = torch.from_numpy(images[number]).permute(2, 0, 1)
        expected = functional.resized_crop(pixels, y, x, height, width, view.shape[1], interpolation)
        return torch.equal(expected, torch.from_numpy(view))

    for size in (7, 35, LARGEST):
        out = np.empty((num, 3, size, size), np.uint8)
        box_kernels.resize_boxes(images, boxes, out)
        if not all(equals(view, number, "bilinear") for number, view in enumerate(out)):
            return False
        for number in np.flatnonzero(boxes[:, 2:].min(axis=1) >= LINE).tolist():
            for interpolation in get_args(Interpolation) if size >= LINE else ():
                view = out[number]
                box_kernels.resize_box(images[number], *boxes[number], interpolation == "bicubic", view)
                if not equals(view, number, interpolation):
                    return False
    return True
