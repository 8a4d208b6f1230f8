"""Programs of compiled operations: their codes, and whether there is something that runs them."""

from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Program = tuple[NDArray[np.int64], NDArray[np.float64]]
"""What `raysl.transforms.kernels` does to each image: operations [B, S] and their numbers [B, S, 2]."""

NONE, FLIP, GRAYSCALE, SOLARIZE, BRIGHTNESS, CONTRAST, SATURATION, HUE, BLUR = range(9)
SHIFT, CHANNEL_CONTRAST, HSV_SATURATION = range(9, 12)
"""Operations. Their two numbers: none, none, none, (threshold), (factor) four times, (standard deviation, radius),
(factor) three times."""

HAS_KERNELS = find_spec("numba") is not None
"""Without numba, which compiles them, the tensor operations of `raysl.transforms.functional` do the same."""


def program_of(code: int, mask: Tensor, *values: Tensor) -> Program:
    """A program of one operation, on the images where `mask` [B] is true.

    Args:
        code: the operation.
        mask: bool [B].
        values: up to two numbers of the operation, [B] each.
    """
    codes = np.where(mask.numpy(), code, NONE)[:, None]  # [B, 1]
    numbers = np.zeros((len(codes), 1, 2))
    for place, value in enumerate(values):
        numbers[:, 0, place] = value.double().numpy()
    return codes, numbers
