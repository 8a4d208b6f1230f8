"""The compiled loops of `raysl.transforms.resized_boxes`."""

import numpy as np
from numpy.typing import NDArray

from raysl.transforms.kernels import Pixels, compiled
from raysl.transforms.vector_kernels import BLOCK, turn_block, weigh_lines

Ints = NDArray[np.int64]
Words = NDArray[np.int16]

ROWS = 128
"""Rows of a box that are resized at a time, so that they stay in the cache."""


@compiled
def resize_boxes(images: Pixels, boxes: Ints, out: Pixels) -> None:
    """Resize a box of each image to a square.

    Args:
        images: uint8 [B, H, W, 3].
        boxes: top, left, height and width in pixels, int64 [B, 4].
        out: uint8 [B, 3, S, S], is filled.
    """
    height, size = images.shape[1], out.shape[2]
    most = max(images.shape[1], images.shape[2]) + 2  # taps of one output pixel
    starts = np.empty((2, size), np.int64)
    counts = np.empty((2, size), np.int64)
    weights = np.empty((2, size, most), np.int32)
    floats = np.empty((size, most), np.float64)
    columns = np.empty((3, height, size), np.uint8)
    sums = np.empty(size, np.int32)
    for image in range(boxes.shape[0]):
        y, x = boxes[image, 0], boxes[image, 1]
        rows, width = boxes[image, 2], boxes[image, 3]
        shift = _weigh(width, size, False, starts[0], counts[0], floats, weights[0])
        half = np.int32(1 << (shift - 1))
        for row in range(rows):
            for column in range(size):
                red, green, blue = half, half, half
                first = x + starts[0, column]
                for tap in range(counts[0, column]):
                    weight = weights[0, column, tap]
                    red += weight * np.int32(images[image, y + row, first + tap, 0])
                    green += weight * np.int32(images[image, y + row, first + tap, 1])
                    blue += weight * np.int32(images[image, y + row, first + tap, 2])
                columns[0, row, column] = min(red >> shift, 255)
                columns[1, row, column] = min(green >> shift, 255)
                columns[2, row, column] = min(blue >> shift, 255)
        shift = _weigh(rows, size, False, starts[1], counts[1], floats, weights[1])
        half = np.int32(1 << (shift - 1))
        for channel in range(3):
            for row in range(size):
                for column in range(size):
                    sums[column] = half
                for tap in range(counts[1, row]):
                    weight = weights[1, row, tap]
                    above = starts[1, row] + tap
                    for column in range(size):
                        sums[column] += weight * np.int32(columns[channel, above, column])
                for column in range(size):
                    out[image, channel, row, column] = min(sums[column] >> shift, 255)


