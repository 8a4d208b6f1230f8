"""Files that list something: arrays (.npy), lines (.txt), and columns of tables (.csv, .jsonl)."""

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from pyarrow import fs

from raysl.data.sources.class_names import LABELS, check_numbers, parsed
from raysl.data.sources.listing import IMAGES, is_image
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


_ENDING = rf"\.(?:{'|'.join(IMAGES)})"
_LABEL_WITH_BLANKS = re.compile(rf"\S.*{_ENDING}\s+(?!.*{_ENDING}$)[^/]*$", re.IGNORECASE)


def read_image_list(uri: str, path_column: str, label_column: str | None) -> tuple[Iterable[str], np.ndarray | None]:
    """Paths as they are listed, and the labels int64 [N] or text [N] beside them; None where there are none.

    Args:
        uri: an array of texts (.npy), a path a line (.txt) which a label may follow, or a table (.csv, .jsonl).
        path_column, label_column: columns of a table; None: no labels are read from it.

    Raises:
        ConfigError: if it is no such list, lacks a column that the user named, or labels only some of the images.
    """
    kind = extension(uri)
    if kind == ".npy":
        array = read_array(uri)
        if array.ndim != 1 or array.dtype.kind not in "US":
            raise ConfigError(f"{uri} holds {array.dtype} of shape {list(array.shape)}, not a list of paths")
        return chain.from_iterable(chunks(array, "surrogateescape")), None
    if kind == ".txt":
        rows: list[tuple[int, Any, Any]] = [(number, *_path_and_label(line)) for number, line in read_lines(uri)]
        blanks = next((number for number, path, _ in rows if _LABEL_WITH_BLANKS.match(path)), None)
        if blanks is not None:
            raise ConfigError(f"{uri}, line {blanks}: a label with blanks in it needs a tab before it, not a blank")
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
        raise ConfigError(f"{uri}, line {line}: no label, where other lines have one; write -1 for none")
    labels = parsed([_stripped(label) for _, _, label in rows], uri) if any(is_labelled) else None
    return [path for _, path, _ in rows], labels


def read_labels(uri: str, label_column: str) -> np.ndarray:
    """Labels int64 [N] or text [N] of a list, or int64 [N, K] of a multi-label array.

    Args:
        uri: an array (.npy), a label a line (.txt), or a table (.csv, .jsonl).
        label_column: column of a table, which must be there.

    Raises:
        ConfigError: if it is no such list.
    """
    kind = extension(uri)
    if kind != ".npy":
        if kind == ".txt":
            return parsed([line.strip() for _, line in read_lines(uri)], uri)
        rows = read_columns(uri, (label_column,), {label_column: "data.label_column="})
        return parsed([_stripped(label) for _, (label,) in rows], uri)
    array = read_array(uri)
    if array.ndim == 1:
        return parsed(list(chain.from_iterable(chunks(array))), uri)
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
    if len(words) == 2 and is_image(words[0]) and not is_image(words[1]):
        return words[0], words[1]
    return line.strip(), None


def _stripped(label: Any) -> Any:
    return label.strip() if isinstance(label, str) else label
