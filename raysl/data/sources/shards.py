"""Files of many samples: finding them in a folder or by a pattern, and the members of a tar."""

import re
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyarrow import fs

from raysl.data.sources.listing import list_files, printable
from raysl.errors import ConfigError
from raysl.storage.addresses import cut, open_uri, stat_uri, storage_errors
from raysl.storage.reads import in_parallel, small_reads


@dataclass(frozen=True)
class Shard:
    """A file of many samples.

    Args:
        num_bytes: size of the file; None if the file system does not know it.
        mtime_ns: modification time in nanoseconds; None if the file system does not know it.
        image_key: ending of its images; None: any ending of images.
    """

    folder: str
    name: str
    num_bytes: int | None
    mtime_ns: int | None
    has_arrays: bool = False
    image_key: str | None = None

    def locate(self) -> tuple[fs.FileSystem, str]:
        """Return the file system, and the path in it."""
        system, root = open_uri(self.folder)
        return system, f"{root}/{self.name}"


def find_shards(uri: str, ending: str) -> list[Shard]:
    """Find the shards at a path or URI, sorted by their paths; those of a pattern in its order.

    Args:
        uri: a folder, searched with its sub-folders; a file; or a pattern, in which `{000..009}` stands for the numbers
            from 000 to 009 and `{a,b}` for each of its parts.
    """
    if "{" in uri:
        return _find_by_pattern(uri)
    _, info = stat_uri(uri)
    if info.type == fs.FileType.File:
        return [Shard(*cut(uri), info.size, info.mtime_ns)]
    if info.type != fs.FileType.Directory:
        raise ConfigError(f"no file or folder {uri!r}; give a {ending} file, a folder of them, or a pattern of names")
    files = sorted(file for file in list_files(uri).files if file.path.lower().endswith(ending))
    if not files:
        raise ConfigError(f"no {ending} files in {uri!r}, sub-folders included")
    check_names((file.path for file in files), uri)
    return [Shard(uri, file.path, file.size, file.mtime_ns) for file in files]


def stat_names(folder: str, names: Sequence[str]) -> list[fs.FileInfo]:
    """Return what there is at some paths below a folder, local or a URI; remote ones are asked for side by side."""
    system, root = open_uri(folder)
    with storage_errors("read", folder):
        paths = [f"{root}/{name}" for name in names]
        if isinstance(system, fs.LocalFileSystem):
            return list(system.get_file_info(paths))
        return list(in_parallel(system.get_file_info, paths, small_reads(system)))


def check_names(paths: Iterable[str], uri: str) -> None:
    """Refuse shards whose names are not UTF-8, because Arrow cannot open them."""
    odd = next((path for path in paths if printable(path) != path), None)
    if odd is not None:
        raise ConfigError(f"the name of {printable(odd)!r} in {uri!r} is not UTF-8; rename it")


def _find_by_pattern(uri: str) -> list[Shard]:
    shards: list[Shard] = []
    folders: dict[str, list[str]] = {}
    for folder, name in map(cut, _expand(uri)):
        folders.setdefault(folder, []).append(name)
    for folder, names in folders.items():
        infos = stat_names(folder, names)
        missing = [name for name, info in zip(names, infos, strict=True) if info.type != fs.FileType.File]
        if missing:
            raise ConfigError(
                f"{len(missing):,} of the {len(names):,} files of {uri!r} are not in {folder!r}, first {missing[0]!r}"
            )
        shards += [Shard(folder, name, info.size, info.mtime_ns) for name, info in zip(names, infos, strict=True)]
    return shards


def _expand(pattern: str) -> Iterator[str]:
    group = re.search(r"\{([^{}]*)\}", pattern)
    if group is None:
        yield pattern
        return
    before, after = pattern[: group.start()], pattern[group.end() :]
    for part in _expand_group(group.group(1), pattern):
        yield from _expand(f"{before}{part}{after}")


def _expand_group(inner: str, pattern: str) -> list[str]:
    numbers = re.fullmatch(r"(\d+)\.\.(\d+)", inner)
    if numbers is None:
        if "," not in inner:
            raise ConfigError(f"{pattern!r}: {{{inner}}} is neither a range like {{000..009}} nor a list like {{a,b}}")
        return inner.split(",")
    first, last = numbers.groups()
    if int(first) > int(last):
        raise ConfigError(f"{pattern!r}: the range {{{inner}}} is empty; write the smaller number first")
    width = len(first) if first.startswith("0") else 0
    return [f"{number:0{width}d}" for number in range(int(first), int(last) + 1)]


BLOCK = 512
LARGEST_RECORD = 1 << 20
"""Largest unit in which programs write a tar, in bytes; 10 KiB is usual."""


@dataclass(frozen=True)
class Member:
    """A file inside a tar.

    Args:
        offset: distance of its content from the start of the tar, in bytes.
        size: length of its content, in bytes.
    """

    name: str
    offset: int
    size: int


def read_members(file: Any, where: str) -> Iterator[Member]:
    """Yield the plain files of an uncompressed tar, in order; folders are left out.

    Args:
        file: file that is open for reading, with `seek`.

    Raises:
        ConfigError: if it is not a tar, is truncated or goes on behind its end, or if a member has an absolute path or
            one with `..`, or is neither a plain file nor a folder.
    """
    try:
        with tarfile.open(fileobj=file, mode="r:") as tar:
            for info in tar:
                if info.name.startswith("/") or ".." in info.name.split("/"):
                    raise ConfigError(f"{where}: the member {info.name!r} lies outside of the tar; make the tar again")
                if info.isdir():
                    continue
                if not info.isreg() or info.issparse():
                    raise ConfigError(
                        f"{where}: the member {info.name!r} is not a plain file; make the tar without links"
                    )
                yield Member(info.name, info.offset_data, info.size)
            end = tar.offset
    except tarfile.TarError as error:
        raise ConfigError(f"{where} is not a complete, uncompressed tar ({error}); make it again") from error
    file.seek(end)
    # tarfile accepts a tar that is cut off between two members, so look for the block of zeros at its end.
    if bytes(file.read(BLOCK)) != bytes(BLOCK):
        raise ConfigError(f"{where} is cut off or damaged at byte {end:,}; download or make it again")
    # Zeros fill the last record of a tar; a tar that `cat` appended begins behind them, and tarfile does not read it.
    if bytes(file.read(LARGEST_RECORD)).strip(b"\0"):
        raise ConfigError(
            f"{where} goes on behind its end at byte {end:,}; if `cat` joined tars, keep them as files of their "
            "own, or join them with tar --concatenate; else make it again"
        )
