"""Images that are files of one folder, with labels that stand elsewhere."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from pyarrow import fs
from typing_extensions import override

from raysl.data.source import Missing, Rows, Split, runs
from raysl.data.sources.listing import File, files_in, shown
from raysl.data.sources.versions import digest_of, versions_of
from raysl.data.split import Encoded
from raysl.errors import ConfigError
from raysl.hashing import Int64s
from raysl.storage.addresses import info_of, open_uri, telling
from raysl.storage.reads import REMOTE_READS, read_file


class FilesSplit(Split):
    """Files in the order given; one that is gone when it is read is a missing image.

    Args:
        uri: folder or URI.
        files: paths below it.
        labels: int [N] with -1 where unlabelled, or int [N, K] of 1 present, 0 absent and -1 ignore.
        classes: names of the classes, by label.
        sizes: int64 [N], bytes of each file, where a listing has them; they enter the fingerprint.
        mtimes: when each file was written, in nanoseconds, where a listing has that.
        known_as: what stands for the files in the fingerprint; default: their paths.
        notes: what is odd about them, a line each.
    """

    is_random_access = True

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
        digest = hashlib.sha256((known_as or self.files).digest().encode() + self.labels.tobytes())
        digest.update(b"" if sizes is None else sizes.tobytes())
        self.fingerprint = digest.hexdigest()[:16]
        self._written = digest_of(mtimes)

    @override
    def written(self, ask: bool = True) -> str:
        if not self._written and ask:
            self._written = digest_of(versions_of(self._places(np.arange(len(self.files)))))
        return self._written

    @override
    def read(self, index: Int64s) -> Rows:
        return Rows(read_each(self._places(index)), self.labels_of(index), self.names_of(index))

    @override
    def labels_of(self, index: Int64s) -> Int64s:
        return self.labels[index].astype(np.int64)

    @override
    def names_of(self, index: Int64s) -> list[str]:
        _, root = open_uri(self.uri)
        return [f"{root}/{shown(file)}" for file in self.files.take(index)]

    def _places(self, index: Int64s) -> list[tuple[fs.FileSystem, str]]:
        system, root = open_uri(self.uri)
        return [(system, f"{root}/{file}") for file in self.files.take(index)]


def read_each(places: Sequence[tuple[fs.FileSystem, str]]) -> list[Encoded]:
    """The files at these places as `read_if_there` gives them, several at a time where one is remote."""
    if all(isinstance(system, fs.LocalFileSystem) for system, _ in places):
        return [read_if_there(*place) for place in places]
    with ThreadPoolExecutor(REMOTE_READS) as pool:
        return list(pool.map(lambda place: read_if_there(*place), places))


def read_if_there(system: fs.FileSystem, path: str) -> bytes | Missing:
    """An image file; Missing where it is gone, or where a local one is a folder or may not be read.

    Raises:
        ConfigError: if a storage denies it, which is then likely to deny others.
        RunFailed: if a network fails again and again.
    """
    with telling("read", path):
        try:
            return read_file(system, path)
        except (FileNotFoundError, NotADirectoryError):
            return Missing("file not found")
        except IsADirectoryError:
            return Missing("a folder, not a file")
        except PermissionError:
            if not isinstance(system, fs.LocalFileSystem):
                raise
            return Missing("no right to read the file")


def check_present(uri: str, files: Sequence[str], listed_in: str) -> list[File]:
    """Each image of a list as its folder has it; a list that names some which are not there is refused.

    Args:
        uri: folder or URI.
        files: names of files that lie in it, sub-folders not included.
        listed_in: what names them, for the message.

    Raises:
        ConfigError: with the number of absent files and the first of them.
    """
    _, info = info_of(uri)
    if info.type != fs.FileType.Directory:
        raise ConfigError(
            f"no folder {uri!r} with the images that {listed_in} lists; give data.path= the whole dataset"
        )
    present = files_in(uri)
    absent = [name for name in files if name not in present]
    if absent:
        raise ConfigError(
            f"{len(absent):,} of the {len(files):,} images that {listed_in} lists are not in {uri!r}, "
            f"first {absent[0]!r}; is the download whole?"
        )
    return [present[name] for name in files]


def sizes_of(files: Iterable[File]) -> Int64s:
    """Bytes of each file, int64 [N]; -1 where the storage does not tell."""
    return np.array([-1 if file.size is None else file.size for file in files], np.int64)


class Paths:
    """A list of texts that takes their bytes and 8 more each, and is sent to other processes without a copy.

    Args:
        paths: any number of texts.
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

    def __getitem__(self, place: int) -> str:
        return self._bytes(range(len(self))[place]).decode("utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        return (self[place] for place in range(len(self)))

    def take(self, index: Int64s) -> list[str]:
        """The paths at these places."""
        return [self[place] for place in index.tolist()]

    def digest(self) -> str:
        """16 hexadecimal digits that other paths, or another order, change."""
        return hashlib.sha256(self._ends.tobytes() + self._block.tobytes()).hexdigest()[:16]

    def repeats(self) -> Int64s:
        """Places of the paths that stand further ahead already."""
        hashes = np.array([hash(self._bytes(place)) for place in range(len(self))], np.int64)
        _, group, sizes = np.unique(hashes, return_inverse=True, return_counts=True)
        seen: set[bytes] = set()
        repeated = []
        for place in np.flatnonzero(sizes[group] > 1).tolist():
            path = self._bytes(place)
            if path in seen:
                repeated.append(place)
            seen.add(path)
        return np.array(repeated, np.int64)

    def _bytes(self, place: int) -> bytes:
        return self._block[self._ends[place] : self._ends[place + 1]].tobytes()
