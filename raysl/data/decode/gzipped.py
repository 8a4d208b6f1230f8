"""Parts of a file that is compressed by gzip, which can be read from its beginning only."""

import gzip
import zlib
from typing import BinaryIO

import numpy as np

from raysl.data.decode.pixels import CorruptImage
from raysl.data.split import Missing
from raysl.hashing import Int64s

GZIP = b"\x1f\x8b"
"""Bytes with which such a file begins."""
_BROKEN = (EOFError, zlib.error, gzip.BadGzipFile)


def inflated_head(file: BinaryIO, num: int) -> bytes:
    """Return the first bytes of a file's content, fewer where it has less.

    Args:
        file: the compressed file; it stands at its beginning.

    Raises:
        CorruptImage: if it is damaged before they end.
    """
    try:
        with gzip.GzipFile(fileobj=file) as content:
            return content.read(num)
    except _BROKEN as error:
        raise CorruptImage(f"a damaged gzip file: {error}") from error


def read_inflated(file: BinaryIO, offsets: Int64s, sizes: Int64s) -> list[bytes | Missing]:
    """Return parts of a file's content, decompressed once up to the last of them; only the parts are kept.

    Parts behind a damaged place are Missing.

    Args:
        file: the compressed file; it stands at its beginning.
        offsets, sizes: int64 [N], where each part lies in the content, in any order.
    """
    parts: list[bytes | Missing] = [Missing("")] * len(offsets)
    part: bytes | Missing = b""
    last = (-1, -1)
    with gzip.GzipFile(fileobj=file) as content:
        for number in np.argsort(offsets, kind="stable").tolist():
            place = (int(offsets[number]), int(sizes[number]))
            if place != last and not isinstance(part, Missing):
                part, last = _read(content, *place), place
            parts[number] = part
    return parts


def _read(content: gzip.GzipFile, offset: int, size: int) -> bytes | Missing:
    try:
        content.seek(offset)
        part = content.read(size)
    except _BROKEN as error:
        return Missing(f"a damaged gzip file: {error}")
    return (
        part if len(part) == size else Missing("a gzip file that ends before its slices do; is the download complete?")
    )
