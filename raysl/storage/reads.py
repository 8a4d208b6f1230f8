"""Reads of files that survive short failures of a network."""

import errno
import io
import os
import stat
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from pyarrow import fs

from raysl.errors import RunFailed, log
from raysl.hashing import Int64s

S = TypeVar("S")
T = TypeVar("T")

TRIES = 5
FIRST_WAIT_S = 0.2
REMOTE_READS = 16  # in parallel
RANGE_FILES = 32  # in parallel; each holds up to RUN_BYTES
SMALL_READS = 64  # in parallel, of remote files of which only a little is read
LOCAL_READS = 8  # in parallel
RUN_BYTES = 8 << 20  # of parts of a file that are one request; takes longer than the wait for its first byte
GAP_BYTES = 1 << 16  # between such parts
FIRST_RANGE = 1 << 16
LONG_SKIP = 2 << 20  # about as many bytes as are transferred in the time of a request
CHECK = "check the address, the network and the rights"
REFUSALS = {
    errno.ENOSPC: ("the disk is full", "make room there"),
    errno.EDQUOT: ("the quota is used up", "make room there, or have it raised"),
    errno.EFBIG: ("a file would be larger than this process may write", "raise the limit (ulimit -f)"),
    errno.EROFS: ("the folder is read-only", "make it writable"),
    errno.EACCES: ("this user may not write there", "give the right to"),
    errno.EPERM: ("this user may not write there", "give the right to"),
}
"""Why a storage refuses to write until somebody helps, and how, by the number of the error."""


class NotRegularFile(OSError):
    """A device, a FIFO or a socket in place of a file: its content may have no end, or never come."""


class TooLarge(OSError):
    """A file has more bytes than are read of it."""


LASTING = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, NotRegularFile, TooLarge)


def retrying(read: Callable[[], T], what: str, uri: str, sleep: Callable[[float], object] = time.sleep) -> T:
    """Return what `read` returns; when a network fails, call it again, up to 5 times with growing pauses (3 s in all).

    Errors that waiting does not cure are raised at once: missing files or rights, a file in place of a folder or the
    reverse, an HTTP status of 400 to 499 except 408 and 429, and all that are not errors of files or networks.

    Args:
        read: may be called more than once.

    Raises:
        RunFailed: after the last try; the message has the URI, the number of tries and the reason.
    """
    pauses = [FIRST_WAIT_S * 2**number for number in range(TRIES - 1)]
    while True:
        try:
            return read()
        except file_errors() as error:
            if not _may_pass(error):
                raise
            reason = short_reason(error)
            if not pauses:
                raise RunFailed(f"cannot {what} {uri!r} after {TRIES} tries: {reason}; {CHECK}") from error
            if len(pauses) == TRIES - 1:
                log.warning("cannot %s %r: %s; trying again, %d times at most", what, uri, reason, TRIES - 1)
        sleep(pauses.pop(0))


def read_file(system: fs.FileSystem, path: str, most: int | None = None) -> bytes:
    """Return the content of one file, read with `retrying`.

    Args:
        most: bytes; a file with more is not read. What fsspec reads, such as a website, is limited only where it says
            its size.

    Raises:
        FileNotFoundError, PermissionError, IsADirectoryError, NotRegularFile, TooLarge: at once.
        RunFailed: if the network fails again and again.
    """
    return retrying(lambda: _read_whole(system, path, most), "read", path)


def _read_whole(system: fs.FileSystem, path: str, most: int | None = None) -> bytes:
    client = fsspec_client(system)
    if client is not None:
        content = bytes(client.cat_file(path))
        _check_bytes(len(content), most)
        return content
    if isinstance(system, fs.LocalFileSystem):
        return _read_local(path, most)
    with system.open_input_stream(path) as stream:
        content = bytes(stream.read() if most is None else stream.read(most + 1))
    _check_bytes(len(content), most)
    return content


