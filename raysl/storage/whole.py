"""Files that are read once and whole, such as lists, annotations and weights, at local paths and URIs.

smart_open opens local files, websites and, with the extra `raysl[s3]`, buckets of S3; pyarrow and fsspec open the other
addresses. Files that are read in parts, or by the thousand, are read by `raysl.storage.reads`.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from pyarrow import fs

from raysl.errors import ConfigError, RunFailed, StorageError
from raysl.redact import without_hidden
from raysl.storage import s3
from raysl.storage.addresses import open_uri, split_query, storage_errors
from raysl.storage.reads import retrying

T = TypeVar("T")

COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
"""Endings of compressed files, and pyarrow's names of their formats."""
WEBSITES = ("http://", "https://")
TIMEOUT_S = 60.0
CHUNK_BYTES = 8 << 20


def plain_name(uri: str) -> str:
    """Return an address in lower case without the ending of a compressed file and the query of a URI.

    >>> plain_name("s3://bucket/Train.CSV.gz?region=eu-west-1")
    's3://bucket/train.csv'
    """
    name = split_query(uri)[0].lower()
    return next((name.removesuffix(ending) for ending in COMPRESSIONS if name.endswith(ending)), name)


def read_whole(uri: str) -> bytes:
    """Return the content of a file, decompressed if its name ends in .gz, .bz2 or .zst.

    Raises:
        ConfigError: if there is no such file, its address or rights are wrong, or its compressed content is damaged.
        StorageError: if the network fails again and again.
    """
    content = _with_file(uri, lambda file: bytes(file.read()))
    ending = os.path.splitext(split_query(uri)[0])[1].lower()
    if ending not in COMPRESSIONS:
        return content
    try:
        return bytes(pa.CompressedInputStream(pa.BufferReader(content), COMPRESSIONS[ending]).read())
    except OSError as error:
        raise ConfigError(f"{uri} is not a whole {ending} file: {error}; make or fetch it again") from error


def copy_whole(uri: str, target: Path) -> None:
    """Copy a file of any size to a local path."""

    def copy(source: Any) -> None:
        with target.open("wb") as output:
            shutil.copyfileobj(source, output, CHUNK_BYTES)

    _with_file(uri, copy)


def _with_file(uri: str, use: Callable[[Any], T]) -> T:
    """Return what `use` returns for the open file, called again with a new one when a network fails."""
    system, path = open_uri(uri)
    client = s3.client_of(system)

    def attempt() -> T:
        if isinstance(system, fs.LocalFileSystem):
            # opening a FIFO would wait for its writer
            if not os.path.isfile(path):
                raise ConfigError(f"no file {uri!r}; give the address of a file that is there")
            return _open(path, use)
        if uri.startswith(WEBSITES):
            return _open_website(without_hidden(uri), use)
        if client is not None:
            return _open_object(path, client, use)
        with system.open_input_stream(path, compression=None) as file:
            return use(file)

    with storage_errors("read", uri):
        try:
            return retrying(attempt, "read", uri)
        except RunFailed as error:
            raise StorageError(str(error)) from error


def _open(address: str, use: Callable[[Any], T], **options: Any) -> T:
    import smart_open

    with smart_open.open(address, "rb", compression="disable", transport_params=options) as file:
        return use(file)


def _open_website(url: str, use: Callable[[Any], T]) -> T:
    import requests
    from urllib3.exceptions import HTTPError

    try:
        return _open(url, use, timeout=TIMEOUT_S)
    except requests.HTTPError as error:
        raise _error_of(500 if error.response is None else error.response.status_code, error) from error
    except HTTPError as error:  # the connection ended early
        raise OSError(str(error)) from error


def _open_object(path: str, client: Any, use: Callable[[Any], T]) -> T:
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        return _open(f"s3://{path}", use, client=client)
    except BotoCoreError as error:
        raise OSError(str(error)) from error
    except OSError as error:
        # smart_open raises a plain OSError, with the answer of the server only in its cause
        if not isinstance(error.__cause__, ClientError):
            raise
        raise _error_of(error.__cause__.response["ResponseMetadata"]["HTTPStatusCode"], error) from error


def _error_of(status: int, error: Exception) -> OSError:
    """Return the error of a file for an HTTP status; it says whether another try may help."""
    if status in (404, 410):
        return FileNotFoundError(str(error))
    is_lasting = 400 <= status < 500 and status not in (408, 429)
    return PermissionError(str(error)) if is_lasting else OSError(str(error))
