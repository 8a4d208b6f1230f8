"""RGB pixels of an image that Pillow has opened: transparency, palettes and more than 8 bits, strip by strip."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from raysl.config.background import Color

if TYPE_CHECKING:
    from PIL.Image import Image

STRIP_PIXELS = 1 << 20
"""Pixels that are converted at a time, so that intermediate copies stay small beside the result."""

_BIT_DEPTH = 24  # the offset of this byte in a PNG file


class CorruptImage(ValueError):
    """Raised for bytes that are not an image, or a damaged one."""


def rgb_pixels(file: "Image", background: Color | None, data: bytes = b"") -> np.ndarray:
    """Return the RGB pixels of an open image, uint8 [H, W, 3], without applying its orientation.

    16-bit values are divided by 256. 32-bit integers (TIFF) are read as 8-bit values if all are in [0, 255], else as
    16-bit values if all are in [0, 65535]; floats as shares of white if all are in [0, 1], else as 8-bit values if all
    are in [0, 255].

    Args:
        background: the colour behind transparent pixels; None keeps the stored colours and ignores transparency.

    Raises:
        CorruptImage: if the values are outside all these ranges.
    """
    convert = _converter(file, background, data)
    if file.width * file.height <= STRIP_PIXELS:
        return convert(file)
    pixels = np.empty((file.height, file.width, 3), np.uint8)
    num_rows = max(1, STRIP_PIXELS // file.width)
    for top in range(0, file.height, num_rows):
        bottom = min(file.height, top + num_rows)
        pixels[top:bottom] = convert(file.crop((0, top, file.width, bottom)))
    return pixels


def _converter(file: "Image", background: Color | None, data: bytes) -> "Callable[[Image], np.ndarray]":
    """Return the function that converts the image, or a strip of it, to RGB pixels."""
    key = file.info.get("transparency") if background is not None else None
    if file.mode == "F" or file.mode.startswith("I"):
        # found in the whole image once, so that all strips are scaled alike
        white = _find_white(file)
        return lambda strip: _convert_deep(strip, white, background, key)
    if background is None or not _has_alpha(file):
        return lambda strip: np.array(strip if strip.mode == "RGB" else strip.convert("RGB"))
    if file.format == "PNG" and key is not None:
        file.info["transparency"] = _scale_key(key, file.mode, data[_BIT_DEPTH])
    color = background
    return lambda strip: _blend(strip, color)


def _has_alpha(file: "Image") -> bool:
    return (
        file.mode in ("RGBA", "LA", "PA")
        or "transparency" in file.info
        or (file.mode == "P" and file.palette is not None and file.palette.mode.endswith("A"))
    )


def _blend(strip: "Image", background: Color) -> np.ndarray:
    """Return (alpha * colour + (255 - alpha) * background) / 255, rounded."""
    from PIL import Image

    canvas = Image.new("RGB", strip.size, background)
    foreground = strip if strip.mode == "RGBA" else strip.convert("RGBA")
    canvas.paste(foreground, mask=foreground)
    return np.array(canvas)


def _scale_key(key: object, mode: str, depth: int) -> object:
    """Scale the transparent colour of a PNG file to 8 bits as its pixels are; Pillow leaves it as it is stored."""
    if mode == "L" and isinstance(key, int) and depth in (2, 4):
        return key * 255 // (2**depth - 1)
    if mode == "RGB" and isinstance(key, tuple) and depth == 16:
        return tuple(value >> 8 for value in key)
    return key


def _find_white(file: "Image") -> int:
    """Return the value of white in an image of more than 8 bits."""
    if file.mode.startswith("I;16") or (file.mode == "I" and file.format != "TIFF"):
        return 65535
    low, high = file.getextrema()
    kind, whites = ("floats", (1, 255)) if file.mode == "F" else ("integers", (255, 65535))
    for white in whites:
        if low >= 0 and high <= white:  # type: ignore[operator]
            return white
    raise CorruptImage(
        f"32-bit {kind} from {low:g} to {high:g}; only [0, {whites[0]}] and [0, {whites[1]}] are understood; "
        "store it with 8 or 16 bits"
    )


def _convert_deep(strip: "Image", white: int, background: Color | None, key: object) -> np.ndarray:
    """Convert grey pixels of 16 or 32 bits."""
    samples = np.asarray(strip)
    if strip.mode == "F" and not np.isfinite(samples).all():
        raise CorruptImage("some values are not finite; store it with 8 or 16 bits")
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
