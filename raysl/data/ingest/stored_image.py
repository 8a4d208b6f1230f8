"""What is stored of an image: its own bytes, or a smaller or lossless file of its pixels."""

import io
from typing import Any

import numpy as np
from torch import Tensor
from torch.nn import functional as F

from raysl.config.background import WHITE, Color
from raysl.data.decode.decode import Encoded, decode


def to_store(image: Encoded, resize: int | None, quality: int, background: Color | None = WHITE) -> bytes:
    """The file to store of an image that can be decoded.

    Args:
        image: an encoded file or pixels, as a split gives them.
        resize: the short side that larger images are shrunk to, as JPEG files; None shrinks none.
        quality: of these files, 1 to 100.
        background: what transparent images are blended with in these files, see `decode`.

    Returns:
        The bytes of the file as they are, a PNG file of what came as pixels, or a JPEG file of what was shrunk.

    Raises:
        CorruptImage: if it cannot be decoded.
    """
    pixels = decode(image, background=background)
    if resize is not None and min(pixels.shape[1:]) > resize:
        small = shrunk(pixels, resize).permute(1, 2, 0).contiguous().numpy()  # [H, W, 3]
        return _encoded(small, "JPEG", quality=quality)
    return image if isinstance(image, bytes) else _encoded(np.ascontiguousarray(image), "PNG")


def shrunk(pixels: Tensor, side: int) -> Tensor:
    """Pixels uint8 [3, H, W] with a short side of `side`, by an antialiased bicubic filter; never larger."""
    height, width = pixels.shape[1:]
    short = min(height, width)
    if short <= side:
        return pixels
    size = [max(side, round(length * side / short)) for length in (height, width)]
    return F.interpolate(pixels[None], size, mode="bicubic", antialias=True)[0]


def _encoded(pixels: np.ndarray, kind: str, **options: Any) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **options)
    return buffer.getvalue()
