"""Images of any number of channels as they are stored: arrays, and TIFF and other files, not converted to RGB."""

import io
import math
import struct
import tokenize
import zipfile
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from raysl.config.schema import DataConfig
from raysl.data.decode.pixels import CorruptImage

if TYPE_CHECKING:
    from PIL.Image import Image

NPY, NPZ = b"\x93NUMPY", b"PK\x03\x04"
TIFFS = (b"II*\x00", b"MM\x00*", b"II+\x00", b"MM\x00+")
IMAGE = "image"
"""Name of the array of an .npz file that has several."""
EXPANDED = {"P": "RGB", "PA": "RGB", "YCbCr": "RGB", "La": "LA", "RGBa": "RGBA", "1": "L"}
"""Modes of Pillow whose stored values are no channels, and what they are converted to."""
_BITS, _SAMPLES = 258, 277  # tags of TIFF files


class WrongBands(CorruptImage):
    """Raised for an image that is whole, and of another number of channels or another type than the settings say."""


def bands_of(data: DataConfig) -> "Bands | None":
    """Return how the channels of these images are read; None for RGB."""
    return Bands(data.channels, data.value_range) if isinstance(data.channels, int) else None


BROKEN = (
    *(ValueError, TypeError, LookupError, EOFError, OSError, SyntaxError, OverflowError, MemoryError, RuntimeError),
    *(tokenize.TokenError, struct.error, zlib.error, zipfile.BadZipFile),
)
"""What numpy and zipfile raise for files that are damaged."""


@dataclass(frozen=True)
class Bands:
    """How images are read whose channels are taken as they are stored.

    Args:
        value_range: stored values that become 0 and 255; None takes 8-bit values as they are, and no others.
    """

    num: int
    value_range: tuple[float, float] | None = None

    def to_uint8(self, samples: np.ndarray) -> np.ndarray:
        """Return pixels uint8 [H, W, num] of samples [H, W] or [H, W, C] of any type of number.

        A value v becomes 255 (v - low) / (high - low), cut to [0, 255] and rounded.

        >>> Bands(1, (0, 1000)).to_uint8(np.array([[0, 500, 2000]], np.uint16))[0, :, 0]
        array([  0, 128, 255], dtype=uint8)

        Raises:
            WrongBands: if there are other channels, or these values need a range.
            CorruptImage: if some are not finite.
        """
        samples = samples[..., None] if samples.ndim == 2 else samples
        if samples.shape[2] != self.num:
            raise WrongBands(
                f"it has {samples.shape[2]} channels, and data.channels={self.num}; leave it out, or set data.channels "
                "to what all images have"
            )
        if self.value_range is None:
            if samples.dtype != np.uint8:
                raise WrongBands(
                    f"its values are {samples.dtype} from {samples.min():g} to {samples.max():g}, and the pipeline "
                    "hands on 8 bits; set data.value_range=[low, high], the values that become 0 and 255"
                )
            return samples
        low, high = self.value_range
        # float32 holds all values of up to 16 bits exactly; wider ones need float64
        shares: Any = samples.astype(np.float64 if samples.dtype.itemsize > 2 else np.float32)
        if samples.dtype.kind == "f" and not bool(np.isfinite(shares).all()):
            raise CorruptImage("some values are not finite; store numbers in their place, such as 0")
        shares = (shares - low) * (255.0 / (high - low))
        pixels: np.ndarray = np.rint(shares.clip(0.0, 255.0)).astype(np.uint8)
        return pixels


def is_array(data: bytes) -> bool:
    """Whether a file is one of numpy's, .npy or .npz, by its first bytes."""
    return data[:6] == NPY or data[:4] == NPZ


