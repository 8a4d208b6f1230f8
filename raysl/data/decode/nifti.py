"""NIfTI files, whose headers nibabel reads: one image for each slice along the third axis."""

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, BinaryIO

import numpy as np

from raysl.data.decode.bands import Bands, WrongBands
from raysl.data.decode.frames import Frames, even_frames
from raysl.data.decode.pixels import CorruptImage
from raysl.data.decode.quiet import quiet_module

INSTALL = "NIfTI files are read by nibabel: pip install 'raysl[medical]'"
HEAD_BYTES = 544
"""Bytes from which the kind of a file and all of its header can be read."""
MOST_SLICES = 10_000_000
"""Slices of a file, whatever its header claims."""
_SIZES = (348, 540)  # bytes of the header of NIfTI 1 and 2, with which a file begins
_MARKS = {348: (344, b"n+1\0"), 540: (4, b"n+2\0")}
_PAIR = {348: (344, b"ni1\0"), 540: (4, b"ni2\0")}
_NO_EXTENSION = bytes(4)  # follows the header


def is_nifti(data: bytes) -> bool:
    """Whether a file is a NIfTI file, by its first bytes."""
    return _has_mark(data, _MARKS)


def find_slices(file: BinaryIO, num_bytes: int | None, is_gzip: bool = False) -> Frames:
    """Find the slices of a file from its header.

    Args:
        file: the file, decompressed; it stands at its beginning.
        num_bytes: length of the file; None if it is unknown.
        is_gzip: whether the stored file is compressed as a whole.

    Raises:
        CorruptImage: if it is damaged, or ends before its slices do.
    """
    header = _header(file.read(HEAD_BYTES))
    shape, first, dtype = _layout(header)
    num, size = math.prod(shape[2:]), shape[0] * shape[1] * dtype.itemsize
    if num > MOST_SLICES:
        raise CorruptImage(f"a NIfTI file that claims {num:,} slices; raysl reads up to {MOST_SLICES:,} of a file")
    if num_bytes is not None and first + num * size > num_bytes:
        raise CorruptImage(f"a NIfTI file that ends before its {num:,} slices do; is the download complete?")
    return even_frames(num, first, size, _head(header, shape), is_gzip)


def read_nifti(data: bytes, bands: Bands | None, check_size: Callable[[int, int, int], None]) -> np.ndarray:
    """Decode a NIfTI file of one slice to pixels uint8 [H, W] or, with `bands`, [H, W, 1].

    Rows are places along the file's second axis, columns along the first one. Values are those of the file by its slope
    and intercept.

    Args:
        bands: number of channels and range of values; None: values of 8 bits, as they are.
        check_size: takes height, width and bytes a pixel; raises CorruptImage if decoding would take too much memory.

    Raises:
        WrongBands: if nibabel is missing, or these values need a range.
        CorruptImage: if the file is damaged or has several slices.
    """
    header = _header(data)
    shape, first, dtype = _layout(header)
    if (num := math.prod(shape[2:])) > 1:
        raise CorruptImage(
            f"a NIfTI file of {num:,} slices; image_folder and file_list make each an image where the name of the file "
            "ends in .nii or .nii.gz, and raysl ingest stores them so"
        )
    width, height = shape[:2]
    # values as they are stored, those by slope and intercept in float64, and pixels
    check_size(height, width, dtype.itemsize + 17)
    if first + width * height * dtype.itemsize > len(data):
        raise CorruptImage("a NIfTI file that ends before its slice does; is the download complete?")
    # the first axis of a file is the one whose values follow each other
    samples = np.frombuffer(data, dtype, width * height, first).reshape(height, width)
    slope, intercept = _scale(header)
    if (slope, intercept) != (1.0, 0.0):
        samples = samples.astype(np.float64) * slope + intercept
    if samples.dtype != np.uint8 and (bands is None or bands.value_range is None):
        raise WrongBands(
            f"its values are {samples.dtype.newbyteorder('=')} from {_least(samples):g} to {_most(samples):g}"
            f"{_display(header)}, and the pipeline hands on 8 bits; set data.channels=1 and "
            "data.value_range=[low, high], the values that become 0 and 255"
        )
    return samples if bands is None else bands.to_uint8(samples)


def nifti_size(data: bytes) -> tuple[int, int]:
    """Return height and width from the header.

    Raises:
        CorruptImage: if it cannot be read.
    """
    shape, _, _ = _layout(_header(data))
    return shape[1], shape[0]


