"""Which version of a file lies in a storage: its modification time, or the ETag of one that has no such time."""

import hashlib
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pyarrow import fs

from raysl.storage.addresses import telling
from raysl.storage.reads import REMOTE_READS, fsspec_client, retrying

MOST_ASKED = 10_000
"""Files that a remote storage is asked for one by one; of more of them the version is unknown."""
_TAGS = (
    *("ETag", "etag", "blob_id", "sha256", "Last-Modified", "last_modified", "LastModified", "updated", "mtime"),
    "created",
)
"""What file systems of fsspec call the version of a file, the most exact first."""


def versions_of(files: Sequence[tuple[fs.FileSystem, str]]) -> list[str | None]:
    """The version of each file; None where the storage tells none, or the file is not there.

    Args:
        files: file systems, and paths in them.

    Raises:
        ConfigError: if a storage cannot be read.
    """
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
    """The version of a file that a listing tells of; None where the storage tells none."""
    if info.mtime_ns is not None:
        return str(info.mtime_ns)
    return _tag(system, info.path) if info.type == fs.FileType.File else None


def digest_of(versions: Iterable[str | int | None]) -> str:
    """16 hexadecimal digits of the versions of some files in their order; empty where none is known."""
    known = ["" if version is None else str(version) for version in versions]
    return hashlib.sha256("\n".join(known).encode()).hexdigest()[:16] if any(known) else ""


def _versions_in(system: fs.FileSystem, paths: Sequence[str]) -> list[str | None]:
    if _is_local(system):
        return [_local(path) for path in paths]
    if len(paths) > MOST_ASKED:
        return [None] * len(paths)
    with telling("read", paths[0]):
        if fsspec_client(system) is None:
            infos = retrying(lambda: system.get_file_info(list(paths)), "read", paths[0])
            return [version_at(system, info) for info in infos]
        with ThreadPoolExecutor(REMOTE_READS) as pool:
            return list(pool.map(lambda path: retrying(lambda: _tag(system, path), "read", path), paths))


def _local(path: str) -> str | None:
    try:
        return str(os.stat(path).st_mtime_ns)
    except OSError:  # reading it says what is wrong
        return None


def _tag(system: fs.FileSystem, path: str) -> str | None:
    client = fsspec_client(system)
    if client is None:
        return None
    try:
        known: dict[str, Any] = client.info(path)
    except FileNotFoundError:  # reading it says so
        return None
    return next((f"{known[name]}" for name in _TAGS if known.get(name)), None)


def _is_local(system: fs.FileSystem) -> bool:
    return isinstance(system, fs.LocalFileSystem)
