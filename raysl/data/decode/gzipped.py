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
_SKIPPED = 1 << 20  # bytes that are decompressed at a time without being kept
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
    position, part, damage = 0, b"", ""
    with gzip.GzipFile(fileobj=file) as content:
        for number in np.argsort(offsets, kind="stable").tolist():
            offset, size = int(offsets[number]), int(sizes[number])
            if offset + size != position or not part:
                damage = damage or _skip(content, offset - position)
                part, damage = (b"", damage) if damage else _read(content, size)
                position = offset + size
            parts[number] = Missing(damage) if damage else part
    return parts


def _skip(content: gzip.GzipFile, num: int) -> str:
    """Go on by some bytes; return what is damaged on the way, else ''."""
    while num > 0:
        part, damage = _read(content, min(num, _SKIPPED))
        if damage:
            return damage
        num -= len(part)
    return ""


def _read(content: gzip.GzipFile, size: int) -> tuple[bytes, str]:
    """Return the next bytes, and what is damaged in them, else ''."""
    try:
        part = content.read(size)
    except _BROKEN as error:
        return b"", f"a damaged gzip file: {error}"
    return part, "" if len(part) == size else "a gzip file that ends before its slices do; is the download complete?"