def without_text(data: bytes) -> bytes:
    """Return a NIfTI file of one slice with only the parts of its header that decide its pixels.

    So descriptions, names of files and extensions, which may name a patient, are left out.
    """
    header = _header(data)
    shape, first, dtype = _layout(header)
    return _head(header, shape) + data[first : first + shape[0] * shape[1] * dtype.itemsize]


def _has_mark(data: bytes, marks: dict[int, tuple[int, bytes]]) -> bool:
    size = next((size for size in _SIZES for order in ("little", "big") if data[:4] == size.to_bytes(4, order)), None)
    if size is None:
        return False
    position, mark = marks[size]
    return data[position : position + 4] == mark


def _header(data: bytes) -> Any:
    """Return the header of a file, by its first bytes."""
    nibabel = _nibabel()
    if nibabel is None:
        raise WrongBands(INSTALL)
    if _has_mark(data, _PAIR):
        raise CorruptImage("a NIfTI header whose values are in another file (.img); store one .nii file")
    if not is_nifti(data):
        raise CorruptImage(f"{len(data):,} bytes that are not a NIfTI file; they begin with {data[:8]!r}")
    kind = nibabel.Nifti1Header if data[344:348] == b"n+1\0" else nibabel.Nifti2Header
    with _parsing():
        # `_layout` checks what counts here; extensions, which hold texts, are not read
        return kind(data[: kind.sizeof_hdr], check=False)


def _layout(header: Any) -> tuple[tuple[int, ...], int, np.dtype[Any]]:
    """Return the sides of the volume, two or more, the offset of its values, and their type."""
    with _parsing():
        shape, dtype = tuple(int(side) for side in header.get_data_shape()), header.get_data_dtype()
        first = int(header.get_data_offset())
    if not 2 <= len(shape) <= 7 or min(shape) < 1:
        raise CorruptImage(f"a NIfTI file whose sides are {list(shape)}; raysl reads slices of two axes or more")
    if dtype.kind not in "iuf" or dtype.itemsize > 8:
        name = "colours" if dtype.names else dtype.name
        raise CorruptImage(f"a NIfTI file of {name}; raysl reads one number of up to 8 bytes a voxel")
    if first < header.sizeof_hdr:
        raise CorruptImage(f"a damaged NIfTI file: its values would begin at byte {first}, inside its header")
    return shape, first, dtype


def _scale(header: Any) -> tuple[float, float]:
    """Return slope and intercept of the values; 1 and 0 where the file scales none."""
    with _parsing():
        slope, intercept = header.get_slope_inter()
    return (1.0, 0.0) if slope is None else (float(slope), float(intercept))


def _head(header: Any, shape: tuple[int, ...]) -> bytes:
    """Return the beginning of a file of one slice, with type, scale and range of display, and nothing else."""
    with _parsing():
        head = type(header)(endianness=header.endianness)
        head.set_data_dtype(header.get_data_dtype())
        head.set_data_shape(shape[:2])
        for name in ("scl_slope", "scl_inter", "cal_min", "cal_max"):
            head[name] = header[name]
        head["vox_offset"] = head.sizeof_hdr + len(_NO_EXTENSION)
        return bytes(head.binaryblock) + _NO_EXTENSION


def _display(header: Any) -> str:
    """Return the range of display that a header names, for a message; empty without one."""
    low, high = float(header["cal_min"]), float(header["cal_max"])
    return f" (its header shows {low:g} to {high:g})" if high > low else ""


def _least(samples: np.ndarray) -> float:
    return float(np.fmin.reduce(samples, axis=None))


def _most(samples: np.ndarray) -> float:
    return float(np.fmax.reduce(samples, axis=None))


@contextmanager
def _parsing() -> Iterator[None]:
    """Make a CorruptImage of whatever nibabel raises for a damaged header."""
    try:
        yield
    except Exception as error:  # whatever a file holds
        raise CorruptImage(f"a damaged NIfTI file: {str(error).strip() or type(error).__name__}") from error


@cache
def _nibabel() -> Any:
    """Return the library with its warnings silenced, since whatever matters is raised; None where it is absent."""
    try:
        import nibabel
    except ImportError:
        return None
    quiet_module("nibabel")
    logging.getLogger("nibabel.global").setLevel(logging.CRITICAL)
    return nibabel
