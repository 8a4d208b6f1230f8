"""Decoding of image files to RGB pixels, with limits on what a file may cost."""

import io
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from raysl.config.background import WHITE, Color
from raysl.data.decode.bands import TIFFS, Bands, WrongBands, is_array, read_array, read_tiff, stored_samples
from raysl.data.decode.dicom import dicom_size, read_dicom
from raysl.data.decode.dicom_header import is_dicom
from raysl.data.decode.fast_jpeg import USUAL, fast_decoder
from raysl.data.decode.gzipped import GZIP
from raysl.data.decode.jpeg import JpegHeader, read_header
from raysl.data.decode.nifti import is_nifti, nifti_size, read_nifti
from raysl.data.decode.pixels import CorruptImage as CorruptImage
from raysl.data.decode.pixels import rgb_pixels
from raysl.data.decode.quiet import quiet_libraries, quiet_module
from raysl.data.limits import MAX_PIXELS as MAX_PIXELS
from raysl.data.limits import max_pixels
from raysl.data.split import Encoded as Encoded
from raysl.data.split import Missing

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_BYTES = 3 << 29
"""Memory that decoding one image may take: its pixels, the decoder's buffers and the conversion to RGB."""
PALETTE_SHARE = 5
"""An image of a palette, such as a GIF, may have a fifth of the pixels: one colour takes next to no bytes."""
MAX_RATIO = 1000
"""Largest ratio of the sides: resizing the short side to 256 pixels allocates memory for the long one."""
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000")
"""Formats that Pillow may open; some of its other decoders start programs."""

FAST_BYTES = 1 << 13
"""JPEG files of at least this size are decoded by simplejpeg where it is installed; of smaller ones the call counts."""

_JPEG, _PNG = b"\xff\xd8", b"\x89PNG\r\n\x1a\n"
_PORTABLE = (b"P1", b"P2", b"P3", b"P4", b"P5", b"P6", b"Pf", b"PF")
_JPEG2000 = (b"\0\0\0\x0cjP  ", b"\xff\x4f\xff\x51")
MARKS = (_JPEG, _PNG, b"RIFF", b"GIF8", b"BM", *TIFFS, *_PORTABLE, *_JPEG2000)
"""Bytes with which a file of one of FORMATS begins."""
_PNG_EXIF = (b"eXIf", b"Raw profile type exif", b"XML:com.adobe.xmp")
_BROKEN = (OSError, ValueError, SyntaxError, EOFError, LookupError, TypeError, OverflowError, struct.error, zlib.error)

_BYTES_A_PIXEL = {"WEBP": 16, "TIFF": 12, "JPEG2000": 20}  # peak memory of `decode`, as measured
_BYTES_OTHERS, _BYTES_ONE_BAND, _BYTES_PROGRESSIVE = 8, 5, 16