def _read_local(path: str, most: int | None) -> bytes:
    """Read a regular file, not by Arrow: it rejects names that are not UTF-8, and has no error of its own for folders.

    It is opened without waiting, since opening a FIFO waits for its writer.
    """
    with open_regular(path) as file:
        _check_bytes(os.fstat(file.fileno()).st_size, most)
        return file.readall()


def open_regular(path: str) -> io.FileIO:
    """Open a local file for reading, without a buffer; its name may be any bytes.

    Raises:
        NotRegularFile, IsADirectoryError: if it is something else.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        kind = IsADirectoryError if stat.S_ISDIR(mode) else NotRegularFile
        raise kind(f"{path!r} is not a regular file")
    return io.FileIO(descriptor, "rb")


def _check_bytes(num_bytes: int, most: int | None) -> None:
    if most is not None and num_bytes > most:
        raise TooLarge(f"more than {most:,} bytes")


def check_server(system: fs.FileSystem, path: str) -> None:
    """Ask a website for a path, with `retrying`: without any answer, Arrow reports a missing file.

    Raises:
        RunFailed: if it does not answer again and again.
        aiohttp.ClientResponseError: if it refuses to answer.
    """
    client = fsspec_client(system)
    if client is None or "http" not in client.protocol:
        return
    with suppress(FileNotFoundError):
        retrying(lambda: client.cat_file(path, start=0, end=1), "read", path)


def read_ranges(system: fs.FileSystem, path: str, offsets: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
    """Return parts of one file, read with `retrying`; of a remote file, several at a time.

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
        # threads may share the open file: each read names its own offset
        if is_local or len(offsets) == 1:
            return [part(offset, size) for offset, size in zip(offsets, sizes, strict=True)]
        pool = stack.enter_context(ThreadPoolExecutor(REMOTE_READS))
        return list(pool.map(part, offsets, sizes))


def read_together(system: fs.FileSystem, path: str, offsets: Int64s, sizes: Int64s) -> list[bytes]:
    """Return parts of one file, in any order; parts of a remote file that lie close together are one request.

    Args:
        offsets: int64 [N], start of each part in bytes.
        sizes: int64 [N], bytes of each part.
    """
    if isinstance(system, fs.LocalFileSystem):
        return read_ranges(system, path, offsets.tolist(), sizes.tolist())
    order = np.argsort(offsets, kind="stable")
    starts, ends = offsets[order], (offsets + sizes)[order]
    firsts = _first_of_runs(starts, ends)
    lasts = [*firsts[1:], len(order)]
    # the last part of a request need not reach farthest, since parts may overlap
    spans = [int(ends[first:last].max() - starts[first]) for first, last in zip(firsts, lasts, strict=True)]
    runs = read_ranges(system, path, starts[firsts].tolist(), spans)
    parts = [b""] * len(order)
    for run, first, last in zip(runs, firsts, lasts, strict=True):
        for number in range(first, last):
            low = int(starts[number] - starts[first])
            parts[int(order[number])] = run[low : low + int(ends[number] - starts[number])]
    return parts


def _first_of_runs(starts: Int64s, ends: Int64s) -> list[int]:
    """Return the first part of each request, for parts in the order of their starts."""
    firsts: list[int] = []
    for number, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        is_far = not firsts or start - ends[number - 1] > GAP_BYTES
        if is_far or end - starts[firsts[-1]] > RUN_BYTES:
            firsts.append(number)
    return firsts


