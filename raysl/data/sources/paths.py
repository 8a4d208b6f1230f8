"""Millions of paths in one block of bytes."""

import hashlib
from collections.abc import Iterable, Iterator

import numpy as np

from raysl.hashing import Int64s


class Paths:
    """A list of texts that takes their bytes and 8 more each, and is sent to other processes without a copy.

    Args:
        paths: any number of texts.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        block = bytearray()
        ends = [0]
        for path in paths:
            block += path.encode("utf-8", "surrogateescape")
            ends.append(len(block))
        self._block = np.frombuffer(bytes(block), np.uint8)
        self._ends = np.array(ends, np.int64)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, place: int) -> str:
        return self._bytes(range(len(self))[place]).decode("utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        return (self[place] for place in range(len(self)))

    def take(self, index: Int64s) -> list[str]:
        """The paths at these places."""
        return [self[place] for place in index.tolist()]

    def digest(self) -> str:
        """16 hexadecimal digits that other paths, or another order, change."""
        return hashlib.sha256(self._ends.tobytes() + self._block.tobytes()).hexdigest()[:16]

    def repeats(self) -> Int64s:
        """Places of the paths that stand further ahead already."""
        hashes = np.array([hash(self._bytes(place)) for place in range(len(self))], np.int64)
        _, group, sizes = np.unique(hashes, return_inverse=True, return_counts=True)
        seen: set[bytes] = set()
        repeated = []
        for place in np.flatnonzero(sizes[group] > 1).tolist():
            path = self._bytes(place)
            if path in seen:
                repeated.append(place)
            seen.add(path)
        return np.array(repeated, np.int64)

    def _bytes(self, place: int) -> bytes:
        return self._block[self._ends[place] : self._ends[place + 1]].tobytes()
