"""The header of a JPEG file, parsed in a few microseconds."""

from typing import Literal, NamedTuple

_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # start of frame; those three are tables
_PROGRESSIVE = (0xC2, 0xC6, 0xCA, 0xCE)
_BARE = frozenset((0x00, 0x01, *range(0xD0, 0xD9)))  # markers without a length
_APP1, _SCAN, _END = 0xE1, 0xDA, 0xD9
_ORIENTATION = 0x0112
_LONG = 4  # type of a value of 4 bytes


class JpegHeader(NamedTuple):
    """Size of the stored image, its EXIF orientation (1 to 8), whether it is progressive, and the sampling
    factors of its channels, a byte each: horizontal, then vertical.

    A decoder keeps all passes of a progressive file in memory.
    """

    height: int
    width: int
    orientation: int
    is_progressive: bool
    sampling: bytes


def read_header(data: bytes) -> JpegHeader | None:
    """Parse the header of a JPEG file (ITU-T T.81, annex B); None if there is no frame before the pixels."""
    offset, orientation, num_bytes = 2, 0, len(data)
    while offset + 9 <= num_bytes:
        if data[offset] != 0xFF:  # stray bytes between two segments
            offset = data.find(b"\xff", offset)
            if offset < 0:
                return None
            continue
        marker = data[offset + 1]
        if marker == 0xFF:  # padding
            offset += 1
            continue
        if marker in _FRAMES:
            height, width = data[offset + 5] << 8 | data[offset + 6], data[offset + 7] << 8 | data[offset + 8]
            # each channel has three bytes: its number, its sampling factors and its quantisation table
            sampling = data[offset + 11 : offset + 10 + 3 * int.from_bytes(data[offset + 9 : offset + 10]) : 3]
            return JpegHeader(height, width, orientation or 1, marker in _PROGRESSIVE, sampling)
        if marker in (_SCAN, _END):
            return None
        if marker in _BARE:
            offset += 2
            continue
        length = data[offset + 2] << 8 | data[offset + 3]
        if marker == _APP1 and not orientation and data[offset + 4 : offset + 10] == b"Exif\0\0":
            orientation = exif_orientation(data[offset + 10 : offset + 2 + length])
        offset += 2 + length
    return None


def exif_orientation(block: bytes) -> int:
    """Return the orientation (1 to 8) in an EXIF block, which begins with its TIFF header; 0 if it has none."""
    order: Literal["little", "big"] = "little" if block[:2] == b"II" else "big"

    def number(offset: int, size: int) -> int:
        return int.from_bytes(block[offset : offset + size], order)

    if number(2, 2) != 42:
        return 0
    first = number(4, 4)
    for offset in range(first + 2, min(first + 2 + 12 * number(first, 2), len(block) - 11), 12):
        if number(offset, 2) == _ORIENTATION:
            # an entry has 12 bytes: tag, type, count, and from byte 8 on the value
            value = number(offset + 8, 4 if number(offset + 2, 2) == _LONG else 2)
            return value if 1 <= value <= 8 else 0
    return 0
