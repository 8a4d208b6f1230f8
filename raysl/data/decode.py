"""Encoded images to pixels."""

import io

import numpy as np
import torch
from torch import Tensor


class CorruptImage(ValueError):
    """Bytes that are no image, or a broken one."""


def decode(image: bytes | np.ndarray | None) -> Tensor:
    """RGB pixels, uint8 [3, H, W].

    Args:
        image: an encoded file (what Pillow reads; JPEG through torchvision, which is faster), or pixels
            uint8 [H, W] or [H, W, 3]; None stands for an image that is missing.

    Raises:
        CorruptImage: if the bytes cannot be decoded, or there are none.
    """
    if not isinstance(image, bytes | np.ndarray) or len(image) == 0:
        raise CorruptImage("no image: the entry is empty")
    if isinstance(image, np.ndarray):
        pixels = torch.from_numpy(np.ascontiguousarray(image))
        return pixels.expand(3, *pixels.shape) if pixels.ndim == 2 else pixels.permute(2, 0, 1)
    return _decode_jpeg(image) if image[:2] == b"\xff\xd8" else _decode_other(image)


def _decode_jpeg(data: bytes) -> Tensor:
    from torchvision.io import ImageReadMode, decode_jpeg

    buffer = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    try:
        pixels: Tensor = decode_jpeg(buffer, mode=ImageReadMode.RGB, apply_exif_orientation=True)
    except RuntimeError:
        return _decode_other(data)  # CMYK and other rarities
    return pixels


def _decode_other(data: bytes) -> Tensor:
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(data)) as opened:
            turned = ImageOps.exif_transpose(opened)
            if turned.mode.startswith("I"):  # 16 bits a pixel: the conversion to RGB would clip instead of scale
                turned = Image.fromarray((np.asarray(turned).astype(np.uint32) >> 8).clip(0, 255).astype(np.uint8))
            pixels = np.array(turned.convert("RGB"))
    except UnidentifiedImageError as error:
        raise CorruptImage(f"{len(data):,} bytes that are no image; they begin with {data[:8]!r}") from error
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise CorruptImage(str(error)) from error
    return torch.from_numpy(pixels).permute(2, 0, 1)
