"""Lists in files: arrays (.npy), lines (.txt), and columns of tables (.csv, .jsonl); lists of images and labels."""

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from pyarrow import fs

from raysl.config.places import IMAGES
from raysl.data.sources.class_names import LABELS, check_numbers
from raysl.data.sources.label_column import parse_labels
from raysl.data.sources.listing import is_image_or_array
from raysl.errors import ConfigError
from raysl.storage.addresses import cut, stat_uri, storage_errors
from raysl.storage.reads import read_file

FORMATS = (".npy", ".txt", ".csv", ".jsonl")
_CHUNK = 1 << 16


def read_values(uri: str) -> list[int] | list[str]:
    """Read a list of integers or texts: one per non-blank line, or a one-dimensional array.

    Raises:
        ConfigError: if the file is missing or not such a list.
    """
    if list_format(uri) == ".npy":
        array = read_array(uri)
        if array.ndim != 1:
            raise ConfigError(f"{uri} holds an array of shape {list(array.shape)}; save one of one dimension")
        return [value for part in array_chunks(array) for value in part]
    return [line.strip() for _, line in read_lines(uri)]


def read_array(uri: str) -> np.ndarray:
    """Open an array of integers or texts; a local one is mapped from disk.

    Raises:
        ConfigError: if the file is missing or holds anything else.
    """
    system, info = _find(uri)
    is_local = isinstance(system, fs.LocalFileSystem)
    with storage_errors("read", uri):
        source = info.path if is_local else io.BytesIO(read_file(system, info.path))
        try:
            array: np.ndarray = np.load(source, mmap_mode="r" if is_local else None, allow_pickle=False)
        except (ValueError, EOFError) as error:
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


def read_lines(uri: str) -> Iterator[tuple[int, str]]:
    """Yield the numbers, from 1, and contents of the lines of a text that are not blank.

    Raises:
        ConfigError: if the file is missing or not a text.
    """
    for number, line in enumerate(_text(uri).split("\n"), 1):
        if line.strip():
            yield number, line.removesuffix("\r")


def read_columns(
    uri: str, columns: Sequence[str | None], needed_by: Mapping[str, str]
) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """Yield the line number and the values of columns for each row of a .csv (with a header) or .jsonl file.

    Args:
        uri: of the file.
        columns: their names; None for one that is not read.
        needed_by: columns that must exist, each with the setting that names it.

    Raises:
        ConfigError: if the file is missing, a line cannot be read, or a column is missing or occurs twice.
    """
    existing: dict[str, None] = {}
    for number, row in _csv_rows(uri, columns) if list_format(uri) == ".csv" else _json_rows(uri):
        existing |= dict.fromkeys(row)
        yield number, tuple(None if column is None else row.get(column) for column in columns)
    for column, setting in needed_by.items():
        if existing and column not in existing:
            raise ConfigError(f"{uri} has no column {column!r}; its columns: {', '.join(existing)}; set {setting}")


def list_format(uri: str) -> str:
    """Return the ending of a list's name, one of FORMATS.

    Raises:
        ConfigError: if it has another ending.
    """
    name = cut(uri)[1].lower()
    ending = next((ending for ending in FORMATS if name.endswith(ending)), None)
    if ending is None:
        raise ConfigError(f"{uri} is not a list; the name of a list ends in {', '.join(FORMATS)}")
    return ending


