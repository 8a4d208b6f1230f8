"""Addresses, local paths or URIs: one way to join them, to open them, and to tell what went wrong there."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from urllib.parse import parse_qs, urlparse

import pyarrow as pa
from pyarrow import fs

from raysl.errors import ConfigError, RunFailed, StorageError
from raysl.redact import without_hidden
from raysl.storage.reads import CHECK, LASTING, ROOM, check_server, file_errors, full_disk, reason_of

GCS_RETRY_S = 20  # the client's own default is a quarter of an hour without a word


def absolute(uri: str) -> str:
    """A local path made absolute (with `~` expanded); a URI as it is.

    Raises:
        ConfigError: if it is no text, nor a `Path`.
    """
    if not isinstance(uri, str | os.PathLike):
        raise ConfigError(f"{uri!r} is no path or URI; give a text such as 'runs/mine' or 's3://bucket/runs/mine'")
    uri = os.fspath(uri)
    return uri if _is_uri(uri) else os.path.abspath(os.path.expanduser(uri))


def join(uri: str, name: str) -> str:
    """The address of what is called `name` in a folder; the query of a URI stays at the end."""
    base, query = split_query(uri)
    return f"{base.rstrip('/')}/{name}{query}"


def cut(uri: str) -> tuple[str, str]:
    """The reverse of `join`: the folder, which keeps the query of a URI, and the name in it."""
    base, query = split_query(uri)
    folder, _, name = base.rpartition("/")
    return f"{folder}{query}", name


def split_query(uri: str) -> tuple[str, str]:
    """A URI without its query, and that with its mark; of a local path nothing is cut off."""
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
    return system, info_at(system, path, uri)


def info_at(system: fs.FileSystem, path: str, uri: str) -> fs.FileInfo:
    """What lies at a path; a website that does not answer is no missing file.

    Raises:
        ConfigError: if it cannot be reached.
    """
    with telling("read", uri):
        info = system.get_file_info(path)
        if info.type == fs.FileType.NotFound:
            try:
                check_server(system, path)
            except RunFailed as error:
                raise StorageError(str(error)) from error
        return info


@contextmanager
def telling(what: str, uri: str) -> Iterator[None]:
    """Turn what a file system raises inside into a message for the user.

    Raises:
        ConfigError: instead of the errors of files, of networks and of missing packages: a StorageError where it may
            be gone at the next try.
    """
    try:
        yield
    except ConfigError:
        raise
    except (*file_errors(), pa.ArrowException, ImportError, ValueError) as error:
        may_pass = isinstance(error, file_errors()) and not isinstance(error, LASTING)
        kind = StorageError if may_pass else ConfigError
        advice = ROOM if full_disk(error) else CHECK
        raise kind(f"cannot {what} {uri!r}: {reason_of(error)}; {advice}") from error


def _is_uri(uri: str) -> bool:
    return "://" in uri and bool(urlparse(uri).scheme)
