"""Compiled loops over the pixels of images, for CPUs: `raysl.transforms.functional` several times faster.

A chain of transforms becomes a *program* for each image, rows of (operation, two numbers): see
`raysl.transforms.programs`. An image is read once, passes through its whole program while it is in the cache, and is
written once. No operation reads another image or splits its sums among threads, so an image's result is the same to the
last bit in any batch.

Numba compiles the loops when they are first called and keeps them in its cache on disk. They release Python's lock.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from raysl.transforms import programs
from raysl.transforms.vector_kernels import ALIGNED, FLOATS, SUMS, normalize_line, weigh_neighbors

Pixels = NDArray[np.uint8]
Planes = NDArray[np.float32]
Line = NDArray[np.float32]
Values = NDArray[np.float64]

_BLUR_ROWS = SUMS // FLOATS  # blurred at a time: few, for the nearest cache, and at least SUMS values at any width
LARGE_BYTES = 1 << 24
"""Least bytes of a result that is written past the caches: more than most caches hold for a core."""
_LANES = 64  # partial sums of a mean, added up at the end in a fixed order
_SMALL = np.float32(1e-20)
_ZERO, _ONE, _THREE, _LEVELS = (np.float32(value) for value in (0, 1, 3, 255))
# The product of a level and _COARSE is exact, so a sum of two products is rounded once: the bits of level / 255.
_COARSE = np.float32(round(2**23 / 255) / 2**23)
_REST = np.float32(1 / 255 - float(_COARSE))
_RED, _GREEN, _BLUE = np.float32(0.2989), np.float32(0.587), np.float32(0.114)


def compiled(function: Callable[..., Any]) -> Any:
    """Compile a function that releases Python's lock, and keep the result on disk where that is allowed."""
    try:
        return njit(nogil=True, cache=True, error_model="numpy")(function)
    except RuntimeError:  # neither the package's folder nor the user's can be written to: compile in each process
        return njit(nogil=True, error_model="numpy")(function)


@compiled
def run(images: Pixels, rows: NDArray[np.int64], codes: NDArray[np.int64], values: Values, out: Pixels) -> None:
    """Run the programs of some uint8 images.

    Args:
        images: uint8 [N, 3, H, W].
        rows: indices of the images to change, int64 [B].
        codes: operations in their order, int64 [B, S].
        values: the operations' numbers, float64 [B, S, 2].
        out: uint8 [N, 3, H, W], its `rows` are filled; it may be `images` itself.
    """
    height, width = images.shape[2], images.shape[3]
    planes = np.empty((3, height * width), np.float32)
    for image in range(rows.size):
        if codes.shape[1] > 0 and codes[image, 0] == programs.FLIP:
            _load_mirrored(images[rows[image]], planes)
            _steps(planes, width, codes[image, 1:], values[image, 1:])
        else:
            _load(images[rows[image]], planes)
            _steps(planes, width, codes[image], values[image])
        _store(planes, out[rows[image]])


@compiled
def run_in_place(images: Planes, codes: NDArray[np.int64], values: Values) -> None:
    """Run the programs of all float32 images [B, 3, H, W] in [0, 1]; codes and values as in `run`."""
    height, width = images.shape[2], images.shape[3]
    for image in range(images.shape[0]):
        _steps(images[image].reshape((3, height * width)), width, codes[image], values[image])


@compiled
def _steps(planes: Planes, width: int, codes: NDArray[np.int64], values: Values) -> None:
    """Run one image's program on its planes [3, H * W]."""
    for step in range(codes.size):
        code, first, second = codes[step], values[step, 0], values[step, 1]
        if code == programs.FLIP:
            _flip(planes, width)
        elif code == programs.GRAYSCALE:
            _grayscale(planes)
        elif code == programs.SOLARIZE:
            _solarize(planes, np.float32(first))
        elif code == programs.BRIGHTNESS:
            _blend(planes, _ZERO, first)
        elif code == programs.CONTRAST:
            _blend(planes, _mean_luma(planes), first)
        elif code == programs.SATURATION:
            _saturate(planes, first)
        elif code == programs.SHIFT:
            _shift(planes, np.float32(first - 1.0))
        elif code == programs.CHANNEL_CONTRAST:
            _blend_channels(planes, first)
        elif code == programs.HSV_SATURATION:
            _saturate_hsv(planes, np.float32(first))
        elif code == programs.HUE:
            _turn_hue(planes, first * 6.0)
        elif code == programs.BLUR:
            _blur(planes, width, first, int(second))


