"""Decoding of JPEG files by simplejpeg, where it is installed and has the pixels of torchvision."""

import io
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec

import numpy as np
import torch
from torch import Tensor

USUAL = (b"\x11\x11\x11", b"\x21\x11\x11", b"\x22\x11\x11")
"""Sampling factors of files whose pixels are compared: colours in full, at half the width, at half of both sides."""

Decoder = Callable[[bytes], Tensor | None]


@cache
def fast_decoder(reference: Callable[[Tensor], Tensor]) -> Decoder:
    """Return a decoder of JPEG files with sampling factors of `USUAL` to RGB pixels [3, H, W].

    It returns None for what it does not decode or what is damaged, and for everything where simplejpeg is missing or
    has other pixels than the reference for some files, on this processor and in these versions.

    Args:
        reference: the decoder of bytes, uint8 [N], whose pixels it must have.
    """
    if find_spec("simplejpeg") is None:
        return lambda data: None
    from simplejpeg import decode_jpeg

    def decode(data: bytes) -> Tensor | None:
        try:
            pixels: np.ndarray = decode_jpeg(data, "RGB")
        except ValueError:  # also for what libjpeg only warns of: the reference says what it makes of it
            return None
        return torch.from_numpy(pixels).permute(2, 0, 1)

    for data in _samples():
        pixels = decode(data)
        if pixels is None or not torch.equal(pixels, reference(torch.frombuffer(bytearray(data), dtype=torch.uint8))):
            return lambda data: None
    return decode


def _samples() -> Iterator[bytes]:
    """Yield small files with each of `USUAL`, sequential and progressive, with odd sides."""
    from PIL import Image

    random = np.random.default_rng(0)
    smooth = np.add.outer(np.arange(83), np.arange(101))[..., None] * np.array([1, 2, 3]) % 256
    pixels = (smooth + random.integers(0, 40, smooth.shape)).clip(0, 255).astype(np.uint8)
    for subsampling in (0, 1, 2):
        for is_progressive in (False, True):
            file = io.BytesIO()
            Image.fromarray(pixels).save(file, "JPEG", quality=90, subsampling=subsampling, progressive=is_progressive)
            yield file.getvalue()
