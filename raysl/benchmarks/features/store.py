"""Features of one split on disk as they are made: a folder of Parquet files, one a part of the rows.

    features_test.parquet/
        _about.json             the basis of the features
        part-000000.parquet     index, name, label, features
        _thumbnails-000000.parquet  image: small JPEG files of the same rows, where a report needs them

A part is written whole or not at all: existing parts are valid, and the next start makes the missing ones.
"""

import io
import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from torch import Tensor

from raysl.errors import ConfigError
from raysl.hashing import Int64s
from raysl.storage.folder import Folder, outlast
from raysl.storage.records import Damaged, from_record, read_record

FORMAT = 1
ABOUT_FILE = "_about.json"
THUMBNAILS = "_thumbnails"
"""Begins the names of files of thumbnails; who reads the folder as one Parquet set passes over them."""
_PART = re.compile(r"part-(\d{6})\.parquet")

Dtype = Literal["fp16", "fp32"]
LEAST_PART, MOST_PART, NUM_PARTS = 256, 1024, 64
"""Rows of a part, and parts that a dataset has at least where these allow it."""


@dataclass(frozen=True)
class About:
    """The content of a store.

    Args:
        basis: everything that the features depend on, in the types of JSON: weights, stage, images, their size and
            so on.
        part_rows: rows of each part, of the last one fewer.
        classes: names of the classes, by label; empty if there are none.
    """

    basis: dict[str, Any]
    num_rows: int
    part_rows: int
    dtype: Dtype
    classes: tuple[str, ...] = ()

    @property
    def num_parts(self) -> int:
        """Number of parts of a complete store."""
        return -(-self.num_rows // self.part_rows)


def part_rows_for(num_rows: int) -> int:
    """Return the rows of a part; the same on any cluster, so that another one goes on with its parts."""
    return min(MOST_PART, max(LEAST_PART, num_rows // NUM_PARTS))


@dataclass(frozen=True)
class Rows:
    """Some rows.

    Args:
        index: int64 [B], places in the dataset.
        names: where each image came from.
        labels: int64 [B] or [B, K].
        features: float16 or float32 [B, D].
    """

    index: Int64s
    names: list[str]
    labels: Int64s
    features: np.ndarray


class Store:
    """The stored features of a split, which may be incomplete."""

    def __init__(self, folder: Folder, about: About) -> None:
        self.folder = folder
        self.about = about

    @classmethod
    def begin(cls, folder: Folder, about: About) -> "Store":
        """Open a store for writing; an existing one of the same features is continued, another one removed."""
        text = (json.dumps({"format": FORMAT, **asdict(about)}, indent=1) + "\n").encode()
        if outlast(lambda: folder.read_if_there(ABOUT_FILE)) != text:
            # parts of another basis must go before the new one is written, or they would count as its parts
            outlast(lambda: folder.remove_folder(""))
            outlast(folder.make)
            outlast(lambda: folder.write(ABOUT_FILE, text))
        return cls(folder, about)

    @classmethod
    def open(cls, folder: Folder) -> "Store":
        """Open a store for reading."""
        content = folder.read_if_there(ABOUT_FILE)
        if not content:
            raise ConfigError(f"{folder.uri} holds no features; raysl extract --checkpoint RUN writes them")
        try:
            tree = read_record(content, "a store of features", {"format": int})
            if tree.pop("format") != FORMAT:
                raise Damaged("another format")
            about = from_record(About, tree, "a store of features")
        except Damaged as error:
            raise ConfigError(
                f"{folder.uri_of(ABOUT_FILE)} cannot be read by this raysl (format {FORMAT}): it is damaged, or of "
                "another version; extract the features again"
            ) from error
        store = cls(folder, about)
        if missing := store.missing():
            raise ConfigError(
                f"{folder.uri} lacks {len(missing):,} of its {about.num_parts:,} parts: its extraction was cut off; "
                "the same raysl extract goes on with it"
            )
        return store

    def missing(self) -> list[int]:
        """Return the numbers of missing parts."""
        present = {int(match.group(1)) for name in self.folder.names() if (match := _PART.fullmatch(name))}
        return [number for number in range(self.about.num_parts) if number not in present]

    def keep(self, number: int, rows: Rows) -> None:
        """Write a part."""
        kind = np.float16 if self.about.dtype == "fp16" else np.float32
        features = np.ascontiguousarray(rows.features, dtype=kind)
        table = pa.table(
            {
                "index": rows.index,
                "name": pa.array(rows.names, pa.string()),
                "label": _column(rows.labels),
                "features": _column(features),
            }
        )
        buffer = io.BytesIO()
        pq.write_table(table, buffer, compression="none", use_dictionary=False)
        outlast(lambda: self.folder.write(_name(number), buffer.getvalue()))

    def keep_thumbnails(self, number: int, files: list[bytes]) -> None:
        """Write the thumbnails of a part, before the part itself."""
        buffer = io.BytesIO()
        pq.write_table(pa.table({"image": files}), buffer, compression="none", use_dictionary=False)
        outlast(lambda: self.folder.write(_name(number, THUMBNAILS), buffer.getvalue()))

    def thumbnails(self, index: Int64s) -> list[bytes]:
        """Return the thumbnails of some rows in this order; empty if those of any row were not kept."""
        files: dict[int, bytes] = {}
        numbers = index // self.about.part_rows
        for number in np.unique(numbers).tolist():
            content = outlast(partial(self.folder.read_if_there, _name(number, THUMBNAILS)))
            if not content:
                return []
            column = pq.ParquetFile(pa.BufferReader(content)).read(use_threads=False)["image"]
            for row in index[numbers == number].tolist():
                files[row] = column[row - number * self.about.part_rows].as_py()
        return [files[row] for row in index.tolist()]

    def parts(self, with_features: bool = True) -> Iterator[Rows]:
        """Yield the parts in order; without features these are [B, 0]."""
        names = ["index", "name", "label"] + ["features"] * with_features
        for number in range(self.about.num_parts):
            buffer = pa.BufferReader(self.folder.read(_name(number)))
            table = pq.ParquetFile(buffer).read(names, use_threads=False)  # the threads of read_table may abort at exit
            index = np.array(table["index"])
            features = array_of(table["features"]) if with_features else np.empty((len(index), 0), np.float32)
            yield Rows(index, table["name"].to_pylist(), array_of(table["label"]), features)

    def remove(self) -> None:
        """Delete the store."""
        outlast(lambda: self.folder.remove_folder(""))


def array_of(column: pa.ChunkedArray) -> np.ndarray:
    """Return a column of numbers [N], or of lists of equal length [N, D]."""
    whole = column.combine_chunks()
    if isinstance(whole, pa.ChunkedArray):  # of no rows
        whole = pa.concat_arrays(whole.chunks)
    if not pa.types.is_fixed_size_list(whole.type):
        return np.array(whole)
    return np.array(whole.flatten()).reshape(len(whole), whole.type.list_size)


def _column(values: "np.ndarray | Tensor") -> Any:
    rows = np.asarray(values)
    return rows if rows.ndim == 1 else pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), rows.shape[1])


def _name(number: int, kind: str = "part") -> str:
    return f"{kind}-{number:06d}.parquet"