def can_stream(images: Pixels, out: Planes) -> bool:
    """Whether `normalize_large` can and should fill `out` from these images [N, C, H, W]."""
    is_aligned = out.ctypes.data % ALIGNED == 0 and images.shape[2] * images.shape[3] % FLOATS == 0
    return images.flags.c_contiguous and is_aligned and out.nbytes >= LARGE_BYTES


@compiled
def normalize(images: Pixels, shift: Planes, scale: Planes, out: Planes) -> None:
    """(images / 255 - shift) / scale of uint8 [N, C, H, W] into float32 [N, C, H, W], with shift and scale [C]."""
    for image in range(images.shape[0]):
        for channel in range(images.shape[1]):
            mean, std = shift[channel], scale[channel]
            for row in range(images.shape[2]):
                for column in range(images.shape[3]):
                    level = np.float32(images[image, channel, row, column])
                    out[image, channel, row, column] = (level * _COARSE + level * _REST - mean) / std


@compiled
def normalize_large(images: Pixels, shift: Planes, scale: Planes, out: Planes) -> None:
    """`normalize`, to the same bits, for images of C layout whose planes are multiples of `FLOATS` pixels, where `out`
    begins at a multiple of `ALIGNED` bytes and is too large for a cache.
    """
    num_pixels = images.shape[2] * images.shape[3]
    levels, values = images.reshape(-1), out.reshape(-1)
    for image in range(images.shape[0]):
        for channel in range(images.shape[1]):
            first = (image * images.shape[1] + channel) * num_pixels
            normalize_line(levels, first, values, num_pixels, _COARSE, _REST, shift[channel], scale[channel])


@compiled
def _load(image: Pixels, planes: Planes) -> None:
    height, width = image.shape[1], image.shape[2]
    for channel in range(3):
        for row in range(height):
            for column in range(width):
                level = np.float32(image[channel, row, column])
                planes[channel, row * width + column] = level * _COARSE + level * _REST


@compiled
def _load_mirrored(image: Pixels, planes: Planes) -> None:
    height, width = image.shape[1], image.shape[2]
    last = np.uint64(width - 1)  # unsigned: a difference that might be negative would keep the loop from SIMD
    for channel in range(3):
        for row in range(height):
            for column in range(np.uint64(width)):
                level = np.float32(image[channel, row, last - column])
                planes[channel, row * width + column] = level * _COARSE + level * _REST


@compiled
def _store(planes: Planes, image: Pixels) -> None:
    height, width = image.shape[1], image.shape[2]
    for channel in range(3):
        for row in range(height):
            for column in range(width):
                value = min(max(planes[channel, row * width + column], _ZERO), _ONE)
                image[channel, row, column] = np.uint8(np.int32(np.rint(value * _LEVELS)))


