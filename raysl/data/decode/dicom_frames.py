"""Where the frames of a DICOM file lie, so that each can be read alone and decoded as a file of one frame."""

import struct
from itertools import pairwise
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from raysl.data.decode.dicom_header import (
    frames_of,
    has_pixels,
    parsing,
    pixel_facts,
    read_header,
    undecodable,
    written,
)
from raysl.data.decode.frames import Frames
from raysl.data.decode.pixels import CorruptImage
from raysl.hashing import Int64s

if TYPE_CHECKING:
    from pydicom import Dataset

_PIXELS = ((0x7FE0, 0x0008), (0x7FE0, 0x0009), (0x7FE0, 0x0010))
"""Elements of pixels: floats, floats of 64 bits, integers."""
_ITEM, _DELIMITER = (0xFFFE, 0xE000), (0xFFFE, 0xE0DD)
_UNDEFINED = 0xFFFFFFFF  # length of pixels that are cut into fragments
_IMPLICIT, _BIG_ENDIAN = "1.2.840.10008.1.2", "1.2.840.10008.1.2.2"
_VARYING = ("RescaleSlope", "RescaleIntercept", "WindowCenter", "WindowWidth", "VOILUTFunction", "VOILUTSequence")
"""Elements that differ between frames of one file."""


def find_frames(file: BinaryIO, num_bytes: int) -> Frames:
    """Find the frames of a file from its header, and the lengths of its fragments.

    Args:
        num_bytes: length of the file.

    Raises:
        CorruptImage: if it is damaged, or ends before its frames do, or its frames cannot be told apart.
    """
    header = read_header(file)
    with parsing():
        if not has_pixels(header):
            return Frames(0)
        num, problem = frames_of(header), undecodable(header)
        return Frames(num, problem) if num == 1 or problem else _cut(file, header, num, num_bytes)


def _cut(file: BinaryIO, header: "Dataset", num: int, num_bytes: int) -> Frames:
    syntax = str(header.file_meta.TransferSyntaxUID)
    order = ">" if syntax == _BIG_ENDIAN else "<"
    start = file.tell()
    head = file.read(12)
    if struct.unpack(f"{order}2H", head[:4]) not in _PIXELS:
        raise CorruptImage("a damaged DICOM file: no pixels follow its header")
    num_head = 8 if syntax == _IMPLICIT else 12
    (length,) = struct.unpack(f"{order}I", head[num_head - 4 : num_head])
    first = start + num_head
    if length == _UNDEFINED:
        offsets, sizes = _fragments(file, first, header, num, num_bytes)
        # an empty table of offsets comes before the fragments, and the delimiter behind them
        element, tail = head[:num_head] + struct.pack("<2HI", *_ITEM, 0), struct.pack("<2HI", *_DELIMITER, 0)
    else:
        size = _frame_bytes(header)
        offsets, sizes = first + np.arange(num, dtype=np.int64) * size, np.full(num, size, np.int64)
        element, tail = head[: num_head - 4] + struct.pack(f"{order}I", size + size % 2), b""
        if size * num > length:
            raise CorruptImage(f"a DICOM file whose pixels are not those of its {num:,} frames")
    if int((offsets + sizes).max()) > num_bytes:
        raise CorruptImage(f"a DICOM file that ends before its {num:,} frames do; is the download complete?")
    heads, head_of = _heads(header, num, syntax)
    files = tuple(head + element for head in heads)
    return Frames(num, offsets=offsets, sizes=sizes, heads=files, head_of=head_of, tail=tail)


def _frame_bytes(header: "Dataset") -> int:
    """Return the bytes of a frame that is not compressed."""
    samples = int(header.get("SamplesPerPixel", 1))
    # two neighbours share their colours
    if samples == 3 and header.get("PhotometricInterpretation") == "YBR_FULL_422":
        samples = 2
    num_bits = int(header.Rows) * int(header.Columns) * samples * int(header.BitsAllocated)
    if num_bits % 8 or num_bits <= 0:
        raise CorruptImage("a DICOM file whose frames begin inside a byte; store its values with 8 bits")
    return num_bits // 8


def _fragments(file: BinaryIO, first: int, header: "Dataset", num: int, num_bytes: int) -> tuple[Int64s, Int64s]:
    """Return offset and length of each frame's fragments, with the heads of these (DICOM PS3.5, A.4)."""
    starts, position = [], first
    table: list[int] = []
    while position + 8 <= num_bytes:
        file.seek(position)
        *tag, length = struct.unpack("<2HI", file.read(8))
        if tuple(tag) != _ITEM:
            break
        # the first item is a table of offsets, which may be empty
        if position == first:
            table = list(struct.unpack(f"<{length // 4}I", file.read(length // 4 * 4)))
        else:
            starts.append(position)
        position += 8 + length
    if tuple(tag) != _DELIMITER:
        raise CorruptImage(f"a DICOM file that ends before its {num:,} frames do; is the download complete?")
    if "ExtendedOffsetTable" in header:
        table = list(struct.unpack(f"<{num}Q", header.ExtendedOffsetTable))
    if len(table) == num and starts:
        starts = [starts[0] + offset for offset in table]
    if len(starts) != num:
        raise CorruptImage(
            f"a DICOM file of {num:,} frames in {len(starts):,} fragments without a table of where each frame begins; "
            "store it uncompressed"
        )
    ends = [*starts, position]
    sizes = [end - start for start, end in pairwise(ends)]
    if min(sizes) <= 0:
        raise CorruptImage("a damaged DICOM file: its frames are not in order")
    return np.array(starts, np.int64), np.array(sizes, np.int64)


def _heads(header: "Dataset", num: int, syntax: str) -> tuple[list[bytes], Int64s]:
    """Return the different heads of frames, and the number of each frame's head."""
    heads: dict[tuple[str, ...], int] = {}
    files: list[bytes] = []
    head_of = np.zeros(num, np.int64)
    varies = "PerFrameFunctionalGroupsSequence" in header
    for frame in range(num if varies else 1):
        facts = pixel_facts(header, frame)
        key = tuple(str(facts.get(name)) for name in _VARYING)
        if key not in heads:
            heads[key] = len(files)
            files.append(written(facts, syntax))
        head_of[frame] = heads[key]
    return files, head_of
