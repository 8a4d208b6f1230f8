"""Folders, local or remote, with their addresses, and patience with a storage that fails."""

import hashlib
import os
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import pyarrow as pa
from pyarrow import fs

from raysl.errors import RunFailed, StorageError, log
from raysl.storage import s3
from raysl.storage.addresses import absolute as absolute
from raysl.storage.addresses import cut as cut
from raysl.storage.addresses import join as join
from raysl.storage.addresses import open_uri as open_uri
from raysl.storage.addresses import split_query
from raysl.storage.addresses import storage_errors as storage_errors
from raysl.storage.reads import file_errors, fsspec_client, is_object_store, refusal, retrying

T = TypeVar("T")

PART = ".part"  # suffix of a file that is still being written
CHUNK_BYTES = 8 << 20
PATIENCE_S = 1800.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0

_may_wait = ContextVar("may_wait", default=True)


@contextmanager
def without_waiting() -> Iterator[None]:
    """Have `outlast` raise the first error while inside, in this thread: for a caller that tries again later."""
    before = _may_wait.set(False)
    try:
        yield
    finally:
        _may_wait.reset(before)


def outlast(
    action: Callable[[], T],
    goes_on: Callable[[], bool] = lambda: True,
    patience_s: float | None = None,
    sleep: Callable[[float], object] = time.sleep,
) -> T:
    """Return what `action` returns; while the storage fails, call it again, with pauses that grow to half a minute.

    A full disk is an error at once, so that somebody makes room; inside `without_waiting`, so is every failure.

    Args:
        action: may be called more than once.
        goes_on: called before each pause; the error is raised when it returns False.
        patience_s: seconds after which the error is raised; default: half an hour.

    Raises:
        StorageError: the error of the last try.
    """
    patience_s = PATIENCE_S if patience_s is None else patience_s
    pause, waited = FIRST_PAUSE_S, 0.0
    while True:
        try:
            return action()
        except StorageError as error:
            if waited >= patience_s or refusal(error) or not _may_wait.get() or not goes_on():
                raise
            log.warning("%s; trying again in %.0f s, for up to %.0f min", error, pause, (patience_s - waited) / 60)
        sleep(pause)
        waited += pause
        pause = min(2 * pause, LONGEST_PAUSE_S)


