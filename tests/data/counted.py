"""A storage on the local disk that counts the requests it answers, and may wait before each answer."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyarrow import fs

from raysl.storage import addresses

SCHEME = "counted"


class CountedFiles(fs.FileSystemHandler):
    """Files of the local disk.

    Args:
        wait_s: before each answer.
        together: files that are opened at the same time; each waits a minute for the others, then fails.

    Attributes:
        requests: number of requests of each kind: `list`, `stat`, `open`, `read`.
        reads: number of reads by path.
        num_bytes: read.
    """

    def __init__(self, wait_s: float = 0.0, together: int = 1) -> None:
        self.local = fs.LocalFileSystem()
        self.wait_s = wait_s
        self.requests: Counter[str] = Counter()
        self.reads: Counter[str] = Counter()
        self.num_bytes = 0
        self.gate = threading.Barrier(together)
        self._lock = threading.Lock()

    def answer(self, kind: str, path: str = "", num_bytes: int = 0) -> None:
        with self._lock:
            self.requests[kind] += 1
            self.num_bytes += num_bytes
            if kind == "read":
                self.reads[path] += 1
        if self.wait_s:
            time.sleep(self.wait_s)

    def get_type_name(self) -> str:
        return SCHEME

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> list[fs.FileInfo]:
        for _ in paths:
            self.answer("stat")
        return self.local.get_file_info(paths)

    def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
        infos = self.local.get_file_info(selector)
        for _ in range(0, len(infos) + 1, 1000):  # names in one answer
            self.answer("list")
        return infos

    def open_input_file(self, path: str) -> pa.NativeFile:
        self.answer("open")
        self.gate.wait(60)
        return pa.PythonFile(_CountedFile(self, path), mode="r")

    open_input_stream = open_input_file

    def _refuse(self, *_: Any, **__: Any) -> None:
        raise PermissionError("this storage is only read")

    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = delete_file = _refuse
    move = copy_file = open_output_stream = open_append_stream = _refuse


class _CountedFile:
    def __init__(self, files: CountedFiles, path: str) -> None:
        self.files, self.path = files, path
        self.file = open(path, "rb")  # noqa: SIM115
        self.closed = False

    def read(self, size: int = -1) -> bytes:
        content = self.file.read(size)
        if content:  # a stream asks once more at its end
            self.files.answer("read", self.path, len(content))
        return content

    def seek(self, offset: int, whence: int = 0) -> int:
        return self.file.seek(offset, whence)

    def tell(self) -> int:
        return self.file.tell()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def close(self) -> None:
        self.file.close()
        self.closed = True


@contextmanager
def counted_storage(wait_s: float = 0.0, together: int = 1) -> Iterator[CountedFiles]:
    """Answer addresses such as `counted:///folder` from the local disk."""
    files = CountedFiles(wait_s, together)
    system = fs.PyFileSystem(files)
    before = addresses._open_remote

    def open_remote(uri: str) -> tuple[fs.FileSystem, str]:
        scheme, _, path = uri.partition("://")
        return (system, path.rstrip("/")) if scheme == SCHEME else before(uri)

    addresses._open_remote = open_remote  # type: ignore[assignment]
    try:
        yield files
    finally:
        addresses._open_remote = before
