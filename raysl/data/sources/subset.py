"""Subsets of a split: listed images, an even share, equal shares of the classes, or a random draw."""

from collections.abc import Iterator
from functools import cache

import numpy as np
from typing_extensions import override

from raysl.config.schema import DataConfig
from raysl.data.sources.listing import composed, join_some
from raysl.data.sources.lists import read_list
from raysl.data.sources.sample import even_index, is_sorted_by_class, sample_rows, unit_rows
from raysl.data.split import Over, Rows, Split, runs
from raysl.errors import ConfigError, log
from raysl.hashing import Int64s, digest, hash_text, permutation

KEY_MARK = ".tar: "
"""Part of the name of an image in a tar, before the key of its sample."""
MOST_TIMES = 4.0
"""Bytes read for each byte of the images of `limit` from which on they are those of a few units. Where `balanced`,
`skip` or `subset` choose, a warning."""


def with_subset(split: Split, config: DataConfig, name: str) -> Split:
    """Return the images of a split that the settings choose, in the order of the split.

    For training images, `subset` comes first; `limit`, `balanced` and `skip` then choose among the listed images.
    For held-out images, only `limit` counts. Images for which much more than their own bytes is read cause a warning.
    """
    part = _choose(split, config, name == "train")
    if isinstance(part, Subset) and not part.is_random_access and (times := part.read_times) > MOST_TIMES:
        _warn_once(
            f"the {part.num_samples:,} {name} images that the settings choose are spread over the dataset: reading "
            f"them costs {times:.0f} times their bytes; raysl ingest with the same data settings stores them alone"
        )
    return part


def _choose(split: Split, config: DataConfig, is_train: bool) -> Split:
    if is_train and config.subset is not None:
        split = Subset(split, _find_listed(split, config.subset, config.subset_by))
    if is_train and config.balanced and config.limit is not None:
        return Subset(split, _draw_balanced(split, config.limit, config.skip))
    if is_train and config.skip is not None:
        end = split.num_samples if config.limit is None else config.skip + config.limit
        if not config.skip < end <= split.num_samples:
            raise ConfigError(
                f"data.skip={config.skip} and data.limit={config.limit} exceed the {split.num_samples:,} images; "
                "lower one of the two"
            )
        return Subset(split, _draw(np.arange(split.num_samples), config.skip, end))
    if config.limit is not None:
        if is_train and config.limit > split.num_samples:
            _warn_once(f"data.limit={config.limit} changes nothing: there are {split.num_samples:,} training images")
        return _limited(split, min(config.limit, split.num_samples))
    return split


def _limited(split: Split, num: int) -> Split:
    """Return `num` images at even distances; if much more than their bytes were read for them, those of a few units."""
    part = Subset(split, even_index(split.num_samples, num), f"{num}")
    if split.is_random_access or part.read_times <= MOST_TIMES or is_sorted_by_class(split):
        return part
    return Subset(split, unit_rows(split, num), f"{num} in units", is_in_units=True)


@cache
def _warn_once(text: str) -> None:
    """Log a warning once, although a run opens its dataset several times."""
    log.warning("%s", text)


def sample_of(split: Split, most: int) -> Split:
    """Return at most `most` images, those of `raysl.data.sources.sample.sample_rows`."""
    return split if split.num_samples <= most else Subset(split, sample_rows(split, most))


class Subset(Over):
    """Some rows of a split, numbered from 0.

    Args:
        rows: their indices in it, int64 [N], ascending, so that rows that are stored together are read together.
        key: name of this choice in the fingerprint; default: a hash of the rows.
        is_in_units: whether its units are those of the whole split; else they are runs of the chosen rows.
    """

    def __init__(self, split: Split, rows: Int64s, key: str | None = None, is_in_units: bool = False) -> None:
        self.take_over(split)
        self.rows = rows
        self.unit_sizes = self.read_units if is_in_units else runs(len(rows))
        self.fingerprint = f"{split.fingerprint}:{key or digest(rows.tobytes())}"
        self.num_validation = int((rows >= split.num_samples - split.num_validation).sum())

    @property
    @override
    def read_units(self) -> Int64s:
        units = np.searchsorted(np.cumsum(self.split.read_units), self.rows, side="right")
        counts: Int64s = np.unique(units, return_counts=True)[1]
        return counts

    @property
    def read_times(self) -> float:
        """Images in the units that hold the chosen ones, for each of these: bytes read for each byte used."""
        sizes = self.split.read_units
        units = np.unique(np.searchsorted(np.cumsum(sizes), self.rows, side="right"))
        return float(sizes[units].sum() / max(1, len(self.rows)))

    @override
    def read(self, index: Int64s) -> Rows:
        return self.split.read(self.rows[index])

    @override
    def labels_of(self, index: Int64s) -> Int64s:
        return self.split.labels_of(self.rows[index])

    @override
    def names_of(self, index: Int64s) -> list[str]:
        return self.split.names_of(self.rows[index])


def _draw(rows: Int64s, first: int, end: int) -> Int64s:
    """Choose the elements [first, end) of a fixed permutation of the rows, and sort them."""
    drawn = permutation(len(rows), hash_text("subset"))[first:end]
    return rows[np.sort(drawn)]


