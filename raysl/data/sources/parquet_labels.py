"""Which classes the labels of Parquet files are of."""

import hashlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from raysl.data.sources.class_names import check_range, class_names, numbered
from raysl.data.sources.parquet_columns import raw_labels
from raysl.errors import ConfigError
from raysl.storage.addresses import telling
from raysl.storage.reads import retrying

Range = tuple[int, int]
READS = 8  # files at a time


def found_classes(
    system: fs.FileSystem, files: Iterable[str], column: str, classes: tuple[str, ...], is_multilabel: bool
) -> tuple[str, ...]:
    """Look through all texts or lists of labels, for the classes where nobody named them, and for what does not fit.

    Args:
        system: where the files are.
        files: paths there.
        column: of texts, or of lists.
        classes: names of the classes; empty: as the labels say.
        is_multilabel: whether it is of lists.

    Raises:
        ConfigError: naming a file that cannot be read, or whose labels are not of the classes.
    """
    found: set[str] = set()
    for path in files:
        labels = _read(system, path, column)
        names = class_names(labels)
        if not is_multilabel and classes:
            numbered(labels, classes, path)
        if is_multilabel and names:
            if len(names) != len(classes or names):
                raise ConfigError(
                    f"{path} has lists of {len(names)} labels for {len(classes)} classes; give one of each class"
                )
            classes = classes or names
        found.update(names)
    return classes or tuple(sorted(found))


def counted_classes(
    system: fs.FileSystem, ranges: dict[str, Range | None], column: str, classes: tuple[str, ...]
) -> tuple[str, ...]:
    """Check all integer labels, and give the numbers up to the largest one where nobody named the classes.

    Args:
        system: where the files are.
        ranges: smallest and largest label of each file; where it is None the column is read.
        column: of integers.
        classes: names of the classes; empty: as the labels say.

    Raises:
        ConfigError: naming a file that cannot be read, or whose labels are not of the classes.
    """
    largest = -1
    for path, known in ranges.items():
        least, most = known or _range_of(_read(system, path, column))
        check_range(least, most, path, len(classes) or None)
        largest = max(largest, most)
    return classes or class_names(np.array([largest]))


def labels_digest(system: fs.FileSystem, files: Sequence[str], column: str) -> str:
    """16 hexadecimal digits of all labels as they are written, in the order of the rows.

    Raises:
        ConfigError: naming a file that cannot be read.
    """

    def of_file(path: str) -> bytes:
        labels = _read(system, path, column)
        content = "\0".join(labels.tolist()).encode() if labels.dtype.kind == "U" else labels.tobytes()
        return hashlib.sha256(f"{labels.shape} ".encode() + content).digest()

    with ThreadPoolExecutor(READS) as pool:
        return hashlib.sha256(b"".join(pool.map(of_file, files))).hexdigest()[:16]


def label_range(metadata: pq.FileMetaData, column: str) -> Range | None:
    """Smallest and largest integer label by the statistics of a file, -1 where it has none; None where they lack."""
    number = next((n for n in range(metadata.num_columns) if metadata.schema.column(n).path == column), None)
    if number is None:
        return None
    least, most = -1, -1
    for group in range(metadata.num_row_groups):
        values = metadata.row_group(group).column(number).statistics
        if values is None or not values.has_min_max:
            return None
        least, most = min(least, values.min), max(most, values.max)
    return least, most


def _range_of(labels: np.ndarray) -> Range:
    return int(labels.min(initial=-1)), int(labels.max(initial=-1))


def _read(system: fs.FileSystem, path: str, column: str) -> np.ndarray:
    def read() -> pa.ChunkedArray:
        with system.open_input_file(path) as file:
            return pq.ParquetFile(file, pre_buffer=True).read(columns=[column])[column]

    with telling("read", path):
        values = retrying(read, "read", path)
    return raw_labels(values, path)
