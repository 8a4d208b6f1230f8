"""From an image that Pillow has opened to RGB pixels: alpha, palettes and deep samples, strip by strip."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from raysl.config.background import Color
from raysl.data.decode.corrupt import CorruptImage

if TYPE_CHECKING:
    from PIL.Image import Image

STRIP_PIXELS = 1 << 20  # are converted at a time, so that copies take little memory beside the result

_BIT_DEPTH = 24  # where a PNG file has it


def rgb_pixels(file: "Image", background: Color | None, data: bytes = b"") -> np.ndarray:
    """RGB pixels of an open image, uint8 [H, W, 3], not turned.

    Samples of 16 bits are scaled by 1 / 256. Integers of 32 bits, in TIFF files, are taken as 8-bit values where all of
    them are in [0, 255], else as 16-bit values where all are in [0, 65535]; floats as shares of white where all are in
    [0, 1], else as 8-bit values where all are in [0, 255].

    Args:
        file: the image.
        background: what transparent pixels are blended with; None takes their colours as they are stored.
        data: the file's bytes, where it is one.

    Raises:
        CorruptImage: if its samples are in no range that is known.
    """
    convert = _converter(file, background, data)
    if file.width * file.height <= STRIP_PIXELS:
        return convert(file)
    pixels = np.empty((file.height, file.width, 3), np.uint8)
    for rows, strip in _strips(file):
        pixels[rows] = convert(strip)
    return pixels


def _strips(file: "Image") -> "Iterator[tuple[slice, Image]]":
    num_rows = max(1, STRIP_PIXELS // file.width)
    for top in range(0, file.height, num_rows):
        bottom = min(file.height, top + num_rows)
        yield slice(top, bottom), file.crop((0, top, file.width, bottom))


def _converter(file: "Image", background: Color | None, data: bytes) -> "Callable[[Image], np.ndarray]":
    """What makes RGB pixels of the image or of a strip of it."""
    key = file.info.get("transparency") if background is not None else None
    if file.mode == "F" or file.mode.startswith("I"):
        white = _white(file)
        return lambda strip: _deep(strip, white, background, key)
    if background is None or not _has_alpha(file):
        return lambda strip: np.array(strip if strip.mode == "RGB" else strip.convert("RGB"))
    if file.format == "PNG" and key is not None:
        file.info["transparency"] = _key_of_pixels(key, file.mode, data[_BIT_DEPTH])
    color = background
    return lambda strip: _blended(strip, color)


def _has_alpha(file: "Image") -> bool:
    return (
        file.mode in ("RGBA", "LA", "PA")
        or "transparency" in file.info
        or (file.mode == "P" and file.palette is not None and file.palette.mode.endswith("A"))
    )


def _blended(strip: "Image", background: Color) -> np.ndarray:
    """(alpha * colour + (255 - alpha) * background) / 255, rounded."""
    from PIL import Image

    on = Image.new("RGB", strip.size, background)
    seen = strip if strip.mode == "RGBA" else strip.convert("RGBA")
    on.paste(seen, mask=seen)
    return np.array(on)


def _key_of_pixels(key: object, mode: str, depth: int) -> object:
    """The transparent colour of a PNG file, which Pillow leaves as it is stored, in the 8 bits of the pixels."""
    if mode == "L" and isinstance(key, int) and depth in (2, 4):
        return key * 255 // (2**depth - 1)
    if mode == "RGB" and isinstance(key, tuple) and depth == 16:
        return tuple(value >> 8 for value in key)
    return key


def _white(file: "Image") -> int:
    """The value that stands for white in samples of more than 8 bits."""
    if file.mode.startswith("I;16") or (file.mode == "I" and file.format != "TIFF"):
        return 65535
    low, high = file.getextrema()
    kind, whites = ("floats", (1, 255)) if file.mode == "F" else ("integers", (255, 65535))
    for white in whites:
        if low >= 0 and high <= white:  # type: ignore[operator]
            return white
    raise CorruptImage(
        f"32-bit {kind} from {low:g} to {high:g}, and what stands for white is known in [0, {whites[0]}] "
        f"and [0, {whites[1]}] alone; store it with 8 or 16 bits"
    )


def _deep(strip: "Image", white: int, background: Color | None, key: object) -> np.ndarray:
    """Grey pixels of 16 or 32 bits."""
    samples = np.asarray(strip)
    if strip.mode == "F" and not np.isfinite(samples).all():
        raise CorruptImage("floats that are not finite; store it with 8 or 16 bits")
    if white == 1:
        gray = np.rint(samples * 255).astype(np.uint8)
    elif white == 255:
        gray = samples.astype(np.uint8)
    else:
        gray = (samples.astype(np.uint32) >> 8).astype(np.uint8)
    pixels = np.repeat(gray[..., None], 3, axis=2)
    if isinstance(key, int) and background is not None:
        pixels[samples == key] = background
    return pixels