def _draw_balanced(split: Split, limit: int, skip: int | None) -> Int64s:
    """Choose the same number of rows of each class, or one more of the first classes."""
    if split.is_multilabel:
        raise ConfigError("data.balanced needs images of one class each; this dataset is multi-label")
    labels = split.labels_of(np.arange(split.num_samples))
    present = np.unique(labels[labels >= 0])
    if not len(present):
        raise ConfigError("data.balanced needs labels, but these images have none")
    if limit < len(present):
        raise ConfigError(f"data.limit={limit} with data.balanced is fewer than the {len(present)} classes; raise it")
    chosen = []
    for number, label in enumerate(present.tolist()):
        rows = np.flatnonzero(labels == label)
        # each of k classes gets n // k of n images, and the first n % k one more; skipped images count alike
        first, end = (num // len(present) + (number < num % len(present)) for num in (skip or 0, (skip or 0) + limit))
        if end > len(rows):
            name = split.classes[label] if label < len(split.classes) else str(label)
            raise ConfigError(
                f"data.limit={limit} with data.balanced takes {end} images of each class, and {name!r} has "
                f"{len(rows)}; lower data.limit{'' if skip is None else ' or data.skip'}"
            )
        chosen.append(rows[even_index(len(rows), end)] if skip is None else _draw(rows, first, end))
    return np.sort(np.concatenate(chosen))


def _find_listed(split: Split, uri: str, by: str | None) -> Int64s:
    """Return the rows that a file lists by name or by index; `by` None decides by what fits."""
    values = read_list(uri)
    if not values:
        raise ConfigError(f"{uri} lists no images; give data.subset= one name or index per line")
    if (by or _choose_kind(split, values, uri)) == "index":
        return _check_indices(split, values, uri)
    return _find_named(split, list(dict.fromkeys(str(value) for value in values)), uri)


def _choose_kind(split: Split, values: list[int] | list[str], uri: str) -> str:
    """Decide whether the values are names or indices; 007 is a name."""
    if not all(isinstance(value, int) or (value.isdecimal() and str(int(value)) == value) for value in values):
        return "name"
    if isinstance(values[0], int):
        return "index"
    wanted = [str(value) for value in dict.fromkeys(values)]
    num_named = len({number for number, _ in _matches(split, wanted)})
    if num_named and max(map(int, wanted)) < split.num_samples:
        raise ConfigError(
            f"{uri} lists {len(wanted):,} numbers that are indices of images, but {num_named:,} of them are also names "
            "of images; set data.subset_by=name or data.subset_by=index"
        )
    return "name" if num_named else "index"


def _check_indices(split: Split, values: list[int] | list[str], uri: str) -> Int64s:
    try:
        numbers = sorted({int(value) for value in values})
    except ValueError as error:
        raise ConfigError(f"{uri} lists a value that is not an index: {error}; set data.subset_by=name") from error
    wrong = [number for number in numbers if not 0 <= number < split.num_samples]
    if wrong:
        raise ConfigError(
            f"{uri} lists {len(wrong):,} indices that are not in [0, {split.num_samples - 1}], first {wrong[0]}; "
            "if these are names of images, set data.subset_by=name"
        )
    return np.array(numbers, np.int64)


def _find_named(split: Split, wanted: list[str], uri: str) -> Int64s:
    """Return the rows whose names end in a wanted one, with or without the extension."""
    rows = np.full(len(wanted), -1)
    for number, row in _matches(split, wanted):
        if rows[number] >= 0:
            both = " and ".join(split.names_of(np.array([rows[number], row])))
            raise ConfigError(f"{uri}: {wanted[number]!r} names {both}; give more of the path")
        rows[number] = row
    unknown = [wanted[number] for number in np.flatnonzero(rows < 0).tolist()]
    if unknown:
        raise ConfigError(f"{uri} lists {len(unknown):,} images that are not in the dataset: {join_some(unknown, 5)}")
    return np.unique(rows)


def _matches(split: Split, wanted: list[str]) -> Iterator[tuple[int, int]]:
    """Yield the number of each wanted name with each row of that name; a sample in a tar is named by its key."""
    by_base: dict[str, list[int]] = {}
    by_key: dict[str, list[int]] = {}
    wanted = [composed(name) for name in wanted]
    for number, name in enumerate(wanted):
        base = name.rpartition("/")[2]
        by_base.setdefault(base, []).append(number)
        by_key.setdefault(base.partition(".")[0], []).append(number)
    for row, name in enumerate(split.names_of(np.arange(split.num_samples))):
        _, mark, path = composed(name).rpartition(KEY_MARK)
        folder, _, base = path.rpartition("/")
        # the key of a sample in a tar has no extension
        numbers, bases = (by_key, (base,)) if mark else (by_base, dict.fromkeys((base, base.rpartition(".")[0])))
        for key in bases:
            for number in numbers.get(key, ()):
                if _ends_in(folder, wanted[number].rpartition("/")[0].removeprefix("./")):
                    yield number, row


def _ends_in(folder: str, part: str) -> bool:
    return not part or f"/{folder}".endswith(f"/{part}") or folder == part
