"""Versions of files in a storage: modification times, or ETags where there are none."""

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pyarrow import fs

from raysl.hashing import digest
from raysl.storage.addresses import storage_errors
from raysl.storage.reads import REMOTE_READS, fsspec_client, retrying

MOST_ASKED = 10_000
"""Files of a remote storage that are queried one by one; the versions of more files stay unknown."""
_TAGS = (
    *("ETag", "etag", "blob_id", "sha256", "Last-Modified", "last_modified", "LastModified", "updated", "mtime"),
    "created",
)
"""Names of a file's version in fsspec's file systems, the most exact first."""


def read_versions(files: Sequence[tuple[fs.FileSystem, str]]) -> list[str | None]:
    """Return the version of each file; None if the storage has none or the file is missing."""
    by_system: dict[int, list[int]] = {}
    for number, (system, _) in enumerate(files):
        by_system.setdefault(id(system) if not _is_local(system) else 0, []).append(number)
    versions: list[str | None] = [None] * len(files)
    for numbers in by_system.values():
        system, paths = files[numbers[0]][0], [files[number][1] for number in numbers]
        for number, version in zip(numbers, _versions_in(system, paths), strict=True):
            versions[number] = version
    return versions


def version_at(system: fs.FileSystem, info: fs.FileInfo) -> str | None:
    """Return the version of a file in a listing; None if the storage has none."""
    if info.mtime_ns is not None:
        return str(info.mtime_ns)
    return _tag(system, info.path) if info.type == fs.FileType.File else None


def versions_digest(versions: Iterable[str | int | None]) -> str:
    """Return 16 hexadecimal digits of the versions of files in their order; empty if all are unknown.

    >>> versions_digest([None, None])
    ''
    """
    known = ["" if version is None else str(version) for version in versions]
    return digest("\n".join(known)) if any(known) else ""


def _versions_in(system: fs.FileSystem, paths: Sequence[str]) -> list[str | None]:
    if _is_local(system):
        return [_local(path) for path in paths]
    if len(paths) > MOST_ASKED:
        return [None] * len(paths)
    with storage_errors("read", paths[0]):
        if fsspec_client(system) is None:
            infos = retrying(lambda: system.get_file_info(list(paths)), "read", paths[0])
            return [version_at(system, info) for info in infos]
        with ThreadPoolExecutor(REMOTE_READS) as pool:
            return list(pool.map(lambda path: retrying(lambda: _tag(system, path), "read", path), paths))


def _local(path: str) -> str | None:
    try:
        return str(os.stat(path).st_mtime_ns)
    except OSError:  # reading the file will explain the error
        return None


def _tag(system: fs.FileSystem, path: str) -> str | None:
    client = fsspec_client(system)
    if client is None:
        return None
    try:
        known: dict[str, Any] = client.info(path)
    except FileNotFoundError:  # reading the file will explain the error
        return None
    return next((f"{known[name]}" for name in _TAGS if known.get(name)), None)


def _is_local(system: fs.FileSystem) -> bool:
    return isinstance(system, fs.LocalFileSystem)