@compiled
def _flip(planes: Planes, width: int) -> None:
    for channel in range(3):
        for start in range(0, planes.shape[1], width):
            for column in range(width // 2):
                first, last = start + column, start + width - 1 - column
                planes[channel, first], planes[channel, last] = planes[channel, last], planes[channel, first]


@compiled
def _luma(planes: Planes, pixel: int) -> Any:
    return _RED * planes[0, pixel] + _GREEN * planes[1, pixel] + _BLUE * planes[2, pixel]


@compiled
def _grayscale(planes: Planes) -> None:
    for pixel in range(planes.shape[1]):
        grey = _luma(planes, pixel)
        planes[0, pixel] = grey
        planes[1, pixel] = grey
        planes[2, pixel] = grey


@compiled
def _solarize(planes: Planes, threshold: np.float32) -> None:
    for channel in range(3):
        for pixel in range(planes.shape[1]):
            value = planes[channel, pixel]
            # a choice between value and _ONE - value would only store the latter, and keep the loop from SIMD
            base, sign = (_ONE, -_ONE) if value >= threshold else (_ZERO, _ONE)
            planes[channel, pixel] = base + sign * value


@compiled
def _blend(planes: Planes, other: np.float32, factor: float) -> None:
    """factor * planes + (1 - factor) * other, clamped."""
    share, rest = np.float32(factor), np.float32(1.0 - factor) * other
    for channel in range(3):
        for pixel in range(planes.shape[1]):
            planes[channel, pixel] = min(max(planes[channel, pixel] * share + rest, _ZERO), _ONE)


@compiled
def _saturate(planes: Planes, factor: float) -> None:
    share, rest = np.float32(factor), np.float32(1.0 - factor)
    for pixel in range(planes.shape[1]):
        grey = rest * _luma(planes, pixel)
        planes[0, pixel] = min(max(planes[0, pixel] * share + grey, _ZERO), _ONE)
        planes[1, pixel] = min(max(planes[1, pixel] * share + grey, _ZERO), _ONE)
        planes[2, pixel] = min(max(planes[2, pixel] * share + grey, _ZERO), _ONE)


@compiled
def _shift(planes: Planes, amount: np.float32) -> None:
    for channel in range(3):
        for pixel in range(planes.shape[1]):
            planes[channel, pixel] = min(max(planes[channel, pixel] + amount, _ZERO), _ONE)


@compiled
def _blend_channels(planes: Planes, factor: float) -> None:
    """factor * planes + (1 - factor) * the mean of the plane, clamped."""
    share = np.float32(factor)
    for channel in range(3):
        rest = np.float32(1.0 - factor) * _mean(planes[channel])
        for pixel in range(planes.shape[1]):
            planes[channel, pixel] = min(max(planes[channel, pixel] * share + rest, _ZERO), _ONE)


@compiled
def _saturate_hsv(planes: Planes, factor: np.float32) -> None:
    for pixel in range(planes.shape[1]):
        red, green, blue = planes[0, pixel], planes[1, pixel], planes[2, pixel]
        highest, lowest = max(max(red, green), blue), min(min(red, green), blue)
        share = min(factor, highest / max(highest - lowest, _SMALL))
        planes[0, pixel] = min(max(highest - share * (highest - red), _ZERO), _ONE)
        planes[1, pixel] = min(max(highest - share * (highest - green), _ZERO), _ONE)
        planes[2, pixel] = min(max(highest - share * (highest - blue), _ZERO), _ONE)


@compiled
def _mean(plane: NDArray[np.float32]) -> np.float32:
    num_pixels = plane.size
    sums = np.zeros(_LANES, np.float32)
    whole = num_pixels - num_pixels % _LANES
    for start in range(0, whole, _LANES):
        for lane in range(_LANES):
            sums[lane] += plane[start + lane]
    total = 0.0
    for lane in range(_LANES):
        total += sums[lane]
    for pixel in range(whole, num_pixels):
        total += plane[pixel]
    return np.float32(total / num_pixels)


@compiled
def _mean_luma(planes: Planes) -> np.float32:
    num_pixels = planes.shape[1]
    sums = np.zeros(_LANES, np.float32)
    whole = num_pixels - num_pixels % _LANES
    for start in range(0, whole, _LANES):
        for lane in range(_LANES):
            sums[lane] += _luma(planes, start + lane)
    total = 0.0
    for lane in range(_LANES):
        total += sums[lane]
    for pixel in range(whole, num_pixels):
        total += _luma(planes, pixel)
    return np.float32(total / num_pixels)


@compiled
def _turn_hue(planes: Planes, turn: float) -> None:
    """Turn the hue by `turn` sixths of a circle, see `raysl.transforms.few_passes.turn_hue`."""
    to_red, to_green, to_blue = (
        np.float32((turn + 3.0) % 6.0 - 3.0),
        np.float32((turn + 1.0) % 6.0 - 3.0),
        np.float32((turn - 1.0) % 6.0 - 3.0),
    )
    for pixel in range(planes.shape[1]):
        red, green, blue = planes[0, pixel], planes[1, pixel], planes[2, pixel]
        highest, lowest = max(max(red, green), blue), min(min(red, green), blue)
        chroma = highest - lowest
        hue = (green + blue - red) + highest - lowest - lowest
        hue = hue if green >= blue else -hue
        far, base = _THREE * chroma, lowest - chroma
        planes[0, pixel] = min(max(abs(far - abs(hue + chroma * to_red)) + base, lowest), highest)
        planes[1, pixel] = min(max(abs(far - abs(hue + chroma * to_green)) + base, lowest), highest)
        planes[2, pixel] = min(max(abs(far - abs(hue + chroma * to_blue)) + base, lowest), highest)


@compiled
def _blur(planes: Planes, width: int, sigma: float, radius: int) -> None:
    """Down the columns, then along the rows, of the image in a frame of its reflection, a few rows at a time."""
    weights = _gaussian(sigma, radius)  # [reach + 1]
    reach = weights.size - 1
    height = planes.shape[1] // width
    # all rows of the frame begin at aligned positions, and all turns have as many rows
    stride = (width + 2 * reach + FLOATS - 1) // FLOATS * FLOATS
    num_turns = (height + _BLUR_ROWS - 1) // _BLUR_ROWS
    framed = _aligned_zeros((num_turns * _BLUR_ROWS + 2 * reach) * stride)
    rows = _aligned_zeros(_BLUR_ROWS * stride)
    columns = _aligned_zeros(rows.size + 2 * reach)
    for channel in range(3):
        plane = planes[channel]
        _frame(plane, width, reach, stride, framed)
        for top in range(0, height, _BLUR_ROWS):
            weigh_neighbors(framed, (top + reach) * stride, stride, weights, reach, columns, rows.size)
            weigh_neighbors(columns, reach, 1, weights, reach, rows, rows.size)
            for row in range(min(_BLUR_ROWS, height - top)):
                _copy(rows[row * stride :], plane[(top + row) * width : (top + row + 1) * width])


@compiled
def _aligned_zeros(num: int) -> Line:
    values = np.zeros(num + FLOATS, np.float32)
    first = -values.ctypes.data // 4 % FLOATS
    return values[first : first + num]


@compiled
def _frame(plane: Line, width: int, reach: int, stride: int, framed: Line) -> None:
    """Copy a plane [H * W] into the middle of H + 2 * reach rows of W + 2 * reach values, and reflect it around."""
    height = plane.size // width
    for row in range(height):
        line = framed[(row + reach) * stride : (row + reach + 1) * stride]
        _copy(plane[row * width :], line[reach : reach + width])
        for distance in range(1, reach + 1):
            line[reach - distance] = line[reach + distance]
            line[reach + width - 1 + distance] = line[reach + width - 1 - distance]
    first, last = reach, reach + height - 1
    for distance in range(1, reach + 1):
        above, below = (first - distance) * stride, (last + distance) * stride
        _copy(framed[(first + distance) * stride :], framed[above : above + stride])
        _copy(framed[(last - distance) * stride :], framed[below : below + stride])


@compiled
def _copy(values: Line, out: Line) -> None:
    for n in range(out.size):
        out[n] = values[n]


@compiled
def _gaussian(sigma: float, radius: int) -> Planes:
    """Return weights at distances 0 to `radius` of a kernel that sums to 1, without those too small for float32."""
    weights = np.empty(radius + 1)
    for distance in range(radius + 1):
        weights[distance] = math.exp(-0.5 * (distance / sigma) ** 2)
    weights /= 2.0 * weights.sum() - 1.0
    reach = radius
    while reach > 1 and weights[reach] < 1e-9:
        reach -= 1
    return weights[: reach + 1].astype(np.float32)