def _csv_rows(uri: str, columns: Sequence[str | None]) -> Iterator[tuple[int, dict[str, str]]]:
    reader = csv.reader(io.StringIO(_text(uri), newline=""), skipinitialspace=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        repeated = next((column for column in columns if column is not None and header.count(column) > 1), None)
        if repeated is not None:
            raise ConfigError(f"{uri} has {header.count(repeated)} columns {repeated!r}; give each its own name")
        for row in reader:
            if row:
                yield reader.line_num, dict(zip(header, row, strict=False))  # a short row has no values at its end
    except csv.Error as error:
        raise ConfigError(f"{uri}, line {reader.line_num}: {error}") from error


def _json_rows(uri: str) -> Iterable[tuple[int, dict[str, Any]]]:
    for number, line in read_lines(uri):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{uri}, line {number}: not JSON: {str(error).partition(': line')[0]}") from error
        if not isinstance(row, dict):
            raise ConfigError(f'{uri}, line {number}: {line[:40]!r} is not an object such as {{"path": "a.jpg"}}')
        if "\\ud" in line.lower() and not _is_unicode(row):
            raise ConfigError(f"{uri}, line {number}: {line[:40]!r} has half of a character; write the whole one")
        yield number, row


def _is_unicode(row: dict[str, Any]) -> bool:
    """Whether no text of an object has a lone surrogate, which no file's name has."""
    try:
        "".join(value for value in row.values() if isinstance(value, str)).encode()
    except UnicodeEncodeError:
        return False
    return True


def _text(uri: str) -> str:
    system, info = _find(uri)
    with storage_errors("read", uri):
        content = read_file(system, info.path)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{uri} is not a UTF-8 text: {error.reason} at byte {error.start}") from error


def _find(uri: str) -> tuple[fs.FileSystem, fs.FileInfo]:
    system, info = stat_uri(uri)
    if info.type != fs.FileType.File:
        raise ConfigError(f"no file {uri!r}; give a list that ends in {', '.join(FORMATS)}")
    return system, info


_ENDING = rf"\.(?:{'|'.join(IMAGES)})"
_LABEL_WITH_BLANKS = re.compile(rf"\S.*{_ENDING}\s+(?!.*{_ENDING}$)[^/]*$", re.IGNORECASE)


def read_image_list(
    uri: str, path_column: str, label_column: str | None, as_names: bool = False
) -> tuple[Iterable[str], np.ndarray | None]:
    """Read a list of images: their paths, and their labels int64 [N] or text [N], None without labels.

    Args:
        uri: an array of texts (.npy), one path per line (.txt), optionally with a label, or a table (.csv, .jsonl).
        path_column, label_column: columns of a table; None: no labels are read from it.
        as_names: whether labels that look like numbers are names.

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
        rows: list[tuple[int, Any, Any]] = [(number, *_path_and_label(line)) for number, line in read_lines(uri)]
        blanks = next((number for number, path, _ in rows if _LABEL_WITH_BLANKS.match(path)), None)
        if blanks is not None:
            raise ConfigError(f"{uri}, line {blanks}: a label that contains blanks must follow a tab")
    else:
        needed = {path_column: "data.path_column="}
        if label_column not in (None, LABELS):
            needed[label_column] = "data.label_column= (null: unlabelled)"
        rows = [(number, *row) for number, row in read_columns(uri, (path_column, label_column), needed)]
        without = next((number for number, path, _ in rows if not isinstance(path, str) or not path), None)
        if without is not None:
            raise ConfigError(f"{uri}, line {without}: no text {path_column!r}; set data.path_column=")
    is_labelled = [label is not None for _, _, label in rows]
    if kind == ".txt" and any(is_labelled) and not all(is_labelled):
        line = rows[is_labelled.index(False)][0]
        raise ConfigError(f"{uri}, line {line}: no label, but other lines have one; write -1 for unlabelled")
    lines = [number for number, _, _ in rows]
    labels = parse_labels([label for _, _, label in rows], uri, lines, as_names) if any(is_labelled) else None
    return [path for _, path, _ in rows], labels


def read_labels(uri: str, label_column: str, as_names: bool = False) -> np.ndarray:
    """Read a list of labels: int64 [N] or text [N], or int64 [N, K] of a multi-label array.

    Args:
        uri: an array (.npy), one label per line (.txt), or a table (.csv, .jsonl).
        label_column: column of a table, which must exist.
        as_names: whether labels that look like numbers are names.

    Raises:
        ConfigError: if it is not such a list.
    """
    kind = list_format(uri)
    if kind != ".npy":
        if kind == ".txt":
            rows: list[tuple[int, Any]] = list(read_lines(uri))
        else:
            table = read_columns(uri, (label_column,), {label_column: "data.label_column="})
            rows = [(number, label) for number, (label,) in table]
        return parse_labels([label for _, label in rows], uri, [number for number, _ in rows], as_names)
    array = read_array(uri)
    if array.ndim == 1:
        return parse_labels(list(chain.from_iterable(array_chunks(array))), uri, as_names=as_names)
    if array.ndim != 2 or array.dtype.kind not in "iu":
        raise ConfigError(f"{uri} holds {array.dtype} of shape {list(array.shape)}, not labels [N] or [N, classes]")
    labels = np.asarray(array).astype(np.int64)
    check_numbers(labels, uri)
    return labels


def _path_and_label(line: str) -> tuple[str, str | None]:
    path, tab, label = line.rpartition("\t")
    if tab:
        return path.strip(), label.strip()
    words = line.strip().rsplit(maxsplit=1)
    if len(words) == 2 and is_image_or_array(words[0]) and not is_image_or_array(words[1]):
        return words[0], words[1]
    return line.strip(), None
