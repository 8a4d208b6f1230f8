"""Folders that may be local or remote: one way to open a URI, and the files of a run."""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from urllib.parse import parse_qs, urlparse

import pyarrow as pa
from pyarrow import fs

from raysl.config.schema import ConfigError
from raysl.reads import CHECK, file_errors, reason_of
from raysl.reads import read_file as read_file
from raysl.reads import read_ranges as read_ranges
from raysl.reads import retrying as retrying
from raysl.redact import without_hidden

PART = ".part"  # ends the name of a file that is not whole
GCS_RETRY_S = 20  # the client's own default is a quarter of an hour without a word


def absolute(uri: str) -> str:
    """A local path made absolute (with `~` expanded); a URI as it is."""
    return uri if _is_uri(uri) else os.path.abspath(os.path.expanduser(uri))


def join(uri: str, name: str) -> str:
    """The address of what is called `name` in a folder; the query of a URI stays at the end."""
    base, query = _without_query(uri)
    return f"{base.rstrip('/')}/{name}{query}"


def cut(uri: str) -> tuple[str, str]:
    """The reverse of `join`: the folder, which keeps the query of a URI, and the name in it."""
    base, query = _without_query(uri)
    folder, _, name = base.rpartition("/")
    return f"{folder}{query}", name


def _without_query(uri: str) -> tuple[str, str]:
    base, mark, query = uri.partition("?") if _is_uri(uri) else (uri, "", "")
    return base, f"{mark}{query}"


def open_uri(uri: str) -> tuple[fs.FileSystem, str]:
    """The file system of a local path or a URI, and the path inside it.

    Schemes that pyarrow does not know (`https://`, `hf://`, `az://`) go through fsspec. Credentials that are `***`, as
    in stored settings, are left out: those of the environment apply.

    Raises:
        ConfigError: if the URI cannot be opened.
    """
    if not _is_uri(uri):
        return fs.LocalFileSystem(), absolute(uri)
    return _open_remote(without_hidden(uri))


@lru_cache(maxsize=64)
def _open_remote(uri: str) -> tuple[fs.FileSystem, str]:
    with telling("open", uri):
        try:
            system, path = fs.FileSystem.from_uri(_bounded(uri))
        except pa.ArrowInvalid:
            system, path = _open_fsspec(uri)
    return system, path.rstrip("/")


def _bounded(uri: str) -> str:
    """Let a Google bucket that does not answer be an error soon; `retry_limit_seconds` in the URI overrules this."""
    parts = urlparse(uri)
    if parts.scheme not in ("gs", "gcs") or "retry_limit_seconds" in parse_qs(parts.query):
        return uri
    return f"{uri}{'&' if parts.query else '?'}retry_limit_seconds={GCS_RETRY_S}"


def _open_fsspec(uri: str) -> tuple[fs.FileSystem, str]:
    import fsspec

    system, path = fsspec.core.url_to_fs(uri)
    return fs.PyFileSystem(fs.FSSpecHandler(system)), path


def info_of(uri: str) -> tuple[fs.FileSystem, fs.FileInfo]:
    """The file system of a local path or a URI, and what lies there.

    Raises:
        ConfigError: if it cannot be reached.
    """
    system, path = open_uri(uri)
    with telling("read", uri):
        return system, system.get_file_info(path)


@contextmanager
def telling(what: str, uri: str) -> Iterator[None]:
    """Turn what a file system raises inside into a message for the user.

    Raises:
        ConfigError: instead of the errors of files, of networks and of missing packages.
    """
    try:
        yield
    except ConfigError:
        raise
    except (*file_errors(), pa.ArrowException, ImportError, ValueError) as error:
        raise ConfigError(f"cannot {what} {uri!r}: {reason_of(error)}; {CHECK}") from error


def _is_uri(uri: str) -> bool:
    return "://" in uri and bool(urlparse(uri).scheme)


class Folder:
    """A folder at a local path or a URI."""

    def __init__(self, uri: str) -> None:
        base, query = _without_query(absolute(uri))
        self.uri = f"{base.rstrip('/')}{query}"
        self.system, self.path = open_uri(self.uri)
        self.is_local = isinstance(self.system, fs.LocalFileSystem)

    def child(self, name: str) -> "Folder":
        """The folder `name` inside this one."""
        return Folder(self.uri_of(name))

    def uri_of(self, name: str) -> str:
        """The address of what is called `name` in this folder."""
        return join(self.uri, name)

    def make(self) -> None:
        """Create the folder.

        Raises:
            ConfigError: if it cannot be created.
        """
        with telling("create", self.uri):
            self.system.create_dir(self.path, recursive=True)

    def exists(self, name: str = "") -> bool:
        """Whether the folder, or a file or folder of it, exists.

        Raises:
            ConfigError: if the folder cannot be reached.
        """
        with telling("read", self.uri):
            info = self.system.get_file_info(f"{self.path}/{name}".rstrip("/"))
        return bool(info.type != fs.FileType.NotFound)

    def read(self, name: str) -> bytes:
        """Content of a file.

        Raises:
            ConfigError: if it cannot be read.
        """
        with telling("read", self.uri_of(name)), self.system.open_input_stream(f"{self.path}/{name}") as stream:
            return bytes(stream.read())

    def read_if_there(self, name: str) -> bytes:
        """Content of a file; empty where there is none."""
        return self.read(name) if self.exists(name) else b""

    def last_lines(self, name: str, num_bytes: int = 8192) -> bytes:
        """The whole lines in the last `num_bytes` of a file; empty where there is none."""
        if not self.exists(name):
            return b""
        with self.system.open_input_file(f"{self.path}/{name}") as file:
            first = max(0, file.size() - num_bytes)
            content = bytes(file.read_at(file.size() - first, first))
        return content if first == 0 else content.partition(b"\n")[2]

    def remove(self, name: str) -> None:
        """Delete a file, if it is there."""
        if self.exists(name):
            self.system.delete_file(f"{self.path}/{name}")

    def write(self, name: str, content: bytes) -> None:
        """Write a file whole: under a name of its own first, then moved into place.

        Of several writers at a time the last one wins.

        Raises:
            ConfigError: if it cannot be written.
        """
        path = f"{self.path}/{name}"
        unfinished = f"{path}.{uuid.uuid4().hex[:8]}{PART}"
        with telling("write", self.uri_of(name)):
            try:
                with self.system.open_output_stream(unfinished) as stream:
                    stream.write(content)
                self.system.move(unfinished, path)
            except BaseException:
                with suppress(*file_errors(), pa.ArrowException):  # what went wrong before is what is told
                    self.system.delete_file(unfinished)
                raise

    def names(self) -> list[str]:
        """Names of the files and folders directly inside, sorted.

        Raises:
            ConfigError: if the folder cannot be read.
        """
        return sorted(entry.base_name for entry in self.entries())

    def entries(self) -> list[fs.FileInfo]:
        """What is known of the files and folders directly inside, in any order.

        Raises:
            ConfigError: if the folder cannot be read.
        """
        with telling("read", self.uri):
            return list(self.system.get_file_info(fs.FileSelector(self.path, allow_not_found=True)))

    def download(self, target: Path) -> None:
        """Copy everything inside to a local folder."""
        target.mkdir(parents=True, exist_ok=True)
        fs.copy_files(
            self.path, str(target), source_filesystem=self.system, destination_filesystem=fs.LocalFileSystem()
        )

    def upload(self, source: Path, name: str) -> None:
        """Copy a local file to `name`."""
        self.write(name, source.read_bytes())
