"""The files below a folder, whatever bytes their names are and wherever its links lead."""

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from stat import S_ISDIR, S_ISREG
from typing import NamedTuple

import numpy as np
from pyarrow import fs

from raysl.storage.addresses import info_of, telling

_SHOWN = 3
_NOWHERE = (errno.ENOENT, errno.ELOOP, errno.ENOTDIR)


class File(NamedTuple):
    """A file below a folder.

    Args:
        path: below the folder; bytes that are no UTF-8 are lone surrogates, as `os.fsdecode` has them.
        size: in bytes; None where the file system does not know.
        mtime_ns: when it was written; None where the file system does not know.
        identity: the same number for two names of one local file.
    """

    path: str
    size: int | None
    mtime_ns: int | None
    identity: int | None


@dataclass(frozen=True)
class Listing:
    """What lies below a folder; names that begin with a dot are left out.

    Args:
        files: in any order.
        circles: links to a folder that they lie in; they are not followed.
        dangling: links to nothing.
    """

    files: list[File]
    circles: list[str]
    dangling: list[str]

    def notes(self, uri: str, files: Sequence[File], is_used: Callable[[str], bool]) -> tuple[str, ...]:
        """What links have done to the images, a line each.

        Args:
            uri: what the folder is called.
            files: those that are used.
            is_used: whether a file would be, by its path.
        """
        lines = []
        repeats = _repeats(files)
        if repeats:
            again, first = (shown(file.path) for file in repeats[0])
            lines.append(
                f"{len(repeats):,} of the {len(files):,} images of {uri!r} are files that stand there under another "
                f"name too, by links: {again!r} is {first!r}; take such links out if each image is to count once"
            )
        if self.circles:
            lines.append(f"links to a folder around them are not followed in {uri!r}: {listed(sorted(self.circles))}")
        dangling = sorted(path for path in self.dangling if is_used(path))
        if dangling:
            lines.append(f"{len(dangling):,} links in {uri!r} lead to no file and are left out: {listed(dangling)}")
        return tuple(lines)


def listing(uri: str) -> Listing:
    """All files below a folder, sub-folders included.

    Raises:
        ConfigError: if it cannot be read.
    """
    system, info = info_of(uri)
    with telling("read", uri):
        if isinstance(system, fs.LocalFileSystem):
            return _walked(info.path)
        found = system.get_file_info(fs.FileSelector(info.path, recursive=True))
    inner = ((entry.path[len(info.path) :].strip("/"), entry) for entry in found if entry.type == fs.FileType.File)
    files = [File(path, entry.size, entry.mtime_ns, None) for path, entry in inner if not _is_hidden(path)]
    return Listing(files, [], [])


def files_in(uri: str) -> dict[str, File]:
    """The files directly in a folder, by name.

    Raises:
        ConfigError: if it cannot be read.
    """
    system, info = info_of(uri)
    with telling("read", uri):
        if isinstance(system, fs.LocalFileSystem):
            return {name: _file(name, status) for name, status in _statuses(info.path, []) if S_ISREG(status.st_mode)}
        found = system.get_file_info(fs.FileSelector(info.path))
    files = (entry for entry in found if entry.type == fs.FileType.File)
    return {entry.base_name: File(entry.base_name, entry.size, entry.mtime_ns, None) for entry in files}


def folders_in(uri: str) -> list[str]:
    """Names of the folders directly in a folder, sorted; those that begin with a dot are left out.

    Raises:
        ConfigError: if it cannot be read.
    """
    system, info = info_of(uri)
    with telling("read", uri):
        if isinstance(system, fs.LocalFileSystem):
            with os.scandir(info.path) as entries:
                found = [entry.name for entry in entries if entry.is_dir()]
        else:
            below = system.get_file_info(fs.FileSelector(info.path))
            found = [entry.base_name for entry in below if entry.type == fs.FileType.Directory]
    return sorted(name for name in found if not _is_hidden(name))


def shown(path: str) -> str:
    """A path that can be printed and stored: bytes that are no UTF-8 as `\\xe9`."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def listed(names: Sequence[str]) -> str:
    """The first few of some names, for messages."""
    return ", ".join(shown(name) for name in names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")


def _walked(root: str) -> Listing:
    found = Listing([], [], [])
    waiting: list[tuple[str, tuple[tuple[int, int], ...]]] = [("", (_place(os.stat(root)),))]
    while waiting:
        folder, ancestors = waiting.pop()
        prefix = f"{folder}/" if folder else ""
        dangling: list[str] = []
        for name, status in _statuses(f"{root}/{folder}", dangling):
            path = f"{prefix}{name}"
            if _is_hidden(name):
                continue
            if S_ISREG(status.st_mode):
                found.files.append(_file(path, status))
            elif _place(status) in ancestors:
                found.circles.append(path)
            else:
                waiting.append((path, (*ancestors, _place(status))))
        found.dangling.extend(f"{prefix}{name}" for name in dangling)
    return found


def _statuses(folder: str, dangling: list[str]) -> Iterator[tuple[str, os.stat_result]]:
    """Files and folders in a folder, links followed; those that lead nowhere are noted."""
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                status = entry.stat()
            except OSError as error:
                if error.errno not in _NOWHERE:
                    raise
                dangling.append(entry.name)
                continue
            if S_ISDIR(status.st_mode) or S_ISREG(status.st_mode):
                yield entry.name, status


def _file(path: str, status: os.stat_result) -> File:
    return File(path, status.st_size, status.st_mtime_ns, hash(_place(status)))


def _place(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _is_hidden(path: str) -> bool:
    return path.startswith(".") or "/." in path


def _repeats(files: Sequence[File]) -> list[tuple[File, File]]:
    """Files that stand further ahead under another name, each with the one there."""
    identities = np.array([-place if file.identity is None else file.identity for place, file in enumerate(files)])
    _, first, group = np.unique(identities, return_index=True, return_inverse=True)
    originals = first[group.reshape(-1)]
    again = np.flatnonzero(originals != np.arange(len(files)))
    return [(files[place], files[int(originals[place])]) for place in again.tolist()]


ENDINGS = {
    "JPEG": ("jpg", "jpeg", "jpe", "jfif"),
    "MPO": ("jpg", "jpeg", "mpo"),
    "PNG": ("png",),
    "WEBP": ("webp",),
    "GIF": ("gif",),
    "BMP": ("bmp", "dib"),
    "TIFF": ("tif", "tiff"),
    "PPM": ("ppm", "pgm", "pbm", "pnm"),
    "JPEG2000": ("jp2", "j2k", "jpx"),
}
"""Endings by the format, as Pillow calls it, of those that raysl reads."""

IMAGES = tuple(dict.fromkeys(ending for endings in ENDINGS.values() for ending in endings))
EXTENSIONS = tuple(f".{ending}" for ending in IMAGES)
UNREADABLE = tuple(f".{ending}" for ending in ("heic", "heif", "avif", "jxl", "svg", "psd", "tga", "dng", "cr2", "nef"))
"""Images too, in formats that raysl does not read."""


def is_image(path: str) -> bool:
    """Whether a file is an image that raysl reads, by the ending of its name."""
    return path.lower().endswith(EXTENSIONS)