@compiled
def resize_box(image: Pixels, y: int, x: int, height: int, width: int, is_cubic: bool, out: Pixels) -> None:
    """Resize a box of an image to a square: first each row, then each column, as torch does.

    Rows are resized as columns of the transposed box: neighbours in memory have the same weights then.

    Args:
        image: uint8 [H, W, 3] of C layout.
        y, x, height, width: the box in pixels, all of it in the image; both sides are at least `LINE`.
        is_cubic: bicubic interpolation instead of bilinear.
        out: uint8 [3, S, S] of C layout, is filled; S is at least `LINE`.
    """
    size, num_columns, row_bytes = out.shape[1], 3 * width, 3 * image.shape[1]
    pixels, views = image.reshape(-1), out.reshape(-1)
    num_parts = (height + ROWS - 1) // ROWS
    num_rows = min(((height + num_parts - 1) // num_parts + BLOCK - 1) // BLOCK * BLOCK, height)
    # `weigh_lines` may read one line more
    columns = np.empty((num_columns + 3) * num_rows, np.uint8)
    resized = np.empty(3 * size * num_rows, np.uint8)
    planes = np.empty((3 * height + 1) * size, np.uint8)

    starts, counts, weights, digits = _words(width, size, is_cubic)
    for part in range(num_parts):
        top = min(part * num_rows, height - num_rows)
        first = (y + top) * row_bytes + 3 * x
        _transpose(pixels, first, row_bytes, num_rows, num_columns, columns, 0, num_rows)
        for channel in range(3):
            for column in range(size):
                weigh_lines(
                    columns,
                    (3 * starts[column] + channel) * num_rows,
                    3 * num_rows,
                    counts[column],
                    weights,
                    column * weights.shape[1],
                    digits,
                    resized,
                    (channel * size + column) * num_rows,
                    num_rows,
                )
            at = channel * size * num_rows
            _transpose(resized, at, num_rows, size, num_rows, planes, (channel * height + top) * size, size)

    starts, counts, weights, digits = _words(height, size, is_cubic)
    for channel in range(3):
        for row in range(size):
            first = (channel * height + starts[row]) * size
            at = (channel * size + row) * size
            weigh_lines(planes, first, size, counts[row], weights, row * weights.shape[1], digits, views, at, size)


@compiled
def _transpose(
    pixels: Pixels, first: int, step: int, num_rows: int, num_columns: int, out: Pixels, out_first: int, out_step: int
) -> None:
    """Transpose a rectangle of bytes, both sides of at least `BLOCK`; the last blocks overlap with those before."""
    for block_row in range(0, num_rows, BLOCK):
        row = min(block_row, num_rows - BLOCK)
        for block_column in range(0, num_columns, BLOCK):
            column = min(block_column, num_columns - BLOCK)
            turn_block(pixels, first + row * step + column, step, out, out_first + column * out_step + row, out_step)


@compiled
def _words(length: int, size: int, is_cubic: bool) -> tuple[Ints, Ints, Words, np.int32]:
    """Return the taps of `_weigh` with their weights in 16 bits, zeros behind them, and the binary digits."""
    most = _most_taps(length, size, is_cubic)
    starts, counts = np.empty(size, np.int64), np.empty(size, np.int64)
    floats, weights = np.empty((size, most), np.float64), np.zeros((size, most + most % 2), np.int16)
    digits = _weigh(length, size, is_cubic, starts, counts, floats, weights)
    return starts, counts, weights, np.int32(digits)


@compiled
def _most_taps(length: int, size: int, is_cubic: bool) -> int:
    return min(int(max(length / size, 1.0) * (4 if is_cubic else 2)) + 2, length)


@compiled
def split_channels(pixels: Pixels, out: Pixels) -> None:
    """Copy pixels in a row, uint8 [H * W * 3], to planes [3, H * W]."""
    for pixel in range(out.shape[1]):
        out[0, pixel] = pixels[3 * pixel]
        out[1, pixel] = pixels[3 * pixel + 1]
        out[2, pixel] = pixels[3 * pixel + 2]


@compiled
def _weigh(
    length: int,
    size: int,
    is_cubic: bool,
    starts: Ints,
    counts: Ints,
    floats: NDArray[np.float64],
    weights: NDArray[np.int32] | Words,
) -> int:
    """Fill the taps of each output pixel along one axis, from `length` to `size` pixels; return their binary digits."""
    scale = length / size
    stretch = max(scale, 1.0)
    support = stretch * (2.0 if is_cubic else 1.0)
    largest = 0.0
    for pixel in range(size):
        center = scale * (pixel + 0.5)
        start = max(int(center - support + 0.5), 0)
        count = min(int(center + support + 0.5), length) - start
        total = 0.0
        for tap in range(count):
            distance = abs((tap + start - center + 0.5) * (1.0 / stretch))
            floats[pixel, tap] = _cubic(distance) if is_cubic else max(1.0 - distance, 0.0)
            total += floats[pixel, tap]
        for tap in range(count):
            if total != 0.0:
                floats[pixel, tap] /= total
            largest = max(largest, floats[pixel, tap])
        starts[pixel], counts[pixel] = start, count
    # as many binary digits as keep the largest weight below 2**15
    digits = 0
    while digits < 22 and int(0.5 + largest * (1 << (digits + 1))) < 1 << 15:
        digits += 1
    for pixel in range(size):
        for tap in range(counts[pixel]):
            weight = floats[pixel, tap] * (1 << digits)
            weights[pixel, tap] = int(weight - 0.5) if weight < 0.0 else int(0.5 + weight)
    return digits


@compiled
def _cubic(distance: float) -> float:
    """Return the weight of a pixel at this distance: Keys' kernel with a = -0.5."""
    if distance < 1.0:
        return (1.5 * distance - 2.5) * distance * distance + 1.0
    if distance < 2.0:
        return ((-0.5 * distance + 2.5) * distance - 4.0) * distance + 2.0
    return 0.0
