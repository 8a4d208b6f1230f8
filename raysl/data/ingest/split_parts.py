"""A dataset cut into parts that processes work on, each alone."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from raysl.config.schema import DataConfig
from raysl.data.source import SPLITS, Source, Split
from raysl.errors import ConfigError
from raysl.hashing import Int64s

log = logging.getLogger("raysl")

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
        """As files of a dataset in parts are called: `train-00002-of-00012`."""
        return f"{self.split}-{self.number:05}-of-{self.num_parts:05}"

    def runs(self, num_rows: int) -> Iterator[Int64s]:
        """The indices of the rows, at most `num_rows` at a time."""
        for start in range(self.first, self.end, num_rows):
            yield np.arange(start, min(self.end, start + num_rows))


class Spread(Protocol):
    """A way to work on parts, here or on a cluster; results come in any order."""

    def __call__(
        self, work: Callable[[Split, SplitPart], T], splits: Mapping[str, Split], parts: Sequence[SplitPart]
    ) -> Iterator[T]:
        """What `work` gives for the split and the rows of each part."""


def in_process(
    work: Callable[[Split, SplitPart], T], splits: Mapping[str, Split], parts: Sequence[SplitPart]
) -> Iterator[T]:
    """Work on one part after the other in this process."""
    return (work(splits[part.split], part) for part in parts)


def parts_of(splits: Mapping[str, Split], num_rows: int) -> list[SplitPart]:
    """All splits in parts of `num_rows` rows, the last of each split shorter."""
    parts = []
    for name, split in splits.items():
        num_parts = -(-split.num_samples // num_rows)
        for number in range(num_parts):
            first = number * num_rows
            parts.append(SplitPart(name, number, num_parts, first, min(split.num_samples, first + num_rows)))
    return parts


def tell_notes(splits: Iterable[Split]) -> None:
    """Warn of what is odd about the files of a dataset."""
    for note in dict.fromkeys(note for split in splits for note in split.notes):
        log.warning("%s", note)


def splits_of(source: Source) -> dict[str, Split]:
    """The splits that a dataset has, by name.

    Raises:
        ConfigError: if it has none, or its sources are paired.
    """
    config: DataConfig = source.config
    found = {name: split for name in SPLITS if (split := source.optional(name)) is not None}
    if not found:
        raise ConfigError(f"the dataset {config.name!r} has no images; give data.train= or data.test=")
    if any(split.num_sources > 1 for split in found.values()):
        raise ConfigError(f"the dataset {config.name!r} has several images a sample; give its sources one by one")
    return found
