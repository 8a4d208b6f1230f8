"""A list of image files, with labels in it or in a second list."""

import os
import posixpath
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from pyarrow import fs
from typing_extensions import override

from raysl.config.ranges import Location
from raysl.data.source import ConfigError, DataConfig, Int64s, Source, Split
from raysl.data.sources.class_names import LABELS, check_seen, class_names, number_labels
from raysl.data.sources.frames import with_frames
from raysl.data.sources.image_files import FilesSplit, Paths
from raysl.data.sources.listing import parse_frame, printable, spellings
from raysl.data.sources.lists import FORMATS, Labels, as_multilabel, read_image_list, read_labels, renumbered
from raysl.redact import bare_uri, without_hidden
from raysl.storage.addresses import cut, join, open_uri, stat_path, storage_errors
from raysl.storage.foreign import check_listed

WEB = ("http://", "https://")


class FileList(Source):
    """Images that a list names, in its order.

    A list is an array of paths (`.npy`), one path a line (`.txt`; a label may follow it, after a tab, or after a blank
    where the path ends in an image's extension), or a table (`.csv` and `.tsv` with a header, `.jsonl`, `.parquet`),
    also compressed (`.gz`, `.bz2`, `.zst`). Labels are integers from 0 (-1: unlabelled) or names, which are sorted and
    numbered by the training images. The dataset is multi-label if labels are an array `.npy` [N, K] or a column for
    each class, of 1 present, 0 absent and -1 ignore, or name several classes: `cat|dog`. Each frame of a DICOM file is
    an image, and each slice of a NIfTI file or of an array of slices; `scan.dcm#3` lists the third alone.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(DataConfig):
        """Where the lists lie, and how to read them."""

        name: str = "file_list"
        train: Location | None = None
        """List of the training images, a file or URI: .npy, .txt, .csv, .tsv, .jsonl or .parquet."""
        test: Location | None = None
        """List of the held-out images."""
        train_labels: Location | None = None
        """List of the labels of `train`, in its order, if it does not contain them."""
        test_labels: Location | None = None
        """List of the labels of `test`."""
        root: Location | None = None
        """Folder or URI of relative paths. Default: the folder of the list."""
        path_column: str = "path"
        """Column of the paths in a table."""
        label_column: str | None = LABELS
        """Column of the labels in a table. If the default is missing, `labels` is read, or a column for each class; any
        other must exist; null: none are read."""
        label_names: bool = False
        """Read each label as one name, also if it looks like a number or contains `|`."""
        replace_prefix: dict[str, str] = field(default_factory=dict)
        """Prefixes of listed paths and their replacements: {/old/folder: s3://bucket/new}; the first that fits is
        replaced."""
        allow_duplicates: bool = False
        """Allow an image to be listed more than once."""

    @override
    def split(self, name: str) -> Split | None:
        if name == "train":
            return self._train
        if self.config.test is None:
            if self.config.test_labels is not None:
                raise ConfigError(
                    "data.test_labels= are labels of data.test=, the list of held-out images; give it too"
                )
            return None
        is_multilabel = self._training[1].values.ndim == 2
        files, labels, origin = self._read(self.config.test, self.config.test_labels, is_multilabel)
        split = self._split(files, self._as_numbers(labels, origin), self._train.classes, labels.notes)
        check_seen(split, self._train, origin)
        return split

    @cached_property
    def _train(self) -> Split:
        files, labels, origin = self._training
        classes = labels.classes or class_names(labels.values)
        return self._split(files, self._as_numbers(labels, origin), classes, labels.notes)

    @cached_property
    def _training(self) -> tuple[Paths, Labels, str]:
        if self.config.train is None:
            raise ConfigError(f"file_list needs data.train=, a list of images ({', '.join(FORMATS)})")
        return self._read(self.config.train, self.config.train_labels)

    def _as_numbers(self, labels: Labels, origin: str) -> np.ndarray:
        """Number labels as in the training images."""
        _, training, _ = self._training
        if training.classes and labels.values.ndim == 1:
            labels = as_multilabel(labels)
        if training.classes and labels.classes:
            return renumbered(labels, training.classes, origin)
        values, known = labels.values, training.values
        if values.shape[1:] != known.shape[1:]:
            if (values == -1).all():
                return np.full((len(values), *known.shape[1:]), -1)
            raise ConfigError(
                f"{origin} has labels of shape {list(values.shape)}, the training images of {list(known.shape)}; save "
                "both as [N] or as [N, classes]"
            )
        if values.dtype.kind == "U" or known.dtype.kind == "U":
            texts = values if values.dtype.kind == "U" else np.where(values < 0, "", values.astype(str))
            return number_labels(texts, class_names(known) if known.dtype.kind == "U" else (), origin)
        return values

    def _read(self, uri: str, labels_uri: str | None, is_multilabel: bool = False) -> tuple[Paths, Labels, str]:
        """Return absolute paths, the labels as they are written, and the file of the labels.

        Args:
            is_multilabel: whether the training images are multi-label, if these are the held-out ones.
        """
        config = self.config
        column = None if labels_uri is not None else config.label_column
        listed, labels = read_image_list(uri, config.path_column, column, config.label_names, is_multilabel)
        files = Paths(self._absolute(listed, config.root or cut(uri)[0], uri))
        if not len(files):
            raise ConfigError(f"{uri} lists no images")
        if labels_uri is not None:
            labels = read_labels(labels_uri, config.label_column or LABELS, config.label_names)
            if len(labels.values) != len(files):
                numbers = f"{len(labels.values):,} labels for the {len(files):,} images"
                raise ConfigError(f"{labels_uri} lists {numbers} of {uri}; give one each")
        repeats = _repeats(files)
        if len(repeats) and not config.allow_duplicates:
            raise ConfigError(
                f"{uri} lists {len(repeats):,} images more than once, first {files[int(repeats[0])]!r}; "
                "remove the repetitions, or set data.allow_duplicates=true"
            )
        _check_some(files, uri)
        return files, labels or Labels(np.full(len(files), -1)), labels_uri or uri

    def _split(self, files: Paths, labels: np.ndarray, classes: tuple[str, ...], notes: tuple[str, ...]) -> Split:
        """Return the listed images; a path that ends in `#` and a number is one frame of a file."""
        channels = self.config.channels
        chosen = np.fromiter((parse_frame(file)[1] for file in files), np.int64, len(files))
        if not chosen.any():
            return with_frames(_ListSplit(files, labels, classes, notes), channels)
        paths = Paths(parse_frame(file)[0] for file in files)
        return with_frames(_ListSplit(paths, labels, classes, notes), channels, chosen)

    def _absolute(self, listed: Iterable[str], root: str, origin: str) -> Iterator[str]:
        for path in listed:
            # checked as it is listed: a prefix that replaces its beginning below is the user's own, and trusted
            check_listed(path, origin)
            is_uri = "://" in path
            for old, new in self.config.replace_prefix.items():
                if path.startswith(old):
                    path = new + path[len(old) :]
                    if not is_uri:
                        path = _mark_name(path, len(new))
                    break
            path, frame = parse_frame(path)
            if not path.startswith("/") and "://" not in path:
                path = _join_name(root, path.removeprefix("./"))
            yield f"{path}#{frame}" if frame else path


NAME = "/./"
"""Separates the URI of a folder from a name below it with a `?`, which begins no query."""


def _join_name(root: str, name: str) -> str:
    """Return the address of a listed name below a folder, whatever characters it contains."""
    if root.startswith(WEB):
        # unless they are encoded, these characters would be those of a web address
        for character, code in (("%", "%25"), ("?", "%3F"), ("#", "%23")):
            name = name.replace(character, code)
    return f"{root}{NAME}{name}" if "://" in root and "?" in name else join(root, name)


def _mark_name(path: str, start: int) -> str:
    """Separate the folder of a URI from a name with a `?`, which is looked for from `start` on."""
    mark = path.find("?", start)
    if mark < 0 or "://" not in path or path.startswith(WEB):
        return path
    slash = path.rindex("/", 0, mark)
    return f"{path[:slash]}{NAME}{path[slash + 1 :]}"


def _repeats(files: Paths) -> Int64s:
    """Return the indices of images that are listed more than once: again, or whole beside one of their frames."""
    plain = Paths(map(_plain, files))
    files_of_frames = {file for file, frame in map(parse_frame, (path for path in plain if "#" in path)) if frame}
    whole = [number for number, path in enumerate(plain) if path in files_of_frames] if files_of_frames else []
    return np.union1d(plain.repeats(), np.array(whole, np.int64))


def _plain(path: str) -> str:
    """Remove `.` and `..` from a path, so that two names of a file compare equal."""
    scheme, mark, rest = path.rpartition("://")
    return f"{scheme}{mark}{posixpath.normpath(rest)}"


def _check_some(files: Paths, uri: str) -> None:
    """Refuse a list if its first, middle and last image are all missing: its root is probably wrong."""
    some = [parse_frame(files[number])[0] for number in sorted({0, len(files) // 2, len(files) - 1})]
    for path in (spelling for listed in some for spelling in spellings(listed)):
        with storage_errors("read", path):
            system, inner = _resolve(path)
        is_local = isinstance(system, fs.LocalFileSystem)
        if os.path.isfile(inner) if is_local else stat_path(system, inner, path).type == fs.FileType.File:
            return
    raise ConfigError(
        f"no file {some[0]!r}, which {uri} lists; set data.root= or data.replace_prefix= to where its images are"
    )


def _resolve(path: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of an absolute path or URI, and the path in it; a bucket is opened only once."""
    path = without_hidden(path)
    folder, mark, name = path.partition(NAME)
    if not mark or "?" not in name:
        folder, name = path, ""
    scheme, mark, rest = folder.partition("://")
    if not mark:
        return open_uri(path)
    host, _, inner = rest.partition("/")
    if scheme in ("http", "https"):
        return open_uri(f"{scheme}://{host}")[0], path
    inner, mark, query = inner.partition("?")
    system, root = open_uri(f"{scheme}://{host}{mark}{query}" if host else f"{scheme}:///{mark}{query}")
    inner = f"{root}/{inner}"
    return system, f"{inner.rstrip('/')}/{name}" if name else inner


class _ListSplit(FilesSplit):
    """Files with absolute paths or URIs."""

    def __init__(self, files: Paths, labels: np.ndarray, classes: tuple[str, ...], notes: tuple[str, ...]) -> None:
        known_as = Paths(bare_uri(file) for file in files)
        super().__init__("/", files, labels, classes, known_as=known_as, notes=notes)

    @override
    def names_of(self, index: Int64s) -> list[str]:
        return [printable(file) for file in self.files.take(index)]

    @override
    def locate(self, index: Int64s) -> list[tuple[fs.FileSystem, str]]:
        return [_resolve(file) for file in self.files.take(index)]
