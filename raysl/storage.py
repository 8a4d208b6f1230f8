"""Folders that may be local or remote: one way to open a URI, and the files of a run."""

import os
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlparse

import pyarrow as pa
from pyarrow import fs

from raysl.config.schema import ConfigError


def absolute(uri: str) -> str:
    """A local path made absolute (with `~` expanded); a URI as it is."""
    return uri if _is_uri(uri) else os.path.abspath(os.path.expanduser(uri))


@lru_cache(maxsize=64)
def open_uri(uri: str) -> tuple[fs.FileSystem, str]:
    """The file system of a local path or a URI, and the path inside it.

    Schemes that pyarrow does not know (`https://`, `hf://`, `az://`) go through fsspec.

    Raises:
        ConfigError: if the URI cannot be opened.
    """
    if not _is_uri(uri):
        return fs.LocalFileSystem(), absolute(uri)
    try:
        return fs.FileSystem.from_uri(uri)
    except pa.ArrowInvalid:
        return _open_fsspec(uri)
    except (OSError, pa.ArrowException) as error:
        raise ConfigError(f"cannot open {uri!r}: {error}") from error


def _open_fsspec(uri: str) -> tuple[fs.FileSystem, str]:
    import fsspec

    try:
        system, path = fsspec.core.url_to_fs(uri)
    except (ImportError, ValueError, OSError) as error:
        raise ConfigError(f"cannot open {uri!r}: {error}") from error
    return fs.PyFileSystem(fs.FSSpecHandler(system)), path


def _is_uri(uri: str) -> bool:
    return "://" in uri and bool(urlparse(uri).scheme)


class Folder:
    """A folder at a local path or a URI."""

    def __init__(self, uri: str) -> None:
        self.uri = absolute(uri).rstrip("/")
        self.system, self.path = open_uri(self.uri)
        self.is_local = isinstance(self.system, fs.LocalFileSystem)

    def child(self, name: str) -> "Folder":
        """The folder `name` inside this one."""
        return Folder(f"{self.uri}/{name}")

    def make(self) -> None:
        """Create the folder.

        Raises:
            ConfigError: if it cannot be created.
        """
        try:
            self.system.create_dir(self.path, recursive=True)
        except (OSError, pa.ArrowException) as error:
            raise ConfigError(f"cannot create {self.uri!r}: {error}") from error

    def exists(self, name: str = "") -> bool:
        """Whether the folder, or a file or folder of it, exists."""
        try:
            info = self.system.get_file_info(f"{self.path}/{name}".rstrip("/"))
        except (OSError, pa.ArrowException) as error:
            raise ConfigError(f"cannot read {self.uri!r}: {error}") from error
        return bool(info.type != fs.FileType.NotFound)

    def read(self, name: str) -> bytes:
        """Content of a file."""
        with self.system.open_input_stream(f"{self.path}/{name}") as stream:
            return bytes(stream.read())

    def read_if_there(self, name: str) -> bytes:
        """Content of a file; empty where there is none."""
        return self.read(name) if self.exists(name) else b""

    def remove(self, name: str) -> None:
        """Delete a file, if it is there."""
        if self.exists(name):
            self.system.delete_file(f"{self.path}/{name}")

    def write(self, name: str, content: bytes) -> None:
        """Write a file whole: under another name first, then moved into place."""
        path = f"{self.path}/{name}"
        with self.system.open_output_stream(f"{path}.part") as stream:
            stream.write(content)
        self.system.move(f"{path}.part", path)

    def names(self) -> list[str]:
        """Names of the files and folders directly inside, sorted."""
        entries = self.system.get_file_info(fs.FileSelector(self.path, allow_not_found=True))
        return sorted(entry.base_name for entry in entries)

    def download(self, target: Path) -> None:
        """Copy everything inside to a local folder."""
        target.mkdir(parents=True, exist_ok=True)
        fs.copy_files(self.path, str(target), source_filesystem=self.system, destination_filesystem=fs.LocalFileSystem())

    def upload(self, source: Path, name: str) -> None:
        """Copy a local file to `name`."""
        self.write(name, source.read_bytes())
