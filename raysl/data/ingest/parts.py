"""A dataset in parts that processes work on independently, and the order in which an ingest stores their rows."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from raysl.config.schema import DataConfig
from raysl.data.source import SPLITS, Source, Split
from raysl.errors import ConfigError, log
from raysl.hashing import Int64s, feistel, hash_text, hash_words, permutation


@dataclass(frozen=True)
class SplitPart:
    """Rows [first, end) of a split; the parts of a split are numbered from 0 to num_parts - 1.

    Args:
        digest: hash of its rows, if that names its file.
    """

    split: str
    number: int
    num_parts: int
    first: int
    end: int
    digest: str = ""

    @property
    def name(self) -> str:
        """Name of the part's file without its ending: `train-00002-of-00012`, or `train-DIGEST`."""
        if self.digest:
            return f"{self.split}-{self.digest}"
        return f"{self.split}-{self.number:05}-of-{self.num_parts:05}"

    def runs(self, num_rows: int) -> Iterator[Int64s]:
        """Yield the indices of the rows, at most `num_rows` at a time."""
        for start in range(self.first, self.end, num_rows):
            yield np.arange(start, min(self.end, start + num_rows))


Work = Callable[[Split, SplitPart], Any]
Spread = Callable[[Work, Mapping[str, Split], Sequence[SplitPart]], Iterator[Any]]
"""Applies a function to all parts, in this process or on a cluster; results come in any order."""


def in_process(work: Work, splits: Mapping[str, Split], parts: Sequence[SplitPart]) -> Iterator[Any]:
    """Work on one part after another in this process."""
    return (work(splits[part.split], part) for part in parts)


def cut_parts(splits: Mapping[str, Split], num_rows: int) -> list[SplitPart]:
    """Cut all splits into parts of `num_rows` rows; the last part of each split is shorter."""
    parts = []
    for name, split in splits.items():
        num_parts = -(-split.num_samples // num_rows)
        for number in range(num_parts):
            first = number * num_rows
            parts.append(SplitPart(name, number, num_parts, first, min(split.num_samples, first + num_rows)))
    return parts


def warn_of_notes(splits: Iterable[Split]) -> None:
    """Log the notes of splits as warnings, each once."""
    for note in dict.fromkeys(note for split in splits for note in split.notes):
        log.warning("%s", note)


def open_splits(source: Source) -> dict[str, Split]:
    """Open the splits of a dataset, by name."""
    config: DataConfig = source.config
    splits = {name: split for name in SPLITS if (split := source.optional(name)) is not None}
    if not splits:
        raise ConfigError(f"the dataset {config.name!r} has no images; give data.train= or data.test=")
    if any(split.num_sources > 1 for split in splits.values()):
        raise ConfigError(f"the dataset {config.name!r} has several images per sample; give its sources one by one")
    return splits


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