def read_array(data: bytes, num: int, most_bytes: int) -> np.ndarray:
    """Return the samples of an .npy or .npz file [H, W] or [H, W, C]; nothing in it is unpickled.

    Channels may be the last axis or the first one; where both have `num` entries, they are the last.

    Args:
        data: the file. An .npz file has one array, or one called `image`.
        num: expected number of channels.
        most_bytes: memory that the array may take.

    Raises:
        CorruptImage: if it is damaged, too large, or no array of two or three axes of numbers.
    """
    try:
        content = data if data[:6] == NPY else _member(data, most_bytes)
        samples = _parse(content)
    except CorruptImage:
        raise
    except BROKEN as error:
        raise CorruptImage(f"a damaged array: {error}") from error
    if samples.ndim not in (2, 3) or samples.dtype.kind not in "buif" or 0 in samples.shape:
        raise WrongBands(
            f"it is an array of {samples.dtype} {list(samples.shape)}; store numbers as [H, W], [H, W, {num}] or "
            f"[{num}, H, W]"
        )
    if samples.ndim == 3 and samples.shape[2] != num and samples.shape[0] == num:
        samples = samples.transpose(1, 2, 0)
    return samples.view(np.uint8) if samples.dtype == np.bool_ else samples


def _member(data: bytes, most_bytes: int) -> bytes:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        names = archive.namelist()
        name = names[0] if len(names) == 1 else f"{IMAGE}.npy"
        if name not in names:
            raise WrongBands(f"an .npz file of {', '.join(names[:5])}; store one array, or call it {IMAGE!r}")
        if archive.getinfo(name).file_size > most_bytes:
            raise CorruptImage(f"its array takes more than {most_bytes:,} bytes; cut it into smaller images")
        return archive.read(name)


def _parse(content: bytes) -> np.ndarray:
    """Return the array of an .npy file, whose header may claim any size."""
    file = io.BytesIO(content)
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, is_fortran, dtype = read(file)
    if dtype.hasobject:
        raise CorruptImage("an array of Python objects, which are not read; store numbers")
    # allocates nothing, and raises if the content is shorter than the header claims
    samples = np.frombuffer(content, dtype, count=math.prod(shape), offset=file.tell())
    return samples.reshape(shape, order="F" if is_fortran else "C")


def stored_samples(file: "Image", data: bytes = b"") -> np.ndarray | None:
    """Return the samples of a file that Pillow has opened [H, W] or [H, W, C]; None if Pillow would change them.

    A palette is expanded to RGB, and transparency is a channel.
    """
    mode = EXPANDED.get(file.mode, file.mode)
    if file.format == "TIFF":
        tags = file.tag_v2  # type: ignore[attr-defined]
        num, bits = int(tags.get(_SAMPLES, 1)), tags.get(_BITS, (1,))
        if num > 1 and (num != len(file.getbands()) or max(bits) > 8):
            return None
    # byte 24 of a PNG file is its bit depth; Pillow cuts 16-bit colours to 8 bits
    if file.format == "PNG" and data[24] == 16 and not file.mode.startswith("I"):
        return None
    file.load()
    return np.asarray(file if mode == file.mode else file.convert(mode))


def read_tiff(data: bytes, num: int, most_bytes: int) -> np.ndarray:
    """Return the samples of the first page of a TIFF file [H, W] or [H, W, C], by the library tifffile.

    Raises:
        CorruptImage: if it is damaged or too large, or tifffile is not installed or cannot decode it.
    """
    try:
        import tifffile
    except ImportError as error:
        raise WrongBands(
            "Pillow reads TIFF files of several channels with 8 bits and up to 4 of them; pip install 'raysl[tiff]', "
            "or store .npy files"
        ) from error
    try:
        with tifffile.TiffFile(io.BytesIO(data)) as file:
            series = file.series[0]
            if series.dtype is None or math.prod(series.shape) * series.dtype.itemsize > most_bytes:
                raise CorruptImage(f"{list(series.shape)} values take over {most_bytes:,} bytes; cut it into tiles")
            samples: np.ndarray = series.asarray()
    except CorruptImage:
        raise
    except Exception as error:  # of tifffile, imagecodecs and zlib, for whatever a file holds
        raise CorruptImage(f"tifffile cannot decode it: {error}") from error
    samples = samples.reshape([side for side in samples.shape if side != 1] or [1]) if samples.ndim > 3 else samples
    if samples.ndim not in (2, 3) or samples.dtype.kind not in "buif":
        raise WrongBands(f"it holds {samples.dtype} {list(samples.shape)}; store one image of {num} channels")
    return samples.transpose(1, 2, 0) if samples.ndim == 3 and samples.shape[2] != num == samples.shape[0] else samples
