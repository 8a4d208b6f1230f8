"""Addresses, which are local paths or URIs: joining them, opening them, and messages for what fails there."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from urllib.parse import parse_qs, quote, urlparse

import pyarrow as pa
from pyarrow import fs

from raysl.errors import ConfigError, RunFailed, StorageError
from raysl.redact import remember, without_hidden
from raysl.storage.foreign import check_withheld
from raysl.storage.reads import LASTING, advice, check_server, file_errors, short_reason
from raysl.storage.s3 import with_single_puts

_ARROW_SCHEMES = ("file", "s3", "gs", "gcs", "hdfs", "viewfs", "abfs", "abfss")
GCS_RETRY_S = 20  # the client's default is a silent quarter of an hour


def absolute(uri: str) -> str:
    """Return a local path made absolute (with `~` expanded), or a URI as it is.

    >>> absolute("/data/../runs"), absolute("s3://bucket/runs")
    ('/runs', 's3://bucket/runs')

    Raises:
        ConfigError: if it is neither a string nor a `Path`.
    """
    if not isinstance(uri, str | os.PathLike):
        raise ConfigError(f"{uri!r} is no path or URI; give a string such as 'runs/mine' or 's3://bucket/runs/mine'")
    uri = os.fspath(uri)
    return uri if _is_uri(uri) else os.path.abspath(os.path.expanduser(uri))


def join(uri: str, name: str) -> str:
    """Return the address of `name` in a folder; the query of a URI stays at the end.

    >>> join("s3://bucket/runs?region=eu-west-1", "mine")
    's3://bucket/runs/mine?region=eu-west-1'
    """
    base, query = split_query(uri)
    return f"{base.rstrip('/')}/{name}{query}"


def cut(uri: str) -> tuple[str, str]:
    """Undo `join`: return the folder, which keeps the query of a URI, and the name in it."""
    base, query = split_query(uri)
    folder, _, name = base.rpartition("/")
    return f"{folder}{query}", name


def split_query(uri: str) -> tuple[str, str]:
    """Return a URI without its query, and the query with its `?`; a local path has none."""
    base, mark, query = uri.partition("?") if _is_uri(uri) else (uri, "", "")
    return base, f"{mark}{query}"


def open_uri(uri: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a local path or a URI, and the path in it.

    Schemes that pyarrow does not know (`https://`, `hf://`, `az://`) go through fsspec. Credentials that are `***`, as
    in stored settings, are left out, so that those of the environment apply.
    """
    if not _is_uri(uri):
        return fs.LocalFileSystem(), absolute(uri)
    check_withheld(uri)
    remember(uri)
    return _open_remote(without_hidden(uri))


@lru_cache(maxsize=64)
def _open_remote(uri: str) -> tuple[fs.FileSystem, str]:
    with storage_errors("open", uri):
        try:
            # pyarrow refuses blanks and letters such as umlauts that are not percent-encoded, and cuts off what is
            # behind a #
            system, path = fs.FileSystem.from_uri(quote(_bounded(uri), safe="%/:?[]@!$&'()*+,;=~"))
        except pa.ArrowInvalid:
            import fsspec

            client, path = fsspec.core.url_to_fs(uri)
            system = fs.PyFileSystem(fs.FSSpecHandler(client))
    return with_single_puts(system), path.rstrip("/")


def _bounded(uri: str) -> str:
    """Make a Google bucket that does not answer an error soon; `retry_limit_seconds` in the URI takes precedence."""
    parts = urlparse(uri)
    if parts.scheme not in ("gs", "gcs") or "retry_limit_seconds" in parse_qs(parts.query):
        return uri
    return f"{uri}{'&' if parts.query else '?'}retry_limit_seconds={GCS_RETRY_S}"


def check_scheme(uri: str) -> None:
    """Check that the scheme of a URI is one that can be opened; the storage is not asked.

    >>> check_scheme("s3://bucket/runs")
    """
    if _is_uri(uri) and urlparse(uri).scheme not in _ARROW_SCHEMES:
        open_uri(uri)


def stat_uri(uri: str) -> tuple[fs.FileSystem, fs.FileInfo]:
    """Return the file system of a local path or a URI, and the kind and size of what is there."""
    system, path = open_uri(uri)
    return system, stat_path(system, path, uri)


def stat_path(system: fs.FileSystem, path: str, uri: str) -> fs.FileInfo:
    """Return kind and size of what is at a path; a website that does not answer is an error, not a missing file."""
    with storage_errors("read", uri):
        info = system.get_file_info(path)
        if info.type == fs.FileType.NotFound:
            try:
                check_server(system, path)
            except RunFailed as error:
                raise StorageError(str(error)) from error
        return info


@contextmanager
def storage_errors(what: str, uri: str) -> Iterator[None]:
    """Turn errors of a file system into messages for the user.

    Args:
        what: verb for what is done, such as `read`.

    Raises:
        ConfigError: instead of errors of files, networks and missing packages: a StorageError where another try may
            succeed.
    """
    try:
        yield
    except ConfigError:
        raise
    except (*file_errors(), pa.ArrowException, ImportError, ValueError) as error:
        may_pass = isinstance(error, file_errors()) and not isinstance(error, LASTING)
        kind = StorageError if may_pass else ConfigError
        raise kind(f"cannot {what} {uri!r}: {short_reason(error)}; {advice(error)}") from error
    except NotImplementedError as error:
        # websites, for example, are only read
        raise ConfigError(f"cannot {what} {uri!r}: this kind of storage does not allow it; give another one") from error


def _is_uri(uri: str) -> bool:
    return "://" in uri and bool(urlparse(uri).scheme)
