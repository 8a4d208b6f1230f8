"""The order in which an ingest reads and stores the rows of a split."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from raysl.data.ingest.split_parts import SplitPart
from raysl.data.source import Split
from raysl.hashing import Int64s, feistel, hash_text, hash_words, permutation

READ_ROWS = 256  # at a time
_ROWS, _UNITS, _MIX = 1, 2, 3  # kinds of permutations; part of their keys


@dataclass(frozen=True)
class RowOrder:
    """The rows of one file of an ingest.

    The parts of a split share one keyed permutation, of its rows if they can be read in any order, else of its read
    units: then a file holds whole units from everywhere, and its rows are mixed while it is written.

    Args:
        part: rows [first, end) of the permuted split.
        seed: seed of the permutation; None keeps the order of the split.
    """

    split: Split
    part: SplitPart
    seed: int | None

    @property
    def is_mixed(self) -> bool:
        """Whether rows that are read one after the other have to be mixed, as they are of few units."""
        return self.seed is not None and not self.split.is_random_access

    def chunks(self) -> Iterator[Int64s]:
        """Yield the indices of the rows as they are read: whole read units, or some rows of one at a time."""
        if not self.is_mixed:
            for rows in self.part.runs(READ_ROWS):
                yield rows if self.seed is None else feistel(self.split.num_samples, self._key(_ROWS), rows)
            return
        pending: list[Int64s] = []
        for unit in self._units():
            pending += [unit[start : start + READ_ROWS] for start in range(0, len(unit), READ_ROWS)]
            if sum(map(len, pending)) >= READ_ROWS:
                yield from _joined(pending)
                pending = []
        yield from _joined(pending)

    def mix(self, num_rows: int, turn: int) -> Int64s:
        """Return the order in which rows that were read are stored; `turn` counts the calls for this part."""
        return permutation(num_rows, self._key(_MIX, self.part.number, turn))

    def _units(self) -> Iterator[Int64s]:
        """Yield the rows of each read unit of the part, in the permuted order of units."""
        sizes = self.split.read_units
        first_rows = np.cumsum(sizes) - sizes
        units = permutation(len(sizes), self._key(_UNITS))
        ends = np.cumsum(sizes[units])
        first, end = self.part.first, self.part.end
        for nth in range(int(np.searchsorted(ends, first, side="right")), len(units)):
            start = int(ends[nth] - sizes[units[nth]])
            if start >= end:
                break
            # a part may begin or end inside a unit; the other rows of that unit belong to other parts
            low, high = max(first, start) - start, min(end, int(ends[nth])) - start
            yield np.arange(low, high) + first_rows[units[nth]]

    def _key(self, *numbers: int) -> int:
        assert self.seed is not None
        return hash_words(self.seed, hash_text(self.split.fingerprint), *numbers)


def _joined(pieces: list[Int64s]) -> Iterator[Int64s]:
    """Yield pieces of a large unit one by one, and small units together."""
    if any(len(piece) == READ_ROWS for piece in pieces):
        yield from pieces
    elif pieces:
        yield np.concatenate(pieces)