class RangeFile:
    """A remote file that is read by ranges, for readers that skip from header to header.

    A range is twice as long as the one before while the reader goes on near its end, and short after a long skip: a
    request costs as much time as the transfer of some megabytes.
    """

    def __init__(self, system: fs.FileSystem, path: str, num_bytes: int) -> None:
        self.system, self.path, self.num_bytes = system, path, num_bytes
        self.position = 0
        self._start, self._content = 0, b""
        self._size = FIRST_RANGE
        is_opened = fsspec_client(system) is None
        self._file = retrying(lambda: system.open_input_file(path), "open", path) if is_opened else None

    def __enter__(self) -> "RangeFile":
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def tell(self) -> int:
        """Return the position of the next byte to read."""
        return self.position

    def seek(self, position: int, whence: int = os.SEEK_SET) -> int:
        """Go to a position from the start of the file, from where it stands, or from its end."""
        self.position = position + {os.SEEK_SET: 0, os.SEEK_CUR: self.position, os.SEEK_END: self.num_bytes}[whence]
        return self.position

    def read(self, size: int) -> bytes:
        """Return the next bytes; fewer at the end of the file."""
        size = max(0, min(size, self.num_bytes - self.position))
        low = self.position - self._start
        if size and not 0 <= low <= low + size <= len(self._content):
            self._fetch(size)
            low = 0
        self.position += size
        return self._content[low : low + size]

    def _fetch(self, size: int) -> None:
        """Read a range that begins at the position."""
        # a reader that goes on, perhaps from inside the last range, gets longer ranges; one that jumps begins again
        ahead = self.position - self._start
        goes_on = 0 <= ahead <= len(self._content) + LONG_SKIP
        self._size = min(RUN_BYTES, 2 * self._size) if goes_on else FIRST_RANGE
        self._start = self.position
        size = min(max(size, self._size), self.num_bytes - self.position)
        part = self.system, self.path, self._file, self._start, size
        self._content = retrying(lambda: _read_part(*part), "read", self.path)


def small_reads(system: fs.FileSystem) -> int:
    """Return how many files of a file system to read at a time if only a little is read of each."""
    return LOCAL_READS if isinstance(system, fs.LocalFileSystem) else SMALL_READS


def in_parallel(work: Callable[[S], T], items: Iterable[S], threads: int) -> Iterator[T]:
    """Yield what `work` returns for each item, in their order; only some results ahead of the caller are kept.

    >>> list(in_parallel(len, ["a", "bcd"], threads=2))
    [1, 3]
    """
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[T]] = deque()
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > 2 * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


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

    Files are read from it directly: for any answer of a website but 200, Arrow reports a missing file.
    """
    is_wrapped = isinstance(system, fs.PyFileSystem) and isinstance(system.handler, fs.FSSpecHandler)
    return system.handler.fs if is_wrapped else None


def is_object_store(system: fs.FileSystem) -> bool:
    """Return whether files of a storage appear whole, and folders are no more than parts of names.

    pyarrow's client of Azure is not among them: it creates an empty file before it writes.
    """
    return system.type_name in ("s3", "gcs")


def _may_pass(error: Exception) -> bool:
    """Return whether another try may succeed after an error of a file system."""
    if isinstance(error, LASTING):
        return False
    if not isinstance(error, _http_errors("ClientResponseError")):
        return True
    response: Any = error
    return not 400 <= response.status < 500 or response.status in (408, 429)


def refusal(error: BaseException | None) -> OSError | None:
    """Return the error of `REFUSALS` that `error` is or was caused by, else None."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:  # an error that was raised again may be its own cause
        if isinstance(error, OSError) and error.errno in REFUSALS:
            return error
        seen.append(error)
        error = error.__cause__ or error.__context__
    return None


def advice(error: Exception) -> str:
    """Return what a user may do about an error of a storage."""
    refused = None if isinstance(error, PermissionError) else refusal(error)  # it may have been a read
    if refused is None or refused.errno is None:
        return CHECK
    what, remedy = REFUSALS[refused.errno]
    return f"{what}: {remedy}, then give the same command again"


def file_errors() -> tuple[type[Exception], ...]:
    """Return the classes of errors that file systems and networks raise."""
    return (OSError, *_http_errors("ClientError"))


def _http_errors(name: str) -> tuple[type[Exception], ...]:
    """Return a class of errors of fsspec's HTTP client, if that is loaded; not all of them are OSErrors."""
    client = sys.modules.get("aiohttp")
    return () if client is None else (vars(client)[name],)


def short_reason(error: Exception) -> str:
    """Return the first line of an error's message, at most 300 characters of it."""
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    return reason if len(reason) <= 300 else f"{reason[:300]} ..."
