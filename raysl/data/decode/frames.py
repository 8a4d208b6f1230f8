"""Where the images of a file of several lie, so that each can be read alone and decoded as a file of one image."""

from dataclasses import dataclass, field

import numpy as np

from raysl.hashing import Int64s


def _none() -> Int64s:
    return np.empty(0, np.int64)


@dataclass(frozen=True)
class Frames:
    """The frames of a DICOM file, or the slices of a volume.

    Args:
        num: number of frames, 0 of a file without pixels.
        problem: compression that no installed decoder reads, and what to do; empty otherwise.
        damage: why the frames cannot be read; empty if they can.
        offsets, sizes: int64 [num], bytes of each frame in the file; empty where the file is read whole.
        heads: beginnings of a file of one frame, each different one once.
        head_of: int64 [num], number of each frame's head.
        tail: bytes behind a frame in a file of one frame.
        is_gzip: whether the file is compressed as a whole, and `offsets` are those of its content.
    """

    num: int
    problem: str = ""
    damage: str = ""
    offsets: Int64s = field(default_factory=_none)
    sizes: Int64s = field(default_factory=_none)
    heads: tuple[bytes, ...] = ()
    head_of: Int64s = field(default_factory=_none)
    tail: bytes = b""
    is_gzip: bool = False

    def as_file(self, frame: int, content: bytes) -> bytes:
        """Return a file of one frame, with no more of the header than its pixels need.

        Args:
            frame: number of the frame, from 0.
            content: bytes of the frame.
        """
        head: bytes = self.heads[self.head_of[frame]]
        # DICOM has even lengths only; a byte behind the values of an array does not count
        return head + content + bytes(len(content) % 2) + self.tail


def even_frames(num: int, first: int, size: int, head: bytes, is_gzip: bool = False) -> Frames:
    """Return frames of one size that follow each other.

    Args:
        num: number of frames.
        first: offset of the first one, in bytes.
        size: bytes of a frame.
        head: beginning of a file of one frame.
        is_gzip: see `Frames`.
    """
    offsets = first + np.arange(num, dtype=np.int64) * size
    sizes, head_of = np.full(num, size, np.int64), np.zeros(num, np.int64)
    return Frames(num, offsets=offsets, sizes=sizes, heads=(head,), head_of=head_of, is_gzip=is_gzip)
