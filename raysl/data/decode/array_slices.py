"""Arrays of several slices in .npy files, each of which is an image."""

import io
from typing import Any, BinaryIO

import numpy as np

from raysl.data.decode.bands import BROKEN, NPY
from raysl.data.decode.frames import Frames, even_frames
from raysl.data.decode.pixels import CorruptImage


def find_array_slices(file: BinaryIO, num_bytes: int, num_channels: int) -> Frames:
    """Find the slices of an .npy file from its header.

    Of one channel, an array [S, H, W] has S slices, unless its first or last side is 1, as that of an image [H, W, 1].
    An array [S, H, W, C] has S slices of C channels. All others are one image, which is read whole.

    Args:
        file: the file; it stands at its beginning.
        num_bytes: length of the file.
        num_channels: expected number of channels.

    Raises:
        CorruptImage: if its slices are damaged or not stored one after another.
    """
    if file.read(len(NPY)) != NPY:
        return Frames(1)  # another format
    file.seek(0)
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, is_fortran, dtype = read(file)
    except BROKEN:
        return Frames(1)  # a damaged file, which is told when it is read
    is_stack = len(shape) == 4 and shape[3] == num_channels
    is_stack |= len(shape) == 3 and num_channels == 1 and 1 not in (shape[0], shape[2])
    if not is_stack or min(shape) < 1 or dtype.kind not in "buif":
        return Frames(1)
    if is_fortran:
        raise CorruptImage(
            f"an array {list(shape)} in Fortran's order, whose slices are not one after another; save "
            "np.ascontiguousarray(array)"
        )
    first, size = file.tell(), int(np.prod(shape[1:], dtype=object)) * dtype.itemsize
    if first + shape[0] * size > num_bytes:
        raise CorruptImage(f"an array that ends before its {shape[0]:,} slices do; is the download complete?")
    return even_frames(shape[0], first, size, _head(dtype, shape[1:]))


def _head(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Return the beginning of an .npy file with an array of this shape."""
    file = io.BytesIO()
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue()
