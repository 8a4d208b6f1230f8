"""A dataset in parts that processes work on independently."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from raysl.config.schema import DataConfig
from raysl.data.source import SPLITS, Source, Split
from raysl.errors import ConfigError, log
from raysl.hashing import Int64s

T = TypeVar("T")


@dataclass(frozen=True)
class SplitPart:
    """Rows [first, end) of a split; the parts of a split are numbered from 0 to num_parts - 1."""

    split: str
    number: int
    num_parts: int
    first: int
    end: int

    @property
    def name(self) -> str:
        """Name of the part's file without its ending: `train-00002-of-00012`."""
        return f"{self.split}-{self.number:05}-of-{self.num_parts:05}"

    def runs(self, num_rows: int) -> Iterator[Int64s]:
        """Yield the indices of the rows, at most `num_rows` at a time."""
        for start in range(self.first, self.end, num_rows):
            yield np.arange(start, min(self.end, start + num_rows))


class Spread(Protocol):
    """Applies a function to all parts, in this process or on a cluster; results come in any order."""

    def __call__(
        self, work: Callable[[Split, SplitPart], T], splits: Mapping[str, Split], parts: Sequence[SplitPart]
    ) -> Iterator[T]:
        """Yield what `work` returns for the split and the rows of each part."""


def in_process(
    work: Callable[[Split, SplitPart], T], splits: Mapping[str, Split], parts: Sequence[SplitPart]
) -> Iterator[T]:
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
