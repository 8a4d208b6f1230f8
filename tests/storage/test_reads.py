"""Ranges of remote files: as long as a reader goes on, and short where it jumps."""

from typing import Any

from fsspec.implementations.memory import MemoryFileSystem
from pyarrow import fs

from raysl.storage.reads import FIRST_RANGE, RUN_BYTES, RangeFile

NUM_BYTES = 12 * RUN_BYTES


class Zeros(MemoryFileSystem):
    """A file of zeros that notes the length of every request."""

    cachable = False

    def __init__(self) -> None:
        super().__init__()
        self.lengths: list[int] = []

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        assert start is not None
        assert end is not None
        self.lengths.append(end - start)
        return bytes(end - start)


def test_ranges_grow_while_a_reader_goes_on_also_from_inside_the_last_one() -> None:
    files = Zeros()
    reader = RangeFile(fs.PyFileSystem(fs.FSSpecHandler(files)), "shard.tar", NUM_BYTES)
    while reader.tell() + 3584 < NUM_BYTES // 2:  # as tarfile goes from header to header
        reader.seek(reader.tell() - 1 if reader.tell() else 0)
        reader.read(1)
        reader.read(512)
        reader.seek(reader.tell() + 3072)
    assert files.lengths == sorted(files.lengths)
    assert (files.lengths[0], files.lengths[-1]) == (2 * FIRST_RANGE, RUN_BYTES)
    reader.seek(NUM_BYTES - RUN_BYTES)
    reader.read(512)
    assert files.lengths[-1] == FIRST_RANGE