class Folder:
    """A folder at a local path or a URI.

    Its methods raise ConfigError where the user can help (a missing file or right), and StorageError where the storage
    fails, a remote one after a few tries.

    Attributes:
        sign: path of a file without which a local folder counts as gone for the moment, such as one on a disk that is
            not mounted; the methods then raise StorageError. None: the folder may be made.
    """

    sign: str | None = None

    def __init__(self, uri: str) -> None:
        base, query = split_query(absolute(uri))
        self.uri = f"{base.rstrip('/')}{query}"
        self.system, self.path = open_uri(self.uri)
        self.is_local = isinstance(self.system, fs.LocalFileSystem)
        self.is_object_store = is_object_store(self.system)

    @property
    def look_every_s(self) -> float:
        """Seconds between two looks for files of other processes."""
        return 0.5 if self.is_local else 10.0

    def child(self, name: str) -> "Folder":
        """Return the folder `name` inside this one."""
        child = Folder(self.uri_of(name))
        child.sign = self.sign
        return child

    def check_there(self) -> None:
        """Raise StorageError if the folder is gone for the moment."""
        if self.sign is not None and not os.path.exists(self.sign):
            name = os.path.basename(self.sign)
            raise StorageError(
                f"the folder {self.uri} has gone, or its file {name}; bring it back as it was (is its disk mounted?)"
            )

    def uri_of(self, name: str) -> str:
        """Return the address of `name` in this folder."""
        return join(self.uri, name)

    def make(self) -> None:
        """Create the folder; in an object store, where files make folders, only its bucket, if that is allowed."""
        self._do("create", "", partial(_make_bucket, self.system) if self.is_object_store else self.system.create_dir)

    def exists(self, name: str = "") -> bool:
        """Return whether the folder, or a file or folder in it, exists."""
        return bool(self._info(name).type != fs.FileType.NotFound)

    def size(self, name: str) -> int | None:
        """Return the bytes of a file; None if it does not exist."""
        info = self._info(name)
        return int(info.size) if info.type == fs.FileType.File else None

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
        return self._do("read", name, partial(_read, self.system))

    def read_if_there(self, name: str) -> bytes:
        """Return the content of a file; empty if it does not exist."""
        return self._do("read", name, partial(_read_if_there, self.system))

    def sha256(self, name: str) -> str:
        """Return the hexadecimal SHA-256 of a file."""

        def read(path: str) -> str:
            digest = hashlib.sha256()
            with self.system.open_input_stream(path) as stream:
                while chunk := stream.read(CHUNK_BYTES):
                    digest.update(chunk)
            return digest.hexdigest()

        return self._do("read", name, read)

    def last_lines(self, name: str, num_bytes: int = 8192) -> bytes:
        """Return the complete lines in the last `num_bytes` of a file; empty if it does not exist."""

        def read(path: str) -> bytes:
            try:
                file = self.system.open_input_file(path)
            except FileNotFoundError:
                return b""
            with file:
                first = max(0, file.size() - num_bytes)
                content = bytes(file.read_at(file.size() - first, first))
            # a read that begins inside the file may begin inside a line, which is left out
            return content if first == 0 else content.partition(b"\n")[2]

        return self._do("read", name, read)

    def remove(self, name: str) -> None:
        """Delete a file, if it exists."""
        self._do("delete", name, partial(delete_file, self.system))

    def remove_folder(self, name: str) -> None:
        """Delete a folder in this one, with its content, if it exists."""
        self._do("delete", name, partial(_delete_folder, self.system))

    def write(self, name: str, content: bytes) -> None:
        """Write a file so that no reader sees half of it; of several writers at a time the last one wins.

        An object store shows a file when it is whole. Elsewhere it gets a temporary name first, and is moved into
        place.
        """
        write = put if self.is_object_store else _write_and_move
        self._do("write", name, partial(write, self.system, content))

    def names(self) -> list[str]:
        """Return the names of the files and folders directly inside, sorted."""
        return sorted(entry.base_name for entry in self.entries())

    def versions(self) -> dict[str, "Version"]:
        """Return the names of the files and folders directly inside, each with what changes when it is written again.

        This is one request to a bucket, however many names there are up to 1,000.
        """
        return {entry.base_name: Version(entry.size, entry.mtime_ns) for entry in self.entries()}

    def entries(self) -> list[fs.FileInfo]:
        """Return name, kind, size and time of the files and folders directly inside, in any order."""
        return self._do("read", "", partial(_list, self.system))

    def download(self, target: Path, names: Collection[str] | None = None) -> None:
        """Copy everything inside, or only the files `names`, to a local folder."""
        target.mkdir(parents=True, exist_ok=True)
        for name in [""] if names is None else names:
            self._do("read", name, partial(_copy_out, self.system, target / name))

    def upload(self, source: Path, name: str) -> None:
        """Write the content of a local file to `name`, as `write` does."""
        self.write(name, source.read_bytes())

    def copy_in(self, source: Path, name: str) -> None:
        """Copy a local file of any size to `name`; except in an object store, readers may see half of it meanwhile."""
        if not self.is_object_store:
            parent = name.rpartition("/")[0]
            (self.child(parent) if parent else self).make()
        self._do("write", name, partial(_copy_in, self.system, source))

    def _info(self, name: str) -> fs.FileInfo:
        return self._do("read", name, partial(_stat, self.system))

    def _do(self, what: str, name: str, action: Callable[[str], T]) -> T:
        """Call `action` with the path of `name`, a few times if a remote storage fails."""
        path, uri = (f"{self.path}/{name}", self.uri_of(name)) if name else (self.path, self.uri)
        with storage_errors(what, uri):
            if self.is_local:
                self.check_there()
                try:
                    return action(path)
                finally:
                    self.check_there()  # what it did not find may be in the folder
            try:
                return retrying(lambda: action(path), what, uri)
            except RunFailed as error:
                raise StorageError(str(error)) from error


