"""Reads of files that outlast a network which fails for a moment."""

import errno
import logging
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from pyarrow import fs

from raysl.errors import RunFailed

log = logging.getLogger("raysl")

T = TypeVar("T")

TRIES = 5
FIRST_WAIT_S = 0.2
REMOTE_READS = 16  # at a time
CHECK = "check the address, the network and the rights"
ROOM = "the disk is full: make room there, then give the same command again"
FULL = (errno.ENOSPC, errno.EDQUOT)
LASTING = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)


def retrying(read: Callable[[], T], what: str, uri: str, sleep: Callable[[float], object] = time.sleep) -> T:
    """What `read` returns; where a network fails it is called again, up to 5 times with growing pauses (3 s in all).

    Errors that waiting does not cure pass through at once: missing files, missing rights, files that are no folders
    or the reverse, an HTTP status of 400 to 499 but for 408 and 429, and whatever is no error of files or networks.

    Args:
        read: may be called more than once.
        what: what it does, a verb for the message.
        uri: what it does this to.
        sleep: pauses for so many seconds.

    Raises:
        RunFailed: after the last try; the message has the URI, the number of tries and the reason.
    """
    for number in range(TRIES - 1):
        try:
            return read()
        except file_errors() as error:
            if not _may_pass(error):
                raise
            if number == 0:
                log.warning("cannot %s %r: %s; trying again, %d times at most", what, uri, reason_of(error), TRIES - 1)
        sleep(FIRST_WAIT_S * 2**number)
    try:
        return read()
    except file_errors() as error:
        if not _may_pass(error):
            raise
        raise RunFailed(f"cannot {what} {uri!r} after {TRIES} tries: {reason_of(error)}; {CHECK}") from error


def read_file(system: fs.FileSystem, path: str) -> bytes:
    """Content of one file, read with `retrying`.

    Raises:
        FileNotFoundError, PermissionError, IsADirectoryError: at once.
        RunFailed: if the network fails again and again.
    """
    return retrying(lambda: _read_whole(system, path), "read", path)


def _read_whole(system: fs.FileSystem, path: str) -> bytes:
    inner = fsspec_client(system)
    if inner is not None:
        return bytes(inner.cat_file(path))
    if isinstance(system, fs.LocalFileSystem):
        return Path(path).read_bytes()  # Arrow knows no names that are not UTF-8, and no error of its own for folders
    with system.open_input_stream(path) as stream:
        return bytes(stream.read())


def check_server(system: fs.FileSystem, path: str) -> None:
    """Ask a website for a path, with `retrying`: Arrow takes no answer at all for a missing file.

    Raises:
        RunFailed: if it does not answer again and again.
        aiohttp.ClientResponseError: if it answers that it will not tell.
    """
    inner = fsspec_client(system)
    if inner is None or "http" not in inner.protocol:
        return
    with suppress(FileNotFoundError):
        retrying(lambda: inner.cat_file(path, start=0, end=1), "read", path)


def read_ranges(system: fs.FileSystem, path: str, offsets: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
    """Parts of one file, read with `retrying`; several at a time where the file is remote.

    Args:
        system: where the file is.
        path: of the file.
        offsets: where each part begins, in bytes.
        sizes: of each part, in bytes.

    Raises:
        FileNotFoundError, PermissionError, IsADirectoryError: at once.
        RunFailed: if the network fails again and again, or the file ends within a part.
    """

    def part(offset: int, size: int) -> bytes:
        return retrying(lambda: _read_part(system, path, file, offset, size), "read", path)

    is_local = isinstance(system, fs.LocalFileSystem)
    with ExitStack() as stack:
        file = None
        if fsspec_client(system) is None:
            file = stack.enter_context(retrying(lambda: system.open_input_file(path), "open", path))
        if is_local or len(offsets) == 1:
            return [part(offset, size) for offset, size in zip(offsets, sizes, strict=True)]
        pool = stack.enter_context(ThreadPoolExecutor(REMOTE_READS))
        return list(pool.map(part, offsets, sizes))


def _read_part(system: fs.FileSystem, path: str, file: pa.NativeFile | None, offset: int, size: int) -> bytes:
    if file is None:
        content = bytes(fsspec_client(system).cat_file(path, start=offset, end=offset + size))
    else:
        content = bytes(file.read_at(size, offset))
    if len(content) != size:
        raise OSError(f"{len(content):,} bytes instead of {size:,} at byte {offset:,}; was the file replaced?")
    return content


def fsspec_client(system: fs.FileSystem) -> Any:
    """Return the fsspec file system in an Arrow one, else None.

    Whole files and parts are asked of it directly: Arrow takes any answer of a website but 200 for a missing file.
    """
    is_wrapped = isinstance(system, fs.PyFileSystem) and isinstance(system.handler, fs.FSSpecHandler)
    return system.handler.fs if is_wrapped else None


def _may_pass(error: Exception) -> bool:
    """Whether an error of a file system may be gone at the next try."""
    if isinstance(error, LASTING):
        return False
    if not isinstance(error, _http_errors("ClientResponseError")):
        return True
    response: Any = error
    return not 400 <= response.status < 500 or response.status in (408, 429)


def full_disk(error: BaseException | None) -> OSError | None:
    """The error of a full disk, or of a quota that is used up, if this one is it or comes of it."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:  # one that was raised again may be behind itself
        if isinstance(error, OSError) and error.errno in FULL:
            return error
        seen.append(error)
        error = error.__cause__ or error.__context__
    return None


def file_errors() -> tuple[type[Exception], ...]:
    """What file systems and the networks below them raise."""
    return (OSError, *_http_errors("ClientError"))


def _http_errors(name: str) -> tuple[type[Exception], ...]:
    """A class of errors of fsspec's HTTP client, not all of them OSErrors; it is loaded only where it is used."""
    client = sys.modules.get("aiohttp")
    return () if client is None else (vars(client)[name],)


def reason_of(error: Exception) -> str:
    """The first line of an error's message, at most 300 characters of it."""
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    return reason if len(reason) <= 300 else f"{reason[:300]} ..."