def decode(image: Encoded, reduce: int = 1, background: Color | None = WHITE, bands: Bands | None = None) -> Tensor:
    """Decode an image to RGB pixels, uint8 [3, H, W], upright as its EXIF orientation says.

    With `bands`, its channels are taken as they are stored, uint8 [bands.num, H, W].

    Only the first frame of an animation is decoded. CMYK is taken to be inverted, as Adobe and nearly all others write
    it. Channels of more than 8 bits are scaled to 8, see `raysl.data.decode.pixels.rgb_pixels`.

    Args:
        image: an encoded file (JPEG, PNG, WebP, GIF, BMP, TIFF, PPM, JPEG 2000, DICOM, NIfTI of one slice), or pixels
            uint8 [H, W], [H, W, 3] or, with alpha, [H, W, 4]; None is a missing image.
        reduce: how many times smaller (1, 2, 4 or 8) a JPEG file is decoded, which is faster than decoding and
            resizing it; the sides are the stored ones divided by this, rounded up. Other formats allow only 1.
        background: the colour behind transparent pixels; None ignores transparency, as Pillow's `convert("RGB")` does.
        bands: number of channels and range of values; files may be numpy's too. Default: RGB.

    Raises:
        CorruptImage: if the bytes are missing, truncated or cannot be decoded, or exceed `max_pixels` or MAX_BYTES, or
            are of other channels than `bands`.
        ValueError: if `reduce` is not allowed for this image, see `can_reduce`.

    >>> decode(np.zeros((2, 3), np.uint8)).shape
    torch.Size([3, 2, 3])
    """
    if isinstance(image, Missing):
        raise CorruptImage(image.reason)
    if not isinstance(image, bytes | np.ndarray) or len(image) == 0:
        raise CorruptImage("no image: the entry is empty")
    if bands is not None:
        return _decode_bands(image, bands)
    is_jpeg = isinstance(image, bytes) and image[:2] == _JPEG
    if reduce != 1 and not (is_jpeg and reduce in (2, 4, 8)):
        raise ValueError(
            f"reduce={reduce}: a JPEG file can be decoded 1, 2, 4 or 8 times smaller, other images only in full"
        )
    if isinstance(image, np.ndarray):
        if image.shape[2:] == (4,):
            from PIL import Image

            return _pixels(Image.fromarray(image), background)
        pixels = torch.from_numpy(np.require(image, requirements=("C", "W")))
        return pixels.expand(3, *pixels.shape) if pixels.ndim == 2 else pixels.permute(2, 0, 1)
    if is_dicom(image) or is_nifti(image):
        return _decode_medical(image, None)
    return _decode_jpeg(image, reduce) if is_jpeg else _turn_upright(*_decode_by_pillow(image, background))


def can_reduce(image: Encoded) -> bool:
    """Whether `decode` accepts `reduce` for this image: a JPEG file with a valid header."""
    header = read_header(image) if isinstance(image, bytes) and image[:2] == _JPEG else None
    return header is not None and _size_problem(header.height, header.width, _bytes_per_jpeg_pixel(header)) is None


def image_size(image: Encoded) -> tuple[int, int]:
    """Return height and width of what `decode` returns, read from the header: microseconds for JPEG and most PNG files.

    Raises:
        CorruptImage: if the header cannot be read, or claims more than `max_pixels` or MAX_RATIO.
    """
    if isinstance(image, np.ndarray):
        return int(image.shape[0]), int(image.shape[1])
    if isinstance(image, Missing):
        raise CorruptImage(image.reason)
    if not image:
        raise CorruptImage("no image: the entry is empty")
    if image[:2] == _JPEG:
        height, width, orientation, *_ = _jpeg_header(image)
    elif _is_plain_png(image):
        height, width, orientation = *_png_size(image), 1
    elif is_dicom(image) or is_nifti(image):
        height, width = dicom_size(image) if is_dicom(image) else nifti_size(image)
        _check_size(height, width, 1)
        orientation = 1
    else:
        with open_image(image) as file:
            height, width, orientation = file.height, file.width, _read_orientation(file)
    return (width, height) if orientation >= 5 else (height, width)


@contextmanager
def open_image(data: bytes) -> "Iterator[Image]":
    """Open a file of one of FORMATS and of an allowed size with Pillow; every failure becomes a CorruptImage."""
    from PIL import Image, UnidentifiedImageError

    quiet_module("PIL")
    try:
        with quiet_libraries(), Image.open(io.BytesIO(data), formats=FORMATS) as file:
            _check_size(file.height, file.width, _bytes_per_pixel(file), file.mode == "P")
            yield file
    except CorruptImage:
        raise
    except UnidentifiedImageError as error:
        if data[: len(GZIP)] == GZIP:
            raise CorruptImage(
                "a file compressed by gzip; image_folder and file_list read .nii.gz, and raysl ingest stores its slices"
            ) from error
        raise CorruptImage(f"{len(data):,} bytes that are not an image; they begin with {data[:8]!r}") from error
    except (*_BROKEN, Image.DecompressionBombError) as error:
        raise CorruptImage(str(error) or type(error).__name__) from error


