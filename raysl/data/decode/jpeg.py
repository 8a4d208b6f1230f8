"""What the header of a JPEG file says, read in a few microseconds."""

from typing import Literal, NamedTuple

_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # start of frame; those three are tables
_PROGRESSIVE = (0xC2, 0xC6, 0xCA, 0xCE)
_BARE = frozenset((0x00, 0x01, *range(0xD0, 0xD9)))  # markers without a length
_APP1, _SCAN, _END = 0xE1, 0xDA, 0xD9
_ORIENTATION = 0x0112


class JpegHeader(NamedTuple):
    """Size of the stored image, the EXIF orientation (1 to 8) that turns it upright, and whether it comes in several
    passes, all of which a decoder has to keep."""

    height: int
    width: int
    orientation: int
    is_progressive: bool


def read_header(data: bytes) -> JpegHeader | None:
    """The header of a JPEG file (ITU-T T.81, annex B); None where there is no frame before the pixels."""
    place, orientation, num_bytes = 2, 0, len(data)
    while place + 9 <= num_bytes:
        if data[place] != 0xFF:  # junk between two segments
            place = data.find(b"\xff", place)
            if place < 0:
                return None
            continue
        marker = data[place + 1]
        if marker == 0xFF:  # padding
            place += 1
            continue
        if marker in _FRAMES:
            height, width = data[place + 5] << 8 | data[place + 6], data[place + 7] << 8 | data[place + 8]
            return JpegHeader(height, width, orientation or 1, marker in _PROGRESSIVE)
        if marker in (_SCAN, _END):
            return None
        if marker in _BARE:
            place += 2
            continue
        length = data[place + 2] << 8 | data[place + 3]
        if marker == _APP1 and not orientation and data[place + 4 : place + 10] == b"Exif\0\0":
            orientation = exif_orientation(data[place + 10 : place + 2 + length])
        place += 2 + length
    return None


def exif_orientation(block: bytes) -> int:
    """The orientation in an EXIF block (1 to 8, from its TIFF header on); 0 where it says none."""
    order: Literal["little", "big"] = "little" if block[:2] == b"II" else "big"

    def number(place: int, size: int) -> int:
        return int.from_bytes(block[place : place + size], order)

    if number(2, 2) != 42:
        return 0
    first = number(4, 4)
    for place in range(first + 2, min(first + 2 + 12 * number(first, 2), len(block) - 11), 12):
        if number(place, 2) == _ORIENTATION:
            value = number(place + 8, 2)
            return value if 1 <= value <= 8 else 0
    return 0
