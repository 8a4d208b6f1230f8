"""Which shards a dataset has: from a folder, a file, or a pattern of names."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pyarrow import fs

from raysl.config.schema import ConfigError
from raysl.storage import cut, info_of, open_uri, telling

HELD_OUT = ("val", "test")


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
    num_bytes: int
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
    system, info = info_of(uri)
    if info.type == fs.FileType.File:
        return [Shard(*cut(uri), info.size, info.mtime_ns)]
    if info.type != fs.FileType.Directory:
        raise ConfigError(f"no file or folder {uri!r}; give a {ending} file, a folder of them, or a pattern of names")
    with telling("read", uri):
        entries = system.get_file_info(fs.FileSelector(info.path, recursive=True))
    found = sorted((entry.path, entry) for entry in entries if entry.path.endswith(ending))
    if not found:
        raise ConfigError(f"no {ending} files in {uri!r}, sub-folders included")
    return [Shard(uri, path[len(info.path) :].strip("/"), entry.size, entry.mtime_ns) for path, entry in found]


def by_part(found: Iterable[Shard]) -> dict[str, list[Shard]]:
    """Shards by what their names, or those of the folders they are in, begin with: train, val, test or other."""
    parts: dict[str, list[Shard]] = {"train": [], "val": [], "test": [], "other": []}
    for shard in found:
        names = shard.name.split("/")[::-1]
        part = next((part for name in names for part in ("train", *HELD_OUT) if name.startswith(part)), "other")
        parts[part].append(shard)
    return parts


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