def _decode_jpeg(data: bytes, reduce: int) -> Tensor:
    height, width, orientation, _, sampling = _jpeg_header(data)
    if reduce > 1:
        return _turn_upright(_decode_reduced(data, -(-height // reduce), -(-width // reduce), reduce), orientation)
    try:
        with quiet_libraries():
            may_be_fast = sampling in USUAL and len(data) >= FAST_BYTES
            fast = fast_decoder(_torchvision())(data) if may_be_fast else None
            pixels = _torchvision()(torch.frombuffer(bytearray(data), dtype=torch.uint8)) if fast is None else fast
    except RuntimeError:  # Pillow reads some of these, and explains better why it cannot read the others
        pixels, _ = _decode_by_pillow(data, None)
    return pixels if orientation == 1 else _turn_upright(pixels, orientation)


def _decode_reduced(data: bytes, height: int, width: int, reduce: int) -> Tensor:
    """Decode with libjpeg's scaled inverse transform; Pillow chooses the scale, so its choice is checked."""
    with open_image(data) as file:
        # a shorter side would be asked for with 0 pixels
        if file.height >= reduce and file.width >= reduce:
            file.draft("RGB", (file.width // reduce, file.height // reduce))
        if file.size != (width, height):
            return _pixels(file.convert("RGB").reduce(reduce))
        return _pixels(file)


def _decode_by_pillow(data: bytes, background: Color | None) -> tuple[Tensor, int]:
    """Return pixels and their EXIF orientation.

    torchvision decodes PNG files faster, but damaged ones crash the process.
    """
    with open_image(data) as file:
        file.load()
        return _pixels(file, background, data), _read_orientation(file)


def _decode_bands(image: bytes | np.ndarray, bands: Bands) -> Tensor:
    """Return the channels of an image as they are stored, uint8 [C, H, W]."""
    if isinstance(image, bytes) and (is_dicom(image) or is_nifti(image)):
        return _decode_medical(image, bands)
    orientation = 1
    if isinstance(image, np.ndarray):
        samples = image
    elif is_array(image):
        samples = read_array(image, bands.num, MAX_BYTES)
    else:
        samples, orientation = _stored_samples(image, bands)
    height, width = samples.shape[:2]
    _check_size(height, width, (samples.dtype.itemsize + 17) * bands.num)
    pixels = np.require(bands.to_uint8(samples), requirements=("C", "W"))
    return _turn_upright(torch.from_numpy(pixels).permute(2, 0, 1), orientation)


def _decode_medical(data: bytes, bands: Bands | None) -> Tensor:
    """Return RGB pixels of a DICOM or NIfTI file, or with `bands` the channels that are stored, uint8 [C, H, W]."""
    read = read_dicom if is_dicom(data) else read_nifti
    pixels = torch.from_numpy(np.require(read(data, bands, _check_size), requirements=("C", "W")))
    if pixels.ndim == 3:
        return pixels.permute(2, 0, 1)
    return pixels.expand(3 if bands is None else 1, *pixels.shape)


def _stored_samples(data: bytes, bands: Bands) -> tuple[np.ndarray, int]:
    """Return the samples of a file [H, W] or [H, W, C], and their EXIF orientation."""
    is_tiff = data[:4] in TIFFS
    try:
        with open_image(data) as file:
            samples, orientation = stored_samples(file, data), _read_orientation(file)
    except CorruptImage:
        # Pillow opens only some kinds of TIFF, so tifffile is tried before one counts as damaged
        if not is_tiff:
            raise
        samples, orientation = None, 1
    if samples is None and is_tiff:
        return read_tiff(data, bands.num, MAX_BYTES), 1
    if samples is None:
        raise WrongBands("a PNG file of 16-bit colours, of which Pillow reads 8 bits; store a TIFF or an .npy file")
    return samples, orientation


def _pixels(file: "Image", background: Color | None = None, data: bytes = b"") -> Tensor:
    """Return the pixels of an open file [3, H, W], as they are stored."""
    return torch.from_numpy(rgb_pixels(file, background, data)).permute(2, 0, 1)


def _turn_upright(pixels: Tensor, orientation: int) -> Tensor:
    """Turn pixels [3, H, W] stored with an EXIF orientation upright."""
    # 5 to 8 are stored with their sides exchanged; `_MIRRORED` has the flips that follow the exchange
    if orientation >= 5:
        pixels = pixels.transpose(1, 2)
    axes = _MIRRORED[orientation]
    return pixels.flip(axes) if axes else pixels


_MIRRORED = {1: (), 2: (2,), 3: (1, 2), 4: (1,), 5: (), 6: (2,), 7: (1, 2), 8: (1,)}


def _read_orientation(file: "Image") -> int:
    if file.format == "TIFF":  # Pillow has turned the image already
        return 1
    value = file.getexif().get(0x0112, 1)
    return value if value in _MIRRORED else 1


def _jpeg_header(data: bytes) -> JpegHeader:
    header = read_header(data)
    if header is None:
        raise CorruptImage(f"a JPEG file of {len(data):,} bytes that ends before its image begins")
    _check_size(header.height, header.width, _bytes_per_jpeg_pixel(header))
    return header


def _bytes_per_pixel(file: "Image") -> int:
    if file.mode in ("1", "L", "P") and file.format != "JPEG2000":
        return _BYTES_ONE_BAND
    return _BYTES_A_PIXEL.get(file.format or "", _BYTES_OTHERS)


def _bytes_per_jpeg_pixel(header: JpegHeader) -> int:
    return _BYTES_PROGRESSIVE if header.is_progressive else _BYTES_OTHERS


def _is_plain_png(data: bytes) -> bool:
    """Whether a PNG file has no orientation, which may also follow its pixels."""
    return data[:8] == _PNG and not any(name in data for name in _PNG_EXIF)


def _png_size(data: bytes) -> tuple[int, int]:
    if len(data) < 33 or data[12:16] != b"IHDR":
        raise CorruptImage(f"a PNG file of {len(data):,} bytes that ends before its image begins")
    width, height = struct.unpack(">II", data[16:24])
    _check_size(height, width, _BYTES_OTHERS)
    return height, width


def _check_size(height: int, width: int, bytes_a_pixel: int, has_palette: bool = False) -> None:
    if problem := _size_problem(height, width, bytes_a_pixel, has_palette):
        raise CorruptImage(f"an image of {height} x {width} pixels{problem}")


def _size_problem(height: int, width: int, bytes_a_pixel: int, has_palette: bool = False) -> str | None:
    most = max_pixels() // PALETTE_SHARE if has_palette else max_pixels()
    if not 0 < height * width <= most:
        return f"; raysl reads 1 to {most:,} pixels{' of a palette' if has_palette else ''}"
    if max(height, width) > MAX_RATIO * min(height, width):
        return f"; raysl reads sides of up to {MAX_RATIO:,} to 1"
    if height * width * bytes_a_pixel > MAX_BYTES:
        limit = MAX_BYTES // bytes_a_pixel
        return f"; raysl reads up to {limit:,} in this format because decoding it needs much memory"
    return None


@cache
def _torchvision() -> Callable[[Tensor], Tensor]:
    """Return the decoder of JPEG files to RGB; importing torchvision takes long, so only when it is needed."""
    from torchvision.io import ImageReadMode

    # The operation behind `torchvision.io.decode_jpeg`, which warns in Python for every image: 4 of 27 microseconds.
    decoder: Callable[[Tensor, int, bool], Tensor] = torch.ops.image.decode_jpeg
    mode = int(ImageReadMode.RGB.value)
    return lambda data: decoder(data, mode, False)
