"""Images in files of their own, below one folder, with separate labels."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
from pyarrow import fs
from typing_extensions import override

from raysl.data.limits import max_file_bytes
from raysl.data.source import ConfigError, Int64s, Missing, runs
from raysl.data.sources.listing import File, composed, list_folder_files, printable, spellings
from raysl.data.sources.versions import read_versions, versions_digest
from raysl.data.split import Encoded, LabelledSplit
from raysl.hashing import digest
from raysl.storage.addresses import open_uri, stat_uri, storage_errors
from raysl.storage.reads import REMOTE_READS, NotRegularFile, TooLarge, read_file

T = TypeVar("T")


class FilesSplit(LabelledSplit):
    """Image files in the given order; one that has been deleted is read as a missing image.

    Args:
        labels: int [N] with -1 where unlabelled, or int [N, K] of 1 present, 0 absent and -1 ignore.
        classes: names of the classes, by label.
        sizes: int64 [N], bytes of each file, if a listing has them; part of the fingerprint.
        known_as: names of the files in the fingerprint; default: their paths.
        mtimes: modification times in nanoseconds, if a listing has them.
    """

    def __init__(
        self,
        uri: str,
        files: Iterable[str],
        labels: np.ndarray,
        classes: tuple[str, ...],
        sizes: Int64s | None = None,
        known_as: "Paths | None" = None,
        notes: tuple[str, ...] = (),
        mtimes: Iterable[int | None] = (),
    ) -> None:
        self.uri = uri
        self.files = files if isinstance(files, Paths) else Paths(files)
        self.is_multilabel = labels.ndim == 2
        self.labels = labels.astype(np.int8 if self.is_multilabel else np.int64)
        self.classes = classes
        self.notes = notes
        self.unit_sizes = runs(len(self.files))
        names = (known_as or self.files).digest()
        self.fingerprint = digest(names, self.labels.tobytes(), b"" if sizes is None else sizes.tobytes())
        self._written = versions_digest(mtimes)

    @override
    def written(self, ask: bool = True) -> str:
        if not self._written and ask:
            self._written = versions_digest(read_versions(self.locate(np.arange(len(self.files)))))
        return self._written

    @override
    def images_of(self, index: Int64s) -> list[Encoded]:
        return read_each(self.locate(index))

    @override
    def name_of(self, row: int) -> str:
        return self.names_of(np.array([row]))[0]

    @override
    def names_of(self, index: Int64s) -> list[str]:
        _, root = open_uri(self.uri)  # once for all rows
        return [f"{root}/{printable(file)}" for file in self.files.take(index)]

    def locate(self, index: Int64s) -> list[tuple[fs.FileSystem, str]]:
        """Return the file system and the path of each file."""
        system, root = open_uri(self.uri)
        return [(system, f"{root}/{file}") for file in self.files.take(index)]


def read_each(files: Sequence[tuple[fs.FileSystem, str]]) -> list[Encoded]:
    """Read files as `read_if_there` does, several at a time if one is remote."""
    most = max_file_bytes()  # of this thread
    if all(isinstance(system, fs.LocalFileSystem) for system, _ in files):
        return [read_if_there(system, path, most) for system, path in files]
    with ThreadPoolExecutor(REMOTE_READS) as pool:
        return list(pool.map(lambda file: read_if_there(file[0], file[1], most), files))


def read_if_there(system: fs.FileSystem, path: str, most: int | None = None) -> bytes | Missing:
    """Read an image file; errors as in `call_if_there`."""
    return call_if_there(system, path, lambda name: read_file(system, name, most or max_file_bytes()))


def call_if_there(system: fs.FileSystem, path: str, read: Callable[[str], T]) -> T | Missing:
    """Call `read` with the path of a file.

    Args:
        system, path: location of the file, whose name may be in composed or decomposed characters (NFC, NFD).

    Returns:
        Its result; Missing if the file was deleted, is too large, or if a local one is no regular file or unreadable.

    Raises:
        ConfigError: if a remote storage denies access, which probably concerns all files.
        RunFailed: if a network keeps failing.
    """
    with storage_errors("read", path):
        for name in spellings(path):
            try:
                return read(name)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except IsADirectoryError:
                return Missing("a folder, not a file")
            except (NotRegularFile, TooLarge) as error:
                return Missing(str(error))
            except PermissionError:
                if not isinstance(system, fs.LocalFileSystem):
                    raise
                return Missing("no right to read the file")
        return Missing("file not found")


def check_present(uri: str, files: Sequence[str], listed_in: str) -> list[File]:
    """Return each file of a list as its folder lists it; names are compared in composed characters (NFC).

    Args:
        files: names of files directly in it.
    """
    _, info = stat_uri(uri)
    if info.type != fs.FileType.Directory:
        raise ConfigError(
            f"no folder {uri!r} with the images that {listed_in} lists; give data.path= the whole dataset"
        )
    present = {composed(name): file for name, file in list_folder_files(uri).items()}
    absent = [name for name in files if composed(name) not in present]
    if absent:
        raise ConfigError(
            f"{len(absent):,} of the {len(files):,} images that {listed_in} lists are not in {uri!r}, "
            f"first {absent[0]!r}; is the download complete?"
        )
    return [present[composed(name)] for name in files]


def listed_split(
    uri: str, names: Sequence[str], labels: np.ndarray, classes: tuple[str, ...], listed_in: str
) -> FilesSplit:
    """Return the images of a list, which all have to be in a folder."""
    present = check_present(uri, names, listed_in)
    sizes = np.array([-1 if file.size is None else file.size for file in present], np.int64)
    paths, mtimes = (file.path for file in present), (file.mtime_ns for file in present)
    return FilesSplit(uri, paths, labels, classes, sizes, Paths(names), mtimes=mtimes)


class Paths:
    """A list of millions of texts in one block of bytes, plus 8 bytes each, sent to other processes without a copy.

    >>> Paths(["a/1.jpg", "a/2.jpg"])[1]
    'a/2.jpg'
    """

    def __init__(self, paths: Iterable[str]) -> None:
        block = bytearray()
        ends = [0]
        for path in paths:
            block += path.encode("utf-8", "surrogateescape")
            ends.append(len(block))
        self._block = np.frombuffer(bytes(block), np.uint8)
        self._ends = np.array(ends, np.int64)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, number: int) -> str:
        return self._bytes(range(len(self))[number]).decode("utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        return (self[number] for number in range(len(self)))

    def take(self, index: Int64s) -> list[str]:
        """Return the paths with these indices."""
        return [self[number] for number in index.tolist()]

    def digest(self) -> str:
        """Return 16 hexadecimal digits that change with the paths and their order."""
        return digest(self._ends.tobytes(), self._block.data)

    def repeats(self) -> Int64s:
        """Return the indices of paths that are equal to an earlier one."""
        # a hash takes 8 bytes, however long the path is; only paths of equal hashes are compared in full
        hashes = np.array([hash(self._bytes(number)) for number in range(len(self))], np.int64)
        _, group, sizes = np.unique(hashes, return_inverse=True, return_counts=True)
        seen: set[bytes] = set()
        repeated = []
        for number in np.flatnonzero(sizes[group] > 1).tolist():
            path = self._bytes(number)
            if path in seen:
                repeated.append(number)
            seen.add(path)
        return np.array(repeated, np.int64)

    def _bytes(self, number: int) -> bytes:
        return self._block[self._ends[number] : self._ends[number + 1]].tobytes()
