"""Programs of compiled operations: their codes, and whether numba is there to run them."""

from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Program = tuple[NDArray[np.int64], NDArray[np.float64]]
"""The operations [B, S] that `raysl.transforms.kernels` applies to each image, and their numbers [B, S, 2]."""

NONE, FLIP, GRAYSCALE, SOLARIZE, BRIGHTNESS, CONTRAST, SATURATION, HUE, BLUR = range(9)
SHIFT, CHANNEL_CONTRAST, HSV_SATURATION = range(9, 12)
"""Codes of operations. NONE, FLIP and GRAYSCALE take no numbers, SOLARIZE a threshold, BLUR a standard deviation and a
radius, and all others a factor."""

HAS_KERNELS = find_spec("numba") is not None
"""Whether numba is installed; without it the tensor operations of `raysl.transforms.functional` do the same."""
LINE = 32
"""Least pixels of a line, and so of the sides of a box and its result, that vector instructions resize."""


def single_operation(code: int, mask: Tensor, *values: Tensor) -> Program:
    """Make a program of one operation for the images where `mask` [B] is true.

    Args:
        code: the operation.
        mask: bool [B].
        values: up to two numbers of the operation, [B] each.
    """
    codes = np.where(mask.numpy(), code, NONE)[:, None]  # [B, 1]
    numbers = np.zeros((len(codes), 1, 2))
    for number, value in enumerate(values):
        numbers[:, 0, number] = value.double().numpy()
    return codes, numbers
