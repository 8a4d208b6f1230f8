"""Lists of images and of their labels."""

import re
from collections.abc import Iterable
from itertools import chain
from typing import Any

import numpy as np

from raysl.data.sources.class_names import LABELS, check_numbers, parsed
from raysl.data.sources.endings import IMAGES, is_image
from raysl.data.sources.list_formats import chunks, extension, read_array, read_columns, read_lines
from raysl.errors import ConfigError

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
