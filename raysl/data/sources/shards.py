"""Which shards a dataset has: from a folder, a file, or a pattern of names."""

import re
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pyarrow import fs

from raysl.data.sources.listing import listing, shown
from raysl.errors import ConfigError
from raysl.storage.addresses import cut, info_of, open_uri, telling


@dataclass(frozen=True)
class Shard:
    """A file of many samples.

    Args:
        folder: local path or URI of the folder that was given.
        name: path below it.
        num_bytes: its size.
        mtime_ns: when it was written; None where the file system does not know.
    """

    folder: str
    name: str
    num_bytes: int | None
    mtime_ns: int | None

    def place(self) -> tuple[fs.FileSystem, str]:
        """The file system, and the path in it."""
        system, root = open_uri(self.folder)
        return system, f"{root}/{self.name}"


def shards(uri: str, ending: str) -> list[Shard]:
    """Shards at a place, sorted by their paths; those of a pattern in its order.

    Args:
        uri: folder, which is searched with its sub-folders, file, or pattern: `{000..009}` stands for the numbers from
            000 to 009 and `{a,b}` for each of its parts; local or a URI.
        ending: of the names of shards, as `.tar`.

    Raises:
        ConfigError: if there are none, or one of a pattern is missing.
    """
    if "{" in uri:
        return _of_pattern(uri)
    _, info = info_of(uri)
    if info.type == fs.FileType.File:
        return [Shard(*cut(uri), info.size, info.mtime_ns)]
    if info.type != fs.FileType.Directory:
        raise ConfigError(f"no file or folder {uri!r}; give a {ending} file, a folder of them, or a pattern of names")
    found = sorted(file for file in listing(uri).files if file.path.endswith(ending))
    if not found:
        raise ConfigError(f"no {ending} files in {uri!r}, sub-folders included")
    check_names((file.path for file in found), uri)
    return [Shard(uri, file.path, file.size, file.mtime_ns) for file in found]


def check_names(paths: Iterable[str], uri: str) -> None:
    """Refuse files of many images whose names are not UTF-8, which Arrow cannot open.

    Raises:
        ConfigError: naming the first.
    """
    odd = next((path for path in paths if shown(path) != path), None)
    if odd is not None:
        raise ConfigError(f"the name of {shown(odd)!r} in {uri!r} is not UTF-8; call it otherwise")


def _of_pattern(uri: str) -> list[Shard]:
    found: list[Shard] = []
    for folder, names in _grouped(_expanded(uri)).items():
        system, root = open_uri(folder)
        with telling("read", folder):
            infos = system.get_file_info([f"{root}/{name}" for name in names])
        missing = [name for name, info in zip(names, infos, strict=True) if info.type != fs.FileType.File]
        if missing:
            raise ConfigError(
                f"{len(missing):,} of the {len(names):,} files of {uri!r} are not in {folder!r}, first {missing[0]!r}"
            )
        found += [Shard(folder, name, info.size, info.mtime_ns) for name, info in zip(names, infos, strict=True)]
    return found


def _grouped(uris: Iterable[str]) -> dict[str, list[str]]:
    """Names by their folders."""
    folders: dict[str, list[str]] = {}
    for uri in uris:
        folder, name = cut(uri)
        folders.setdefault(folder, []).append(name)
    return folders


def _expanded(pattern: str) -> Iterator[str]:
    group = re.search(r"\{([^{}]*)\}", pattern)
    if group is None:
        yield pattern
        return
    before, after = pattern[: group.start()], pattern[group.end() :]
    for part in _parts(group.group(1), pattern):
        yield from _expanded(f"{before}{part}{after}")


def _parts(inner: str, pattern: str) -> list[str]:
    numbers = re.fullmatch(r"(\d+)\.\.(\d+)", inner)
    if numbers is None:
        if "," not in inner:
            raise ConfigError(f"{pattern!r}: {{{inner}}} is neither a range as {{000..009}} nor a list as {{a,b}}")
        return inner.split(",")
    first, last = numbers.groups()
    if int(first) > int(last):
        raise ConfigError(f"{pattern!r}: the range {{{inner}}} is empty; write the smaller number first")
    width = len(first) if first.startswith("0") else 0
    return [f"{number:0{width}d}" for number in range(int(first), int(last) + 1)]


BLOCK = 512


@dataclass(frozen=True)
class Member:
    """A file inside a tar.

    Args:
        name: its path in the tar.
        offset: of its content from the start of the tar, in bytes.
        size: of its content, in bytes.
    """

    name: str
    offset: int
    size: int


def members(file: Any, where: str) -> Iterator[Member]:
    """The plain files of an uncompressed tar, in order; folders are left out.

    Args:
        file: open for reading, with `seek`.
        where: what it is called in messages.

    Raises:
        ConfigError: if it is no tar or breaks off, if a member lies outside (an absolute path, or one with `..`), or
            is neither a plain file nor a folder.
    """
    try:
        with tarfile.open(fileobj=file, mode="r:") as tar:
            for info in tar:
                if info.name.startswith("/") or ".." in info.name.split("/"):
                    raise ConfigError(f"{where}: the member {info.name!r} lies outside of the tar; make it anew")
                if info.isdir():
                    continue
                if not info.isreg() or info.issparse():
                    raise ConfigError(f"{where}: the member {info.name!r} is no plain file; make the tar without links")
                yield Member(info.name, info.offset_data, info.size)
            end = tar.offset
    except tarfile.TarError as error:
        raise ConfigError(f"{where} is no whole, uncompressed tar ({error}); fetch or make it anew") from error
    file.seek(end)
    if bytes(file.read(BLOCK)) != bytes(
        BLOCK
    ):  # tarfile takes a tar that breaks off between two members for a whole one
        raise ConfigError(f"{where} breaks off, or is damaged, at byte {end:,}; fetch or make it anew")
