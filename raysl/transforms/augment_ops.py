"""The operations that AutoAugment and RandAugment choose from, with torchvision's magnitudes.

Each equals torchvision's `RandAugment` on one image, with bilinear interpolation and black outside the image,
within the tolerance of the function that computes it.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from raysl.transforms import functional, functional_color
from raysl.transforms.functional import change_where
from raysl.transforms.random import Floats, Ints

OPS = (
    "identity",
    "shear_x",
    "shear_y",
    "translate_x",
    "translate_y",
    "rotate",
    "brightness",
    "color",
    "contrast",
    "sharpness",
    "posterize",
    "solarize",
    "autocontrast",
    "equalize",
    "invert",
)
"""Names of the operations; elsewhere an operation is its index in this tuple."""


def operation_values(ops: Ints, levels: Floats, signs: Floats, size: tuple[int, int]) -> Floats:
    """Return the value of each operation at a level: degrees, pixels, bits, a threshold or a factor minus 1.

    Args:
        ops: [...], indices into OPS.
        levels: [...], in [0, 1], from weakest to strongest.
        signs: [...], 1 or -1, for the operations that have two directions.
        size: height and width of the images.
    """
    height, width = size
    # shifts of AutoAugment reach 150 pixels of an image of 331, here as a share of the side
    strongest = np.array(
        [0.0, 0.3, 0.3, 150 / 331 * width, 150 / 331 * height, 30.0, 0.9, 0.9, 0.9, 0.9, 0.0, 0.0, 0.0, 0.0, 0.0]
    )
    values = strongest[ops] * levels * signs
    values = np.where((ops == OPS.index("translate_x")) | (ops == OPS.index("translate_y")), np.trunc(values), values)
    values = np.where(ops == OPS.index("posterize"), np.rint(8.0 - 4.0 * levels), values)
    return np.where(ops == OPS.index("solarize"), 1.0 - levels, values)


def apply_ops(images: Tensor, ops: Tensor, values: Tensor, fill: float) -> Tensor:
    """Run one operation after the other on each image.

    Args:
        images: float [B, C, H, W] in [0, 1], on any device.
        ops: int64 [B, S], indices into OPS, on the CPU.
        values: float64 [B, S], as returned by `operation_values`.
        fill: value of pixels that enter from outside the image.
    """
    for stage in range(ops.shape[1]):
        for number in sorted(set(ops[:, stage].tolist())):
            if number > 0:
                function = _FUNCTIONS[OPS[number]]
                images = change_where(
                    ops[:, stage] == number,
                    images,
                    lambda chosen, value, function=function: function(chosen, value, fill),
                    values[:, stage],
                )
    return images


def _affine(
    images: Tensor,
    fill: float,
    *,
    angle: Tensor | None = None,
    shift: Tensor | None = None,
    shear: Tensor | None = None,
) -> Tensor:
    """Turn by [B] degrees clockwise, shift by [B, 2] pixels, shear by [B, 2] degrees; `fill` comes in from outside."""
    # With a fill, the images are shifted so that 0, the value outside, stands for it.
    num = len(images)
    pair = torch.zeros(num, 2, dtype=torch.float64)
    moved = functional.affine(
        images - fill if fill else images,
        torch.zeros(num, dtype=torch.float64) if angle is None else angle,
        pair if shift is None else shift,
        torch.ones(num, dtype=torch.float64),
        pair if shear is None else shear,
    )
    return moved + fill if fill else moved


def _shear(images: Tensor, slopes: Tensor, fill: float, axis: int) -> Tensor:
    """Shift lines along an axis (0 is x) by `slopes` [B] of their distance from the image's upper left corner."""
    across = images.shape[-2 + axis]
    degrees = torch.tensor([math.degrees(math.atan(slope)) for slope in slopes.tolist()], dtype=torch.float64)
    shift, shear = torch.zeros(len(images), 2, dtype=torch.float64), torch.zeros(len(images), 2, dtype=torch.float64)
    shift[:, axis], shear[:, axis] = slopes * (-0.5 * across), degrees
    return _affine(images, fill, shift=shift, shear=shear)


def _translate(images: Tensor, pixels: Tensor, fill: float, axis: int) -> Tensor:
    shift = torch.zeros(len(images), 2, dtype=torch.float64)
    shift[:, axis] = pixels
    return _affine(images, fill, shift=shift)


def _every_image(images: Tensor) -> Tensor:
    return torch.ones(len(images), dtype=torch.bool)


_FUNCTIONS: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "shear_x": lambda images, value, fill: _shear(images, value, fill, 0),
    "shear_y": lambda images, value, fill: _shear(images, value, fill, 1),
    "translate_x": lambda images, value, fill: _translate(images, value, fill, 0),
    "translate_y": lambda images, value, fill: _translate(images, value, fill, 1),
    "rotate": lambda images, value, fill: _affine(images, fill, angle=-value),
    "brightness": lambda images, value, fill: functional.adjust_brightness(images, 1.0 + value),
    "color": lambda images, value, fill: functional.adjust_saturation(images, 1.0 + value),
    "contrast": lambda images, value, fill: functional.adjust_contrast(images, 1.0 + value),
    "sharpness": lambda images, value, fill: functional_color.adjust_sharpness(images, 1.0 + value),
    "posterize": lambda images, value, fill: functional_color.posterize(images, value.long()),
    "solarize": lambda images, value, fill: functional.solarize(images, value),
    "autocontrast": lambda images, value, fill: functional_color.autocontrast(images, _every_image(images)),
    "equalize": lambda images, value, fill: functional_color.equalize(images, _every_image(images)),
    "invert": lambda images, value, fill: functional_color.invert(images, _every_image(images)),
}
