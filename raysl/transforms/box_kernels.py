"""The compiled loop of `raysl.transforms.small_boxes`."""

import numpy as np
from numpy.typing import NDArray

from raysl.transforms.kernels import Pixels, compiled

Ints = NDArray[np.int64]


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
        shift = _weigh(width, size, starts[0], counts[0], floats, weights[0])
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
        shift = _weigh(rows, size, starts[1], counts[1], floats, weights[1])
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
def split_channels(pixels: Pixels, out: Pixels) -> None:
    """Copy pixels in a row, uint8 [H * W * 3], to planes [3, H * W]."""
    for pixel in range(out.shape[1]):
        out[0, pixel] = pixels[3 * pixel]
        out[1, pixel] = pixels[3 * pixel + 1]
        out[2, pixel] = pixels[3 * pixel + 2]


@compiled
def _weigh(
    length: int, size: int, starts: Ints, counts: Ints, floats: NDArray[np.float64], weights: NDArray[np.int32]
) -> int:
    """Fill the taps of each output pixel along one axis, from `length` to `size` pixels; return their binary digits."""
    scale = length / size
    support = max(scale, 1.0)
    largest = 0.0
    for pixel in range(size):
        center = scale * (pixel + 0.5)
        start = max(int(center - support + 0.5), 0)
        count = min(int(center + support + 0.5), length) - start
        total = 0.0
        for tap in range(count):
            distance = abs((tap + start - center + 0.5) * (1.0 / support))
            floats[pixel, tap] = max(1.0 - distance, 0.0)
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
            weights[pixel, tap] = int(0.5 + floats[pixel, tap] * (1 << digits))
    return digits
