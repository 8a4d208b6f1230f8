"""Lists in files: arrays (.npy), lines (.txt) and tables; lists of images and labels."""

import io
import os
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import numpy as np
from pyarrow import fs

from raysl.config.places import IMAGES
from raysl.data.sources.class_names import check_numbers
from raysl.data.sources.labels import Labels, label_columns, read_values, table_labels
from raysl.data.sources.listing import is_image_or_array
from raysl.data.sources.tables import TABLES, read_lines, read_table
from raysl.errors import ConfigError
from raysl.storage.addresses import open_uri
from raysl.storage.whole import plain_name, read_whole

FORMATS = (".npy", ".txt", *TABLES)
_CHUNK = 1 << 16


def read_list(uri: str) -> list[int] | list[str]:
    """Read a list of integers or texts: one per non-blank line, or a one-dimensional array."""
    if list_format(uri) == ".npy":
        array = read_array(uri)
        if array.ndim != 1:
            raise ConfigError(f"{uri} holds an array of shape {list(array.shape)}; save one of one dimension")
        return [value for part in array_chunks(array) for value in part]
    return [line.strip() for _, line in read_lines(uri)]


def read_array(uri: str) -> np.ndarray:
    """Open an array of integers or texts; a local one is mapped from disk."""
    system, path = open_uri(uri)
    is_mapped = isinstance(system, fs.LocalFileSystem) and path.lower().endswith(".npy") and os.path.isfile(path)
    source = path if is_mapped else io.BytesIO(read_whole(uri))
    try:
        array: np.ndarray = np.load(source, mmap_mode="r" if is_mapped else None, allow_pickle=False)
        if not isinstance(array, np.ndarray):
            raise ValueError("it holds several arrays")
    except (OSError, ValueError, EOFError) as error:
        raise ConfigError(
            f"cannot read {uri} as an array: {str(error).splitlines()[0]}; save integers, or texts of fixed width, "
            "with np.save(file, np.array(texts, dtype=str))"
        ) from error
    if array.dtype.kind not in "iuUS":
        raise ConfigError(f"{uri} holds {array.dtype}, not integers or texts")
    return array


def array_chunks(array: np.ndarray, errors: str = "backslashreplace") -> Iterator[list[Any]]:
    """Yield the values of an array in chunks; bytes are decoded to texts, with `errors` as in `bytes.decode`."""
    for start in range(0, len(array), _CHUNK):
        part = np.asarray(array[start : start + _CHUNK])
        yield (np.char.decode(part, "utf-8", errors) if part.dtype.kind == "S" else part).tolist()


def list_format(uri: str) -> str:
    """Return the ending of a list's name, one of FORMATS."""
    name = plain_name(uri)
    ending = next((ending for ending in FORMATS if name.endswith(ending)), None)
    if ending is None:
        raise ConfigError(
            f"{uri} is not a list; the name of a list ends in {', '.join(FORMATS)}, and maybe in .gz, .bz2 or .zst "
            "behind it"
        )
    return ending


_ENDING = rf"\.(?:{'|'.join(IMAGES)})"
_LABEL_WITH_BLANKS = re.compile(rf"\S.*{_ENDING}\s+(?!.*{_ENDING}$)[^/]*$", re.IGNORECASE)


def read_image_list(
    uri: str, path_column: str, label_column: str | None, as_names: bool = False
) -> tuple[Iterable[str], Labels | None]:
    """Read a list of images: their paths, and their labels, None without any.

    Args:
        uri: an array of texts (.npy), one path per line (.txt), optionally with a label, or a table.
        path_column, label_column: columns of a table; None: no labels are read from it.
        as_names: whether each label is one name, also if it looks like a number.

    Raises:
        ConfigError: if it is not such a list, lacks a column that the user named, or labels only some of the images.
    """
    kind = list_format(uri)
    if kind == ".npy":
        array = read_array(uri)
        if array.ndim != 1 or array.dtype.kind not in "US":
            raise ConfigError(f"{uri} holds {array.dtype} of shape {list(array.shape)}, not a list of paths")
        return chain.from_iterable(array_chunks(array, "surrogateescape")), None
    if kind == ".txt":
        return _read_image_lines(uri, as_names)
    table = read_table(uri, path_column, lambda names: label_columns(names, path_column, label_column))
    paths = table.column(path_column, "data.path_column=")
    for row, path in enumerate(paths):
        if not isinstance(path, str) or not path:
            raise ConfigError(f"{table.where(row)}: no text {path_column!r}; set data.path_column=")
    return paths, table_labels(table, path_column, label_column, as_names)


def _read_image_lines(uri: str, as_names: bool) -> tuple[list[str], Labels | None]:
    rows = [(number, *_path_and_label(line)) for number, line in read_lines(uri)]
    paths = [path for _, path, _ in rows]
    blanks = next((number for number, path, _ in rows if _LABEL_WITH_BLANKS.match(path)), None)
    if blanks is not None:
        raise ConfigError(f"{uri}, line {blanks}: a label that contains blanks must follow a tab")
    is_labelled = [label is not None for _, _, label in rows]
    if not any(is_labelled):
        return paths, None
    if not all(is_labelled):
        line = rows[is_labelled.index(False)][0]
        raise ConfigError(f"{uri}, line {line}: no label, but other lines have one; write -1 for unlabelled")
    return paths, read_values([label for _, _, label in rows], uri, [number for number, _, _ in rows], as_names)


def read_labels(uri: str, label_column: str, as_names: bool = False) -> Labels:
    """Read a list of labels.

    Args:
        uri: an array (.npy), [N] or [N, K] of a multi-label dataset, one label per line (.txt), or a table.
        label_column: column of a table, which must exist.
        as_names: whether each label is one name, also if it looks like a number.
    """
    kind = list_format(uri)
    if kind == ".txt":
        rows = list(read_lines(uri))
        return read_values([label for _, label in rows], uri, [number for number, _ in rows], as_names)
    if kind != ".npy":
        table = read_table(uri, label_column, lambda _: [label_column])
        return read_values(table.column(label_column, "data.label_column="), uri, table.lines, as_names)
    array = read_array(uri)
    if array.ndim == 1:
        return read_values(list(chain.from_iterable(array_chunks(array))), uri, None, as_names)
    if array.ndim != 2 or array.dtype.kind not in "iu":
        raise ConfigError(f"{uri} holds {array.dtype} of shape {list(array.shape)}, not labels [N] or [N, classes]")
    labels = np.asarray(array).astype(np.int64)
    check_numbers(labels, uri)
    return Labels(labels)


def _path_and_label(line: str) -> tuple[str, str | None]:
    path, tab, label = line.rpartition("\t")
    if tab:
        return path.strip(), label.strip()
    # paths may contain blanks: the last word is a label only behind an image's ending
    ends = line.strip().rsplit(maxsplit=1)
    if len(ends) == 2 and is_image_or_array(ends[0]) and not is_image_or_array(ends[1]):
        return ends[0], ends[1]
    return line.strip(), None