class Version(NamedTuple):
    """Size and time of a file; another content has other ones.

    Args:
        size: bytes; None for a folder.
        time: moment of its last change, in nanoseconds since 1970; None where the client does not tell.
    """

    size: int | None
    time: int | None


def _make_bucket(system: fs.FileSystem, path: str) -> None:
    bucket = path.partition("/")[0]
    if system.get_file_info(bucket).type == fs.FileType.NotFound:
        system.create_dir(bucket, recursive=True)


def put(system: fs.FileSystem, content: bytes, path: str) -> None:
    """Write a file in place of the one that is there."""
    with system.open_output_stream(path) as stream:
        stream.write(content)


def _write_and_move(system: fs.FileSystem, content: bytes, path: str) -> None:
    # in the same folder, so that the move only renames, and with a name that no other writer has
    unfinished = f"{path}.{uuid.uuid4().hex[:8]}{PART}"
    try:
        with system.open_output_stream(unfinished) as stream:
            stream.write(content)
        system.move(unfinished, path)
    except BaseException:
        with suppress(*file_errors(), pa.ArrowException):  # the first error is the one to raise
            system.delete_file(unfinished)
        raise


def delete_file(system: fs.FileSystem, path: str) -> None:
    """Delete a file, if it exists."""
    if system.type_name == "s3":
        with suppress(s3.NoClient):
            s3.delete(system, [path])
            return
    # some storages raise other errors than FileNotFoundError for what does not exist
    if _stat(system, path).type != fs.FileType.NotFound:
        with suppress(FileNotFoundError):
            system.delete_file(path)


def _delete_folder(system: fs.FileSystem, path: str) -> None:
    if system.type_name == "s3":
        inside = system.get_file_info(fs.FileSelector(path, recursive=True, allow_not_found=True))
        # other clients leave empty objects for folders
        paths = [f"{entry.path}/" if entry.type == fs.FileType.Directory else entry.path for entry in inside]
        with suppress(s3.NoClient):
            s3.delete(system, [*paths, f"{path}/"])
            return
    if _stat(system, path).type != fs.FileType.NotFound:
        with suppress(FileNotFoundError):
            system.delete_dir(path)


def _read(system: fs.FileSystem, path: str) -> bytes:
    with system.open_input_stream(path) as stream:
        return bytes(stream.read())


def _read_if_there(system: fs.FileSystem, path: str) -> bytes:
    try:
        return _read(system, path)
    except FileNotFoundError:
        return b""


def _list(system: fs.FileSystem, path: str) -> list[fs.FileInfo]:
    _forget_listings(system)
    return list(system.get_file_info(fs.FileSelector(path, allow_not_found=True)))


def _stat(system: fs.FileSystem, path: str) -> fs.FileInfo:
    _forget_listings(system)
    return system.get_file_info(path)


def _forget_listings(system: fs.FileSystem) -> None:
    """Drop the listings that an fsspec client keeps, which lack what other processes have written since."""
    client = fsspec_client(system)
    if client is not None:
        client.invalidate_cache()


_LOCAL = fs.LocalFileSystem()


def _copy_out(system: fs.FileSystem, target: Path, path: str) -> None:
    fs.copy_files(path, str(target), source_filesystem=system, destination_filesystem=_LOCAL, chunk_size=CHUNK_BYTES)


def _copy_in(system: fs.FileSystem, source: Path, path: str) -> None:
    fs.copy_files(str(source), path, source_filesystem=_LOCAL, destination_filesystem=system, chunk_size=CHUNK_BYTES)
