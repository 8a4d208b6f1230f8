"""A file system of local files that counts the bytes that are read from it: `counted:///path`."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem


class _File(io.FileIO):
    def read(self, size: int | None = -1) -> bytes:  # type: ignore[override]
        content = super().read(-1 if size is None else size)
        CountedFiles.num_bytes += len(content or b"")
        return content or b""


class CountedFiles(LocalFileSystem):  # type: ignore[misc]
    """Local files under another scheme; `num_bytes` were read of all."""

    protocol = "counted"
    num_bytes = 0

    def _open(self, path: str, mode: str = "rb", *args: Any, **kwargs: Any) -> Any:
        assert mode == "rb"
        return _File(path)

    @classmethod
    def _strip_protocol(cls, path: Any) -> str:
        return LocalFileSystem._strip_protocol(str(path).removeprefix("counted://"))


@contextmanager
def counted_files() -> Iterator[type[CountedFiles]]:
    """Make `counted://` known and yield the counter, at zero."""
    fsspec.register_implementation("counted", CountedFiles, clobber=True)
    CountedFiles.num_bytes = 0
    yield CountedFiles
