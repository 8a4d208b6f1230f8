"""Samples of a split that read few units of its storage.

Storage reads whole units: row groups, runs of files in a tar. Images at even distances touch nearly every unit of a
large dataset, so a sample of it is all rows of a few units, which a fixed permutation chooses. Units of a dataset that
is sorted by class would have few classes; its sample stays at even distances.
"""

from collections.abc import Iterator

import numpy as np

from raysl.data.order import rank_share
from raysl.data.split import Split
from raysl.hashing import Int64s, hash_text, hash_words, permutation

LOOKED_UNITS = 16
"""Units whose labels tell whether a dataset is sorted by class."""
_KEY = hash_text("sample")


def sample_rows(split: Split, most: int, seed: int = 0) -> Int64s:
    """Return the rows of a sample of at most `most` images, int64 [N], ascending.

    Where any row can be read alone, and where rows are sorted by class, they are at even distances. Else they are all
    rows of a few units, and of the last of these units as many as are needed.

    Args:
        seed: chooses the units.
    """
    if split.num_samples <= most:
        return np.arange(split.num_samples)
    if split.is_random_access or is_sorted_by_class(split):
        return even_index(split.num_samples, most)
    return unit_rows(split, most, seed)


def unit_rows(split: Split, most: int, seed: int = 0) -> Int64s:
    """Return `most` rows of a few units, int64, ascending; see `sample_rows`."""
    sizes = split.read_units
    first = np.cumsum(sizes) - sizes
    units = permutation(len(sizes), hash_words(_KEY, seed))
    ends = np.cumsum(sizes[units])
    units = units[: np.searchsorted(ends, most) + 1]
    counts = np.diff(ends[: len(units)].clip(max=most), prepend=0)
    parts = zip(first[units].tolist(), sizes[units].tolist(), counts.tolist(), strict=True)
    return np.sort(np.concatenate([start + even_index(size, count) for start, size, count in parts]))


def even_index(num: int, most: int) -> Int64s:
    """Return up to `most` numbers below `num` at even distances, int64, ascending.

    >>> even_index(10, 4).tolist()
    [0, 2, 5, 7]
    """
    most = min(num, most)
    return np.arange(most, dtype=np.int64) * num // max(1, most)


def is_sorted_by_class(split: Split) -> bool:
    """Whether most neighbouring rows are of one class, more than in a random order of the same labels.

    The labels of a few units are read, if that needs no images; else, and for several labels an image, it is not known,
    and False.
    """
    reads_images = any(kind.labels_of is Split.labels_of for kind in split.readers())
    if not split.classes or split.is_multilabel or reads_images:
        return False
    sizes = split.read_units
    first = np.cumsum(sizes) - sizes
    units = even_index(len(sizes), LOOKED_UNITS)
    labels = [split.labels_of(np.arange(first[unit], first[unit] + sizes[unit])) for unit in units.tolist()]
    num_pairs = sum(len(part) - 1 for part in labels)
    if num_pairs < 1:
        return False
    num_equal = sum(int((part[1:] == part[:-1]).sum()) for part in labels)
    _, counts = np.unique(np.concatenate(labels), return_counts=True)
    # share of equal neighbours in a random order of these labels; the limit is halfway from there to 1
    by_chance = float(np.square(counts / counts.sum()).sum())
    return num_equal / num_pairs > (1 + by_chance) / 2


def unit_share(split: Split, rank: int, world: int) -> range:
    """Return a rank's rows of a split, cut between units where storage reads units, so that no two ranks read the same.

    Args:
        rank, world: position of the process; ranks beyond the number of units have no rows.
    """
    if split.is_random_access:
        return rank_share(split.num_samples, rank, world)
    ends = np.concatenate([[0], np.cumsum(split.read_units)])

    def cut(number: int) -> int:
        wanted = number * split.num_samples // world
        after = int(np.searchsorted(ends, wanted))
        before = max(0, after - 1)
        return int(ends[before] if wanted - ends[before] < ends[after] - wanted else ends[after])

    return range(cut(rank), cut(rank + 1))


def unit_parts(split: Split, rows: range, least: int, most: int) -> Iterator[range]:
    """Cut a stretch of rows into parts, between units where storage reads units, so that no two parts read the same.

    Args:
        least: rows of a part where any row can be read alone; else a part has at least as many, except the last.
        most: rows of a part; a larger unit is cut.
    """
    ends = np.cumsum(split.read_units)
    start = rows.start
    while start < rows.stop:
        stop = start + least
        if not split.is_random_access and stop < rows.stop:
            stop = int(ends[np.searchsorted(ends, stop)])
        stop = min(stop, start + most, rows.stop)
        yield range(start, stop)
        start = stop
