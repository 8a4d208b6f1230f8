"""Files that list something: arrays (.npy), lines (.txt), and columns of tables (.csv, .jsonl)."""

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from pyarrow import fs

from raysl.errors import ConfigError
from raysl.storage.addresses import cut, info_of, telling
from raysl.storage.reads import read_file

FORMATS = (".npy", ".txt", ".csv", ".jsonl")
_CHUNK = 1 << 16


def read_values(uri: str) -> list[int] | list[str]:
    """The integers or texts of a list: one a line that is not blank, or a one-dimensional array.

    Raises:
        ConfigError: if the file is missing or is no such list.
    """
    if extension(uri) == ".npy":
        array = read_array(uri)
        if array.ndim != 1:
            raise ConfigError(f"{uri} holds an array of shape {list(array.shape)}; save one of one dimension")
        return [value for part in chunks(array) for value in part]
    return [line.strip() for _, line in read_lines(uri)]


def read_array(uri: str) -> np.ndarray:
    """An array of integers or texts; a local one stays on disk until its parts are used.

    Raises:
        ConfigError: if the file is missing or holds anything else.
    """
    system, info = _found(uri)
    is_local = isinstance(system, fs.LocalFileSystem)
    with telling("read", uri):
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


def chunks(array: np.ndarray, errors: str = "backslashreplace") -> Iterator[list[Any]]:
    """The values of an array, some at a time; bytes as texts, `errors` as for `bytes.decode`."""
    for start in range(0, len(array), _CHUNK):
        part = np.asarray(array[start : start + _CHUNK])
        yield (np.char.decode(part, "utf-8", errors) if part.dtype.kind == "S" else part).tolist()


def read_lines(uri: str) -> Iterator[tuple[int, str]]:
    """Lines of a text that are not blank, without their ends, and their numbers, from 1.

    Raises:
        ConfigError: if the file is missing or is no text.
    """
    for number, line in enumerate(_text(uri).split("\n"), 1):
        if line.strip():
            yield number, line.removesuffix("\r")


def read_columns(
    uri: str, columns: Sequence[str | None], needed_by: Mapping[str, str]
) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """Values of columns in the rows of a .csv (with a header) or .jsonl file, None where absent, and their lines.

    Args:
        uri: of the file.
        columns: their names; None for one that is not asked for.
        needed_by: the setting that names a column which may not be absent in all rows, by the column.

    Raises:
        ConfigError: if the file is missing, a line cannot be read, or a column is absent or there twice.
    """
    there: dict[str, None] = {}
    for number, row in _csv_rows(uri, columns) if extension(uri) == ".csv" else _json_rows(uri):
        there |= dict.fromkeys(row)
        yield number, tuple(None if column is None else row.get(column) for column in columns)
    for column, setting in needed_by.items():
        if there and column not in there:
            raise ConfigError(f"{uri} has no column {column!r}; its columns: {', '.join(there)}; set {setting}")


def extension(uri: str) -> str:
    """The ending of a list's name, one of FORMATS.

    Raises:
        ConfigError: if it is none of them.
    """
    name = cut(uri)[1].lower()
    found = next((ending for ending in FORMATS if name.endswith(ending)), None)
    if found is None:
        raise ConfigError(f"{uri} is no list; its name ends in {', '.join(FORMATS)}")
    return found


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
        except json.JSONDecodeError as error:
            raise ConfigError(f"{uri}, line {number}: not JSON: {error.msg}") from error
        if not isinstance(row, dict):
            raise ConfigError(f'{uri}, line {number}: {line[:40]!r} is no object such as {{"path": "a.jpg"}}')
        yield number, row


def _text(uri: str) -> str:
    system, info = _found(uri)
    with telling("read", uri):
        content = read_file(system, info.path)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{uri} is no UTF-8 text: {error.reason} at byte {error.start}") from error


def _found(uri: str) -> tuple[fs.FileSystem, fs.FileInfo]:
    system, info = info_of(uri)
    if info.type != fs.FileType.File:
        raise ConfigError(f"no file {uri!r}; give a list that ends in {', '.join(FORMATS)}")
    return system, info
